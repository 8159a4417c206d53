"""The streams of a staged move at a host: a buffer is emptied as it fills, lies end it, a drop waits for nobody."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, until
from test_host_staging import CODED, PLAN, Staged, ZlibFrames

from enginehost.device import Pulled
from enginehost.flowing import pulled_as_it_lands, said_of_filling
from enginehost.source import Checksummed
from worldline import wire
from worldline.codec.parts import Part, carried_bytes
from worldline.errors import BadRequest, Cancelled, DataLoss, WorldlineError
from worldline.filling import Filling
from worldline.v1 import engine_host_service_pb2 as pb

SIZE = 1 << 20


class Call:
    """The context of a call, which the test ends."""

    def __init__(self) -> None:
        self.ended: list[Callable[[], None]] = []
        self.active = True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.ended.append(callback)
        return self.active

    def is_active(self) -> bool:
        return self.active


class Said:
    """Requests that the test makes one by one; None ends them."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[pb.PullLandingRequest | None] = queue.SimpleQueue()
        self.waiting.put(pb.PullLandingRequest(pull=pb.PullRequest()))

    def __iter__(self) -> Iterator[pb.PullLandingRequest]:
        while (message := self.waiting.get()) is not None:
            yield message

    def mark(self, landed_bytes: int, parts: tuple[Part, ...] = ()) -> None:
        self.waiting.put(pb.PullLandingRequest(landed_bytes=landed_bytes, parts=wire.parts_to(parts)))


def waits_for(end: int) -> Callable[[pb.PullRequest, Filling], Pulled]:
    def pull(request: pb.PullRequest, landing: Filling) -> Pulled:
        landing.require(0, end)
        return Pulled([end], 0.0, 0.0)

    return pull


def landing(said: Said, call: Call, end: int = SIZE) -> Pulled:
    return pulled_as_it_lands(iter(said), call, waits_for(end), lambda request: SIZE)  # type: ignore[arg-type]


def test_what_has_landed_is_pulled() -> None:
    said = Said()
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(landing, said, Call())
        said.mark(SIZE // 2)
        assert not pulled.done()
        said.mark(SIZE)
        assert pulled.result(10).crcs == [SIZE]
        said.waiting.put(None)


@pytest.mark.parametrize("marks", [[SIZE + 1], [5, 4], [1 << 63]])
def test_a_mark_that_cannot_be_ends_it(marks: list[int]) -> None:
    said = Said()
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(landing, said, Call())
        for mark in marks:
            said.mark(mark)
        with pytest.raises(BadRequest) as caught:
            pulled.result(10)
        assert caught.value.reason == "BAD_MARK"
        said.waiting.put(None)


def test_more_parts_than_planes_end_it() -> None:
    said = Said()
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(landing, said, Call())
        said.mark(0, (Part(1, 0),) * 3)
        with pytest.raises(BadRequest) as caught:
            pulled.result(10)
        assert caught.value.reason == "BAD_PARTS"
        said.waiting.put(None)


def test_a_stream_that_ends_early_is_no_state() -> None:
    said = Said()
    said.mark(5)
    said.waiting.put(None)
    with pytest.raises(BadRequest, match="was not filled"):
        landing(said, Call())


def test_a_caller_that_leaves_wakes_who_waits() -> None:
    said, call = Said(), Call()
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(landing, said, call)
        until("the call waits", lambda: bool(call.ended))
        for callback in call.ended:
            callback()
        with pytest.raises(Cancelled):
            pulled.result(10)
        said.waiting.put(None)


@pytest.mark.parametrize("first", [[], [pb.PullLandingRequest(landed_bytes=1)]])
def test_the_first_message_says_what_is_wanted(first: list[pb.PullLandingRequest]) -> None:
    with pytest.raises(BadRequest, match="what is wanted"):
        pulled_as_it_lands(iter(first), Call(), waits_for(1), lambda request: SIZE)  # type: ignore[arg-type]


def test_filling_is_told_as_it_goes() -> None:
    go_on = threading.Event()

    def fill(filled: Callable[[int, tuple[Part, ...]], None]) -> Checksummed:
        filled(10, (Part(10, 1),))
        assert go_on.wait(10)
        return Checksummed((7, 8), 0.0, (Part(10, 1), Part(20, 2)))

    told = said_of_filling(fill, SIZE)  # type: ignore[arg-type]
    first = next(told)
    assert (first.filled_bytes, len(first.parts), first.last) == (10, 1, False)
    go_on.set()
    (last,) = told
    assert (last.filled_bytes, tuple(last.chunk_crcs), last.last) == (30, (7, 8), True)


def test_a_fill_that_fails_says_why() -> None:
    def fill(filled: object) -> Checksummed:
        raise DataLoss("broken", reason="BROKEN")

    with pytest.raises(DataLoss, match="broken"):
        list(said_of_filling(fill, SIZE))


# --- whole hosts


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalHost, LocalHost]]:
    first, second = LocalHost(tmp_path, "a"), LocalHost(tmp_path, "b")
    for host in (first, second):
        monkeypatch.setattr(host.host.device, "frames", ZlibFrames(), raising=False)
    yield first, second
    for host in (first, second):
        host.close()
        host.host.staging.close()


@pytest.mark.parametrize("plan", [PLAN, CODED], ids=lambda plan: plan.codec)
def test_a_slot_is_filled_while_its_buffer_fills(hosts: tuple[LocalHost, LocalHost], plan: object) -> None:
    first, second = hosts
    first.create("s")
    move = Staged(first, second, plan)  # type: ignore[arg-type]
    move.reserve()
    manifest = move.freeze()
    filling = Filling(move.size_bytes, most_parts=2)
    marks: list[tuple[int, tuple[Part, ...]]] = []
    found = first.source.checksum(
        move.fence, move.plan, 10.0, lambda filled, parts: marks.append((filled, tuple(parts)))
    )
    crcs = list(found.chunk_crcs)
    carried = carried_bytes(found.parts) if found.parts else move.size_bytes
    assert [filled for filled, _ in marks] == [carried]
    assert tuple(part for _, parts in marks for part in parts) == found.parts

    def pull() -> list[int]:
        return second.destination.pull(
            move.fence, move.plan, (), flip=(), wanted=lambda: True, timeout_s=10.0, landing=filling
        ).crcs

    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(pull)
        half = carried // 2
        move.here[:half] = move.there[:half]
        filling.advance(half, found.parts[:1])
        assert not pulled.done()
        move.here[half:] = move.there[half:]
        filling.advance(carried, found.parts[1:], last=True)
        assert pulled.result(10) == crcs
    move.take(move.attest(manifest, crcs))


def test_a_drop_does_not_wait_for_what_still_lands(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    session = first.create("s")
    move = Staged(first, second)
    move.reserve()
    move.freeze()
    filling = Filling(move.size_bytes)
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(
            second.destination.pull,
            move.fence,
            move.plan,
            (),
            flip=(),
            wanted=lambda: True,
            timeout_s=10.0,
            landing=filling,
        )
        until("it waits", lambda: second.host.sessions.get("s").landing is not None)
        move.give_up()
        with pytest.raises(WorldlineError):
            pulled.result(10)
    first.play(session, 1)
