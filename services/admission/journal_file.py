"""The journal's file: held by one process, readable by nobody else."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from admission.journal_schema import SCHEMA
from worldline.errors import Unavailable


class JournalFile:
    """The open database `db`, and the lock beside it.

    Raises:
        Unavailable: JOURNAL_HELD if another process has it, JOURNAL_FAILED if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = -1
        try:
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._hold(path)
            _keep_private(path)
            self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            self.db.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            self._let_go()
            raise Unavailable(
                f"the journal {path} cannot be opened: {error}; its folder must exist, and this process must be "
                "allowed to write there",
                reason="JOURNAL_FAILED",
            ) from None
        except BaseException:
            self._let_go()
            raise

    def _hold(self, path: Path) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"the journal {path} is held by another admission process; stop it first", reason="JOURNAL_HELD"
            ) from None

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def close(self) -> None:
        """Close; the lock is let go."""
        self.db.close()
        self._let_go()


def _keep_private(path: Path) -> None:
    """The journal has grants in it. SQLite gives the files beside it the mode of the journal."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            path.with_name(name).chmod(0o600)
