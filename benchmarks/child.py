"""A process of a benchmark: one command a line to its standard input, one answer a line from its standard output."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TextIO

from worldline.errors import Internal, Unavailable

# A process that has not said by then that it is ready is not measured.
READY_S = 15.0
RUN_S = 120.0
ROOT = Path(__file__).resolve().parents[1]


def say(answer: object, to: TextIO | None = None) -> None:
    """The child's side: one answer, on standard output if nothing else is given."""
    print(json.dumps(answer), file=to, flush=True)


class Child:
    """`python -m MODULE ARGUMENT ...`, run by the command `within` if one is given. Its first answer says: ready.

    Raises:
        Unavailable: it was not ready within `READY_S`, or it has ended, or it did not answer in time.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = " ".join((module, *map(str, arguments)))
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )
        self._heard = b""
        try:
            self.answer(READY_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: object) -> None:
        """Send a command."""
        if self._process.stdin is None:
            raise Unavailable(f"{self._name} has no pipe")
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, timeout_s: float = RUN_S) -> object:
        """The next answer."""
        if self._process.stdout is None:
            raise Unavailable(f"{self._name} has no pipe")
        end_s = time.monotonic() + timeout_s
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._heard:
            if not select.select([pipe], [], [], max(end_s - time.monotonic(), 0.0))[0]:
                raise Unavailable(
                    f"a process of the benchmark has not answered within {timeout_s:g} s: {self._name}",
                    reason="COLLECTOR_SILENT",
                    numbers={"timeout_s": timeout_s},
                )
            came = os.read(pipe, 1 << 20)
            if not came:
                raise self._ended()
            self._heard += came
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            answer: object = json.loads(line)
        except ValueError:
            raise Internal(f"{self._name} should have answered in JSON, and said {line[:200]!r}") from None
        return answer

    def told(self, name: str) -> str:
        """The field of that name of the next answer."""
        answer = self.answer()
        if not isinstance(answer, dict) or name not in answer:
            raise Internal(f"{self._name} should have told {name}, and said {str(answer)[:200]}")
        return str(answer[name])

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Run it within, and have it stand still again afterwards: libraries that poll take processors from others."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Have it stand still until `awake`."""
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _ended(self) -> Unavailable:
        status = self._process.wait()
        return Unavailable(
            f"a process of the benchmark has ended with status {status}: {self._name}; its own error is above",
            reason="COLLECTOR_ENDED",
            numbers={"status": status},
        )
