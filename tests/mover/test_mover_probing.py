"""Probes between two movers: what they measure, what they refuse, and that nothing of them stays."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import grpc
import pytest
from mover_fakes import Pair, plan, until

from mover.probing import MAX_PROBE_BYTES
from worldline import rpc, wire
from worldline.plan import Placement
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

pytestmark = pytest.mark.usefixtures("no_leaks")
SIZE_BYTES = 3 << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    running = Pair(tmp_path_factory.mktemp("pair"), max_receives=1)
    yield running
    assert running.close() == [0, 0]


def probe(pair: Pair, **fields: object) -> pb.ProbeResponse:
    """Ask a to probe its path to b."""
    asked = {
        "probe_id": str(uuid.uuid4()),
        "destination_mover_address": pair.b.address,
        "plan": wire.plan_to(plan()),
        "size_bytes": SIZE_BYTES,
    }
    with rpc.channel(pair.a.address) as channel:
        return MoverServiceStub(channel).Probe(pb.ProbeRequest(**{**asked, **fields}), timeout=20)  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", [Placement.PIPELINED, Placement.SEQUENTIAL])
def test_a_probe_measures_a_path(pair: Pair, placement: Placement) -> None:
    answer = probe(pair, plan=wire.plan_to(plan(placement=placement)))
    assert answer.wire_s > 0
    assert answer.verify_s >= 0
    until("nothing is left of it", lambda: pair.a.idle() and pair.b.idle())


def test_a_probe_within_one_node(pair: Pair) -> None:
    answer = probe(pair, plan=wire.plan_to(plan(transport="local")), destination_mover_address=pair.a.address)
    assert answer.wire_s > 0
    until("nothing is left of it", pair.a.idle)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"size_bytes": 0}, "size_bytes"),
        ({"size_bytes": MAX_PROBE_BYTES + 1}, "size_bytes"),
        ({"probe_id": "no"}, "probe_id"),
        ({"destination_mover_address": "no"}, "destination_mover_address"),
        ({"plan": wire.plan_to(plan(placement=Placement.DEVICE, transport="local"))}, "carry raw"),
        ({"plan": wire.plan_to(plan(transport="pigeon"))}, "pigeon"),
    ],
)
def test_what_is_no_probe_is_refused(pair: Pair, fields: dict[str, object], told: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        probe(pair, **fields)
    assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
    assert told in str(refused.value.details())


def test_a_probe_takes_a_place_and_gives_it_back(pair: Pair) -> None:
    with rpc.channel(pair.b.address) as channel:
        asked = pb.ReceiveProbeRequest(
            probe_id=str(uuid.uuid4()), plan=wire.plan_to(plan()), size_bytes=SIZE_BYTES, token=bytes(32)
        )
        waiting = MoverServiceStub(channel).ReceiveProbe(asked, timeout=20)
        assert next(iter(waiting)).endpoint
        with pytest.raises(grpc.RpcError, match="moves come in here"):
            probe(pair)
        # Its caller leaves before a byte came: its memory and its place are given back.
        waiting.cancel()
        until("nothing is left of it", pair.b.idle)
    assert probe(pair).wire_s > 0


def test_a_destination_that_is_not_there(pair: Pair) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        probe(pair, destination_mover_address="127.0.0.1:1")
    assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    until("nothing is left of it", pair.a.idle)


def test_a_token_of_another_length(pair: Pair) -> None:
    asked = pb.ReceiveProbeRequest(
        probe_id=str(uuid.uuid4()), plan=wire.plan_to(plan()), size_bytes=SIZE_BYTES, token=b"short"
    )
    with rpc.channel(pair.b.address) as channel:
        answers = iter(MoverServiceStub(channel).ReceiveProbe(asked, timeout=20))
        with pytest.raises(grpc.RpcError, match="token"):
            next(answers)
