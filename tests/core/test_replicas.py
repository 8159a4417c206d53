"""Calls find the process that leads, among several addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import pytest

from worldline import rpc
from worldline.aio import AsyncClient
from worldline.client import Client
from worldline.errors import NotFound, TimedOut, Unavailable
from worldline.settings import ServiceSettings, are_addresses, load
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc
from worldline.v1 import move_pb2

OPEN, MOVED = move_pb2.MOVE_STATE_OPEN, move_pb2.MOVE_STATE_MOVED


@dataclass
class Process(pb_grpc.AdmissionServiceServicer):
    """One admission process. `leader` is whom it names while it does not lead itself."""

    leads: bool = False
    leader: str = ""
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    stopped: threading.Event | None = None

    def __post_init__(self) -> None:
        self.server = rpc.Server(load(ServiceSettings), [])
        pb_grpc.add_AdmissionServiceServicer_to_server(self, self.server.grpc)
        self.address = self.server.start()

    def _enter(self, name: str) -> None:
        self.asked.append(name)
        if self.stopped is not None:
            self.stopped.wait(20)
        if not self.leads:
            raise Unavailable("stands by", reason="NOT_LEADER", numbers={"leader": self.leader}, retry_after_s=1.0)
        if self.error is not None:
            raise self.error

    def GetMove(self, request: pb.GetMoveRequest, context: grpc.ServicerContext) -> pb.GetMoveResponse:
        self._enter("get")
        return pb.GetMoveResponse(move=move_pb2.Move(move_id=request.move_id, state=MOVED))

    def WatchMove(self, request: pb.WatchMoveRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchMoveResponse]:
        self._enter("watch")
        for state in (OPEN, MOVED):
            yield pb.WatchMoveResponse(move=move_pb2.Move(move_id=request.move_id, state=state))


@pytest.fixture
def three() -> Iterator[list[Process]]:
    processes = [Process(), Process(), Process(leads=True)]
    yield processes
    for process in processes:
        if process.stopped is not None:
            process.stopped.set()
        process.server.stop(0)


def target(processes: list[Process]) -> str:
    return ", ".join(process.address for process in processes)


def test_the_leader_is_found_and_remembered(three: list[Process]) -> None:
    with Client(target(three)) as client:
        for _ in range(3):
            assert client.get_move("m").move_id == "m"
    assert [process.asked for process in three] == [["get"], ["get"], ["get"] * 3]


def test_the_leader_is_asked_where_a_standby_says(three: list[Process]) -> None:
    three[0].leader = three[2].address
    with Client(target(three)) as client:
        client.get_move("m")
    assert [process.asked for process in three] == [["get"], [], ["get"]]


def test_an_address_that_was_not_given_is_not_asked(three: list[Process]) -> None:
    three[0].leader = three[2].address
    with Client(target(three[:2])) as client, pytest.raises(Unavailable) as caught:
        client.get_move("m")
    assert caught.value.reason == "NOT_LEADER"
    assert three[2].asked == []


def test_a_process_that_is_gone_is_passed_over(three: list[Process]) -> None:
    three[0].server.stop(0)
    with Client(target(three)) as client:
        assert client.get_move("m").state == MOVED


def test_a_new_leader_is_followed(three: list[Process]) -> None:
    with Client(target(three)) as client:
        client.get_move("m")
        three[2].leads, three[0].leads = False, True
        client.get_move("m")
    assert three[0].asked == ["get", "get"]


def test_with_nobody_leading_each_is_asked_once(three: list[Process]) -> None:
    three[2].leads = False
    with Client(target(three)) as client, pytest.raises(Unavailable) as caught:
        client.get_move("m")
    assert (caught.value.reason, caught.value.retry_after_s) == ("NOT_LEADER", 1.0)
    assert [process.asked for process in three] == [["get"]] * 3


@pytest.mark.parametrize("error", [NotFound("no such move"), Unavailable("no host", reason="NO_READY_HOST")])
def test_what_the_leader_answers_is_the_answer(three: list[Process], error: Exception) -> None:
    three[2].error = error
    with Client(target(three)) as client:
        for _ in range(2):
            with pytest.raises(type(error), match=str(error)):
                client.get_move("m")
    assert three[2].asked == ["get", "get"]


def test_a_call_that_ran_out_of_time_is_not_made_again(three: list[Process]) -> None:
    three[0].stopped = threading.Event()
    with rpc.channel(target(three)) as channel:
        stub = pb_grpc.AdmissionServiceStub(channel)
        with pytest.raises(TimedOut), rpc.calling("admission"):
            stub.GetMove(pb.GetMoveRequest(move_id="m"), timeout=0.3)
        assert [process.asked for process in three] == [["get"], [], []]
        stub.GetMove(pb.GetMoveRequest(move_id="m"), timeout=10)
    assert [process.asked for process in three] == [["get"], ["get"], ["get"]]


def test_a_stream_begins_at_the_leader(three: list[Process]) -> None:
    with Client(target(three)) as client:
        assert [move.state for move in client.watch("m", timeout_s=10)] == [OPEN, MOVED]
    assert [process.asked for process in three] == [["watch"]] * 3


def test_asyncio_finds_the_leader_too(three: list[Process]) -> None:
    async def asked() -> tuple[int, list[int]]:
        async with AsyncClient(target(three)) as client:
            got = (await client.admission.GetMove(pb.GetMoveRequest(move_id="m"), timeout=10)).move.state
            watched = client.admission.WatchMove(pb.WatchMoveRequest(move_id="m"), timeout=10)
            return got, [response.move.state async for response in watched]

    assert asyncio.run(asked()) == (MOVED, [OPEN, MOVED])
    assert [process.asked for process in three] == [["get"], ["get"], ["get", "watch"]]


def test_several_addresses_are_told_from_nonsense() -> None:
    assert are_addresses("a:1")
    assert are_addresses("a:1, b:2,c:3")
    assert not are_addresses("a:1,")
    assert not are_addresses("a:1,b")
    assert not are_addresses(",".join(["a:1"] * 2000))
