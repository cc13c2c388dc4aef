"""Exceptions: one per status of the library. Each is a reshard.Error, and the builtin that Python programs expect."""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """A call of the library failed. The text is the library's, with its numbers."""

    status: str = "RESHARD_ERROR_INTERNAL"
    missing: tuple[int, ...] = ()


class InvalidError(Error, ValueError):
    """An argument is wrong."""

    status = "RESHARD_ERROR_INVALID"


class MissingError(InvalidError, FileNotFoundError):
    """A path that is not there."""


class UnsupportedError(Error, NotImplementedError):
    """Well formed, but this version, build or machine lacks it."""

    status = "RESHARD_ERROR_UNSUPPORTED"


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed; nothing was changed."""

    status = "RESHARD_ERROR_OUT_OF_MEMORY"


class SystemError(Error):  # noqa: A001 - the library's name
    """The operating system refused: a thread, a file, input or output."""

    status = "RESHARD_ERROR_SYSTEM"


class MismatchError(Error):
    """The ranks of a collective call asked for different things."""

    status = "RESHARD_ERROR_MISMATCH"


class PeerError(Error):
    """Another rank failed, or the communicator was aborted."""

    status = "RESHARD_ERROR_PEER"


class BusyError(Error):
    """The object is in use by another call."""

    status = "RESHARD_ERROR_BUSY"


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the library's name
    """A rank did not come within the deadline; `missing` has the ranks that are known."""

    status = "RESHARD_ERROR_TIMEOUT"


class InternalError(Error):
    """A defect of the library."""

    status = "RESHARD_ERROR_INTERNAL"


class CancelledError(Error):
    """The caller's own function asked for it."""

    status = "RESHARD_ERROR_CANCELLED"


class CorruptError(Error):
    """Data read back is not what was written."""

    status = "RESHARD_ERROR_CORRUPT"


_BY_STATUS: tuple[type[Error], ...] = (Error, InvalidError, UnsupportedError, OutOfMemoryError, SystemError, MismatchError, PeerError, BusyError,
              TimeoutError, InternalError, CancelledError, CorruptError)


def of_status(status: int, text: bytes, missing: tuple[int, ...]) -> Error:
    """Makes the exception of a status of the C library."""
    kind = _BY_STATUS[status] if 0 < status < len(_BY_STATUS) else InternalError
    error = kind(text.decode("utf-8", "replace"))
    if missing:
        error.missing = missing
    return error
