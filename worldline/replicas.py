"""Channels to several processes of which one leads: calls go to that one, wherever it is now.

A process that does not lead refuses every call (`NOT_LEADER`, with the leader's address), and one that is gone took
none: the call is made again at the next one, until each was asked once. Every call of admission may be made again.
A call that ran out of time is not made again; the next one begins elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import grpc
import grpc.aio

from worldline.status import from_rpc

# A call that was not taken: the process does not lead, or could not be reached.
_NOT_TAKEN = ("NOT_LEADER", "PEER_GONE")


class Turn:
    """Which of several addresses is asked next. Used from many threads: a lost update costs one call more."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self.at = 0

    @property
    def count(self) -> int:
        """How many addresses there are."""
        return len(self._addresses)

    def not_taken(self, at: int, error: grpc.RpcError) -> bool:
        """After a call failed at `at`: whether it was not taken there. The next one is another's then."""
        found = from_rpc(error, self._addresses[at])
        if found.reason not in (*_NOT_TAKEN, "PEER_SILENT"):
            return False
        leader = str(found.numbers.get("leader", ""))
        known = leader in self._addresses and leader != self._addresses[at]
        self.at = self._addresses.index(leader) if known else (at + 1) % self.count
        return found.reason in _NOT_TAKEN


def addresses_of(target: str) -> list[str]:
    """The addresses of a target, "host:port" or several with commas."""
    return [address.strip() for address in target.split(",")]


def _left_s(ends_s: float | None) -> float | None:
    return None if ends_s is None else max(ends_s - time.monotonic(), 0.0)


def _ends_s(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


class _Unary:
    """What generated code calls for one answer."""

    def __init__(self, turn: Turn, calls: list[Any]) -> None:
        self._turn, self._calls = turn, calls

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401 - any message
        return self.with_call(request, timeout, **options)[0]

    def with_call(self, request: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401
        ends_s, tries = _ends_s(timeout), self._turn.count
        while True:
            at, tries = self._turn.at, tries - 1
            try:
                return self._calls[at].with_call(request, timeout=_left_s(ends_s), **options)
            except grpc.RpcError as error:
                if not self._turn.not_taken(at, error) or not tries:
                    raise

    def future(self, request: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401
        return self._calls[self._turn.at].future(request, timeout=timeout, **options)


class _Answers(Iterator[Any]):
    """A stream of answers. Until the first one has come it may begin again elsewhere."""

    def __init__(self, turn: Turn, start: Callable[[int], Any]) -> None:
        self._turn, self._start = turn, start
        self._tries = turn.count
        self._begin()

    def _begin(self) -> None:
        self._at, self._tries = self._turn.at, self._tries - 1
        self._call = self._start(self._at)

    def __next__(self) -> Any:  # noqa: ANN401 - any message
        while True:
            try:
                answer = next(self._call)
            except grpc.RpcError as error:
                if not self._turn.not_taken(self._at, error) or not self._tries:
                    raise
                self._begin()
            else:
                self._tries = 0
                return answer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a call has
        return getattr(self._call, name)


class _Stream:
    """What generated code calls for a stream of answers."""

    def __init__(self, turn: Turn, calls: list[Any]) -> None:
        self._turn, self._calls = turn, calls

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401
        ends_s = _ends_s(timeout)
        return _Answers(self._turn, lambda at: self._calls[at](request, timeout=_left_s(ends_s), **options))


class ReplicaChannel(grpc.Channel):
    """A channel to whichever of several processes leads; for calls with one request."""

    def __init__(self, target: str, connect: Callable[[str], grpc.Channel]) -> None:
        """`target`: several host:port with commas. `connect` opens a channel to one."""
        addresses = addresses_of(target)
        self._turn = Turn(addresses)
        self._channels = [connect(address) for address in addresses]

    def unary_unary(self, *how: Any, **more: Any) -> Any:  # noqa: ANN401 - as generated code calls it
        return _Unary(self._turn, [channel.unary_unary(*how, **more) for channel in self._channels])

    def unary_stream(self, *how: Any, **more: Any) -> Any:  # noqa: ANN401
        return _Stream(self._turn, [channel.unary_stream(*how, **more) for channel in self._channels])

    def stream_unary(self, *how: Any, **more: Any) -> NoReturn:  # noqa: ANN401
        raise NotImplementedError("admission takes one request a call")

    def stream_stream(self, *how: Any, **more: Any) -> NoReturn:  # noqa: ANN401
        raise NotImplementedError("admission takes one request a call")

    def subscribe(self, *how: Any, **more: Any) -> None:  # noqa: ANN401
        self._channels[self._turn.at].subscribe(*how, **more)

    def unsubscribe(self, callback: Any) -> None:  # noqa: ANN401
        for channel in self._channels:
            channel.unsubscribe(callback)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AioReplicaChannel:
    """The same for asyncio: what stubs and `close` need of a channel."""

    def __init__(self, target: str, connect: Callable[[str], grpc.aio.Channel]) -> None:
        addresses = addresses_of(target)
        self._turn = Turn(addresses)
        self._channels = [connect(address) for address in addresses]

    def unary_unary(self, *how: Any, **more: Any) -> Callable[..., Awaitable[Any]]:  # noqa: ANN401
        turn, calls = self._turn, [channel.unary_unary(*how, **more) for channel in self._channels]

        async def call(request: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ANN401
            ends_s, tries = _ends_s(timeout), turn.count
            while True:
                at, tries = turn.at, tries - 1
                try:
                    return await calls[at](request, timeout=_left_s(ends_s), **options)
                except grpc.RpcError as error:
                    if not turn.not_taken(at, error) or not tries:
                        raise

        return call

    def unary_stream(self, *how: Any, **more: Any) -> Callable[..., AsyncIterator[Any]]:  # noqa: ANN401
        turn, calls = self._turn, [channel.unary_stream(*how, **more) for channel in self._channels]

        async def call(request: Any, timeout: float | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
            ends_s, tries = _ends_s(timeout), turn.count
            while True:
                at, tries = turn.at, tries - 1
                try:
                    async for answer in calls[at](request, timeout=_left_s(ends_s), **options):
                        tries = 0
                        yield answer
                    return
                except grpc.RpcError as error:
                    if not turn.not_taken(at, error) or not tries:
                        raise

        return call

    def stream_unary(self, *how: Any, **more: Any) -> NoReturn:  # noqa: ANN401
        raise NotImplementedError("admission takes one request a call")

    def stream_stream(self, *how: Any, **more: Any) -> NoReturn:  # noqa: ANN401
        raise NotImplementedError("admission takes one request a call")

    async def close(self, grace: float | None = None) -> None:
        for channel in self._channels:
            await channel.close(grace)
