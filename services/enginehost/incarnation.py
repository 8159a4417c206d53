"""Proof of death: a lock held for the process's life, and a number that rises with each start.

The number is worth something only among starts from one state directory: a random id, made once beside it, tells
admission which directory that was.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from pathlib import Path

from worldline.errors import Precondition


class Incarnation:
    """The lock on `<state_dir>/<host_id>.lock` and the number in it, raised and durable.

    `state_id`: 32 hex digits, kept in `<state_dir>/<host_id>.state`.
    """

    def __init__(self, state_dir: Path, host_id: str) -> None:
        """Take the lock and raise the number.

        Raises:
            Precondition: another process holds it, or a file holds something else.
        """
        state_dir.mkdir(parents=True, exist_ok=True)
        path = state_dir / f"{host_id}.lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.number = self._take(path)
            self.state_id = _state_id(state_dir / f"{host_id}.state")
            _sync(state_dir)
        except BaseException:
            os.close(self._fd)
            raise

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


def _state_id(path: Path) -> str:
    """The id in the file, which is made if it is not there. Holder of the lock."""
    try:
        found = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        found = uuid.uuid4().hex
        # Whole or not there: a start that dies here leaves none, and nobody was told of it.
        fresh = path.with_suffix(".state-new")
        with fresh.open("w") as file:
            file.write(f"{found}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    if not re.fullmatch("[0-9a-f]{32}", found):
        raise Precondition(
            f"{path} holds {found[:40]!r} and no id of 32 hex digits: restore it, or delete it and fence this host",
            reason="BAD_STATE_ID",
        )
    return found


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
