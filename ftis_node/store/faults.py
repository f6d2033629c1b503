"""Errors that mean: the home can't be written just now. They are nobody's bug, and pass when the disk is well again."""

from __future__ import annotations

import errno
import os
import re
import sqlite3

_ERRNOS = {
    errno.ENOSPC: "no room is left on its disk",
    errno.EDQUOT: "the quota of its disk is used up",
    errno.EROFS: "it is read-only",
    errno.EIO: "its disk fails",
}
_SQLITE = {
    "SQLITE_FULL": "no room is left on its disk",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_IOERR": "its disk fails or is full",
    "SQLITE_CANTOPEN": "its store can't be opened for writing",
}
# Libraries that write files in other languages have no errno.
_TEXTS = (
    (re.compile(r"No space left on device|os error 28"), "no room is left on its disk"),
    (re.compile(r"Read-only file system|os error 30"), "it is read-only"),
    (re.compile(r"PytorchStreamWriter failed writing"), "no room is left on its disk, or it fails"),
)


def _not_permitted(error: OSError) -> str | None:
    """Of a file; sockets are refused with the same numbers."""
    if error.errno not in (errno.EPERM, errno.EACCES) or not isinstance(error.filename, str | os.PathLike):
        return None
    return f"{error.filename}: {os.strerror(error.errno)}"


def storage_fault(error: BaseException | None) -> str | None:
    """What is wrong with the home, in words, if that is what this error, or the one behind it, tells."""
    while error is not None:
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", None) or ""
            fault = next((text for prefix, text in _SQLITE.items() if name.startswith(prefix)), None)
        elif isinstance(error, OSError):
            fault = _ERRNOS.get(error.errno or 0) or _not_permitted(error)
        else:
            fault = next((text for pattern, text in _TEXTS if pattern.search(str(error))), None)
        if fault is not None:
            return fault
        error = error.__cause__ or error.__context__
    return None
