"""The journal's file: held by one process, readable by nobody else."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from admission.journal_database import Connection, failed, open_sqlite
from worldline.errors import Unavailable

# The log has this size from the start, and once it is full, what it holds is copied into the file.
_LOG_BYTES = 1 << 20


class JournalFile:
    """The open file: a connection that writes, one that reads beside it, one that keeps the log short, and the lock.

    Raises:
        Unavailable: JOURNAL_HELD if another process has it, JOURNAL_FAILED if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._log = -1
        self._opened: list[Connection] = []
        try:
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._hold()
            _keep_private(path)
            self.writer = self._open()
            self.reader = self._open(reads_only=True)
            self.keeper = self._open()
            self._lengthen_log()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise failed(
                f"the journal {path} cannot be opened: {error}; its folder must exist, and this process must be "
                "allowed to write there"
            ) from None
        except BaseException:
            self.close()
            raise

    def _open(self, *, reads_only: bool = False) -> Connection:
        self._opened.append(open_sqlite(self.path, reads_only=reads_only))
        return self._opened[-1]

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"the journal {self.path} is held by another admission process; stop it first", reason="JOURNAL_HELD"
            ) from None

    def checkpoint(self) -> None:
        """Copy what the log holds into the file; nobody who reads or writes waits for it. Raises Unavailable."""
        self.keeper.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def settle(self) -> None:
        """Put what was written without a sync on the disk now, so that the next sync has only its own to write.

        No error: a disk that fails says so at the next sync, which somebody waits for.
        """
        with suppress(OSError):
            os.fdatasync(self._log)

    def _lengthen_log(self) -> None:
        """Zeros after the log's end, which SQLite reads as its end: without growth, a sync takes 3/4 the time."""
        # SQLite's locks are on the other two files: closing this descriptor lets none of them go.
        self._log = os.open(self.path.with_name(f"{self.path.name}-wal"), os.O_WRONLY | os.O_CLOEXEC)
        end = os.fstat(self._log).st_size
        if end < _LOG_BYTES:
            os.pwrite(self._log, bytes(_LOG_BYTES - end), end)
            os.fsync(self._log)

    def close(self) -> None:
        """Close; the lock is let go."""
        for connection in self._opened:
            connection.close()
        for descriptor in (self._log, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._lock = -1


def _keep_private(path: Path) -> None:
    """The journal has grants in it. SQLite gives the files beside it the mode of the journal."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            path.with_name(name).chmod(0o600)
