"""A connection to the store that looks before it writes."""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ftis_node.errors import StoreError

BUSY_TIMEOUT_SECONDS = 20.0


def connect(path: Path) -> StoreConnection:
    """For reading and writing, in autocommit mode, usable by one thread at a time. Raises sqlite3.Error."""
    database = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=StoreConnection,
    )
    database.index_file = Path(f"{path}-shm")
    return database


class StoreConnection(sqlite3.Connection):
    """Refuses to write to a disk that has become read-only, with an OSError (EROFS).

    SQLite keeps the index of its WAL in memory that is mapped from a file. A write there to a read-only disk is no
    error that SQLite could return: the kernel ends the process with SIGBUS. So a statement that may write looks whether
    that file may be written, and a commit does at once what the next reader would have to write.

    Not covered is a disk that becomes read-only between what one commit writes to the WAL and to its index. One that
    fails refuses the fsync between them, which SQLite does return; ``chattr +i`` refuses the index alone. An end by it
    is a crash as any other: what was committed is there at the next start.
    """

    index_file: Path | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            with self._sound():
                return super().execute(sql, parameters)
        self._look()
        with self._sound():
            cursor = super().execute(sql, parameters)
        self._mark()
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self._look()
        with self._sound():
            cursor = super().executemany(sql, parameters)
        self._mark()
        return cursor

    def close(self) -> None:
        try:
            self._look()
        except OSError:
            # Who closes last folds the WAL into the store, which is a write. The next start does it: what is committed
            # is safe in the WAL. So this connection is kept from ever being collected, and ends with its process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        else:
            super().close()

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Raises StoreError where SQLite finds what it never wrote."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not (getattr(error, "sqlite_errorname", None) or "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                raise
            file = str(self.index_file).removesuffix("-shm")
            raise StoreError(f"{file}: damaged ({error}); restore it from a backup, or use another --home") from error

    def _mark(self) -> None:
        """The first reader after a commit writes a mark into the index, which later ones find there."""
        if not self.in_transaction:
            super().execute("PRAGMA user_version").fetchone()

    def _look(self) -> None:
        file = self.index_file
        if file is None or os.access(file, os.W_OK) or not file.exists():
            return
        if not os.access(file, os.W_OK):  # or it has just been made
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
