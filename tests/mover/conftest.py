"""Fixtures of the mover's tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from mover.codec.ahead import Ahead
from mover.transports import ALWAYS, TransportConfig, open_transports
from worldline.testing.leaks import no_leaks
from worldline.transport import Piece, Transport

__all__ = ["no_leaks"]


@pytest.fixture(scope="module")
def transports() -> Iterator[dict[str, Transport]]:
    """The transports that every machine has."""
    opened = open_transports(ALWAYS, TransportConfig())
    yield opened
    for transport in opened.values():
        transport.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams wait for the codec, so that what is coded does not depend on who is faster."""
    take = Ahead.take

    def wait_and_take(self: Ahead, stream: int) -> tuple[Piece, Sequence[memoryview]]:
        with self._changed:
            head = self._feeds[stream].tasks[0]
            self._changed.wait_for(lambda: head.piece is not None or self._closed)
        return take(self, stream)

    monkeypatch.setattr(Ahead, "take", wait_and_take)
