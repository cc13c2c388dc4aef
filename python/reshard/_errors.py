"""Exceptions: one per status of the library. Each is a reshard.Error, and the builtin that Python programs expect."""

from __future__ import annotations

import builtins
import re


class Error(RuntimeError):
    """A call of the library failed. The text is the library's, with its numbers."""

    status = "RESHARD_ERROR_INTERNAL"
    missing: tuple[int, ...] = ()

    def __init_subclass__(cls) -> None:
        if Error in cls.__bases__:
            cls.status = "RESHARD_ERROR" + re.sub("([A-Z])", r"_\1", cls.__name__.removesuffix("Error")).upper()


class InvalidError(Error, ValueError):
    """An argument is wrong."""


class MissingError(InvalidError, FileNotFoundError):
    """A path that is not there."""


class UnsupportedError(Error, NotImplementedError):
    """Well formed, but this version, build or machine lacks it."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed; nothing was changed."""


class SystemError(Error):  # noqa: A001 - the library's name
    """The operating system refused: a thread, a file, input or output."""


class MismatchError(Error):
    """The ranks of a collective call asked for different things."""


class PeerError(Error):
    """Another rank failed, or the communicator was aborted."""


class BusyError(Error):
    """The object is in use by another call."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the library's name
    """A rank did not come within the deadline; `missing` has the ranks that are known."""


class InternalError(Error):
    """A defect of the library."""


class CancelledError(Error):
    """The caller's own function asked for it."""


class CorruptError(Error):
    """Data read back is not what was written."""
