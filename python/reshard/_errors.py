"""Exceptions: one per status of the library. Each is a reshard.Error, and the builtin that Python programs expect."""

from __future__ import annotations

import builtins
import errno
import os
import re


class Error(RuntimeError):
    """A call of the library failed. The text is the library's, with its numbers."""

    status = "RESHARD_ERROR_INTERNAL"
    missing: tuple[int, ...] = ()  # of a TimeoutError: the ranks that are known not to have come

    def __init_subclass__(cls) -> None:
        if Error in cls.__bases__:
            cls.status = "RESHARD_ERROR" + re.sub("([A-Z])", r"_\1", cls.__name__.removesuffix("Error")).upper()


# In the order of include/reshard/status.h, which says what each is.
class InvalidError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class OutOfMemoryError(Error, MemoryError): ...
class SystemError(Error): ...  # noqa: A001 - the library's name
class MismatchError(Error): ...
class PeerError(Error): ...
class BusyError(Error): ...
class TimeoutError(Error, builtins.TimeoutError): ...  # noqa: A001 - the library's name
class InternalError(Error): ...
class CancelledError(Error): ...
class CorruptError(Error): ...
class MissingError(InvalidError, FileNotFoundError): ...  # a path that is not there


def of_status(status: int, text: str, missing: tuple[int, ...]) -> Error:
    kind = Error.__subclasses__()[status - 1]
    error = (MissingError if kind is InvalidError and text.endswith(os.strerror(errno.ENOENT)) else kind)(text)
    error.missing = missing
    return error
