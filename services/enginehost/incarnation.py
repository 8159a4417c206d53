"""Proof of death: a lock held for the process's life, and a number that rises with each start."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from worldline.errors import Precondition


class Incarnation:
    """The lock on `<state_dir>/<host_id>.lock` and the number in it, raised and durable."""

    def __init__(self, state_dir: Path, host_id: str) -> None:
        """Take the lock and raise the number.

        Raises:
            Precondition: another process holds it, or the file holds no number.
        """
        state_dir.mkdir(parents=True, exist_ok=True)
        path = state_dir / f"{host_id}.lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.number = self._take(path)
        except BaseException:
            os.close(self._fd)
            raise
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _take(self, path: Path) -> int:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Precondition(
                f"{path} is locked: another process is this engine host; stop it, or use another host_id or state_dir",
                reason="HOST_IS_RUNNING",
            ) from None
        text = os.pread(self._fd, 64, 0).strip()
        if text and not text.isdigit():
            raise Precondition(
                f"{path} holds {text[:32]!r} and no incarnation: restore it, or delete it and fence this host",
                reason="BAD_INCARNATION",
            )
        number = int(text or b"0") + 1
        # Twenty digits in one write, so that no shorter number can remain behind it.
        os.pwrite(self._fd, b"%020d\n" % number, 0)
        os.fsync(self._fd)
        return number

    def close(self) -> None:
        """Let the lock go."""
        os.close(self._fd)
