from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from worldline import errors, rpc
from worldline.settings import ServiceSettings
from worldline.status import code_of, to_status
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.mover_service_pb2_grpc import (
    MoverServiceServicer,
    MoverServiceStub,
    add_MoverServiceServicer_to_server,
)

EXAMPLES: list[tuple[errors.WorldlineError, grpc.StatusCode]] = [
    (errors.BadRequest("b", violations={"f": "bad"}), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated("u"), grpc.StatusCode.UNAUTHENTICATED),
    (errors.NotAllowed("n"), grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFound("n", resource=("session", "s")), grpc.StatusCode.NOT_FOUND),
    (errors.SessionLost("n", resource=("session", "s")), grpc.StatusCode.NOT_FOUND),
    (errors.Mismatch("m", violations={"a": "1", "b": "2"}), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.StaleFence("s", numbers={"epoch": 3}), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.WrongState("w"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Unmovable("u"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Owned("o", resource=("session", "s")), grpc.StatusCode.ABORTED),
    (errors.Exhausted("e", retry_after_s=1.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.DataLoss("d", reason="CHUNK_MISMATCH", numbers={"chunk": 4}), grpc.StatusCode.DATA_LOSS),
    (errors.TimedOut("t"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled("c"), grpc.StatusCode.CANCELLED),
    (errors.Unavailable("u", retry_after_s=0.25), grpc.StatusCode.UNAVAILABLE),
    (errors.Unsupported("u"), grpc.StatusCode.UNIMPLEMENTED),
    (errors.Internal("i"), grpc.StatusCode.INTERNAL),
]


class Raises(MoverServiceServicer):
    def __init__(self) -> None:
        self.error: Exception = errors.Internal("unset")

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        raise self.error

    def Move(self, request: pb.MoveRequest, context: grpc.ServicerContext) -> Iterator[pb.MoveResponse]:
        yield pb.MoveResponse(stage="wire")
        raise self.error


@pytest.fixture
def served() -> Iterator[tuple[Raises, MoverServiceStub]]:
    servicer = Raises()
    server = rpc.Server(ServiceSettings(rpc_threads=4), ["worldline.v1.MoverService"])
    add_MoverServiceServicer_to_server(servicer, server.grpc)
    with rpc.channel(server.start()) as channel:
        yield servicer, MoverServiceStub(channel)
    server.stop(0)


def test_every_class_has_its_code_and_comes_back_as_itself(served: tuple[Raises, MoverServiceStub]) -> None:
    servicer, stub = served
    for error, code in EXAMPLES:
        servicer.error = error
        assert code_of(error) is code
        with pytest.raises(type(error)) as caught, rpc.calling("peer"):
            stub.GetStatus(pb.GetStatusRequest(), timeout=5)
        back = caught.value
        assert type(back) is type(error)
        assert (back.message, back.reason, back.resource) == (error.message, error.reason, error.resource)
        assert back.retry_after_s == error.retry_after_s
        assert back.numbers == {name: str(value) for name, value in error.numbers.items()}
        if error.violations:
            assert back.violations == error.violations


def test_streams_fail_the_same_way(served: tuple[Raises, MoverServiceStub]) -> None:
    servicer, stub = served
    servicer.error = errors.DataLoss("torn", reason="TORN_SOURCE")
    seen = []
    with pytest.raises(errors.DataLoss, match="torn"), rpc.calling("peer"):
        seen.extend(response.stage for response in stub.Move(pb.MoveRequest(), timeout=5))
    assert seen == ["wire"]


def test_each_detail_is_there_once() -> None:
    for error, _ in EXAMPLES:
        kinds = [detail.type_url for detail in to_status(error).details]
        assert len(kinds) == len(set(kinds))
        assert kinds[0].endswith("ErrorInfo")


def test_a_bug_is_internal_and_keeps_our_insides_to_itself(served: tuple[Raises, MoverServiceStub]) -> None:
    servicer, stub = served
    servicer.error = KeyError("/secret/path")
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetStatus(pb.GetStatusRequest(), timeout=5)
    status = rpc_status.from_call(caught.value)
    assert status is not None
    assert "/secret" not in status.message
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "INTERNAL"


def test_nobody_there_is_unavailable() -> None:
    with rpc.channel("127.0.0.1:1") as channel, pytest.raises(errors.Unavailable), rpc.calling("the mover"):
        MoverServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=5)


def test_calls_from_many_threads(served: tuple[Raises, MoverServiceStub]) -> None:
    servicer, stub = served
    servicer.error = errors.Owned("owned")

    def ask(_: int) -> str:
        try:
            with rpc.calling("peer"):
                stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        except errors.Owned:
            return "owned"
        return "answered"

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(64))) == {"owned"}
