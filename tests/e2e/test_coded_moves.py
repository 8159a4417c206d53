"""Coded moves through three services: exact over every transport, and little memory beside the two regions."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e_tools import Reference, shown, step, until
from process_memory import watched

from worldline import rpc
from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.move import Fault, FaultKind
from worldline.plan import CODECS
from worldline.playing import Session
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.move_pb2 import MOVE_STATE_MOVED
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

pytestmark = pytest.mark.slow
BOUND_BYTES = 64 << 20


@pytest.mark.parametrize("name", ["fleet", "one_node"])
def test_a_coded_session_plays_on_frame_for_frame(request: pytest.FixtureRequest, name: str) -> None:
    """There and back, over tcp and over same-host memory, with a chunk flipped on the way back."""
    fleet: Fleet = request.getfixturevalue(name)
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            for number, destination in enumerate(("host-b", "host-a")):
                assert shown(step(play)) == reference[2 * number]
                faults = [Fault(FaultKind.FLIP, chunk=0)] if number else []
                asked = client.request_move(session.session_id, destination, codec="zstd", faults=faults)
                move = client.wait(asked.move_id, timeout_s=60)
                assert move.state == MOVE_STATE_MOVED, (move.reason, move.message)
                assert (move.plan.codec, move.retried_chunks) == ("zstd", number)
                assert shown(step(play)) == reference[2 * number + 1]
        client.close_session(session)
        reference.close()


def samples(client: Client, session: Session) -> list[host_pb.Compressibility]:
    """What its host told of a session's sample; none before it has taken one."""
    return [
        info.compressibility
        for host in client.hosts()
        for info in host.status.sessions
        if info.descriptor.session_id == session.session_id and info.HasField("compressibility")
    ]


def test_admission_is_told_what_a_codec_would_leave(client: Client) -> None:
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, patience_s=60) as play:
        step(play)
        until("its host has sampled it", lambda: bool(samples(client, session)))
    (found,) = samples(client, session)
    assert 0 < found.ratio < 1
    verdict = client.request_move(session.session_id, "host-b", codec="zstd").verdict
    (clause,) = [clause for clause in verdict.clauses if clause.name == "codec"]
    assert 0 < clause.numbers["ratio"] < 1
    until("it has moved", lambda: client.locate(session.session_id).host_id == "host-b")
    client.close_session(session)


def test_admission_codes_unasked_where_raw_would_be_late(tmp_path: Path) -> None:
    """Movers that send 8 MB/s: raw takes 8 s of 10, too near once that is measured; coded is well within."""
    options = {"mover": {"pace_Bps": 8_000_000}}
    with Fleet(tmp_path / "fleet", TWO_NODES, options=options) as paced, Client(paced.target) as client:
        session = client.place("window-rewrite", "small", 1, host_id="host-a")
        moves = []
        with client.play(session, patience_s=60) as play:
            for destination in ("host-b", "host-a", "host-b"):
                step(play)
                until("its host has sampled it", lambda: bool(samples(client, session)))
                moves.append(client.move(session.session_id, destination, timeout_s=60))
        assert [move.state for move in moves] == [MOVE_STATE_MOVED] * 3, moves[-1].message
        assert [move.plan.codec for move in moves] == ["raw", "raw", "zstd"]
        (clause,) = [clause for clause in moves[-1].verdict.clauses if clause.name == "codec"]
        assert 0 < clause.numbers["ratio"] < 1
        client.close_session(session)


def data_plane(fleet: Fleet, mover: str) -> int:
    """The process id of a mover's data plane."""
    with rpc.channel(fleet.members[mover].address) as channel:
        return MoverServiceStub(channel).GetStatus(mover_pb.GetStatusRequest(), timeout=10).data_plane_pid


def test_mg2_needs_little_memory_beside_its_two_regions(own_fleet: Fleet) -> None:
    """In mover, data plane and engine host at both ends, raw and coded."""
    with Client(own_fleet.target) as client:
        # What a preset needs besides its sessions is there before the session comes.
        for host in ("host-b", "host-a"):
            session = client.place("window-rewrite", "mg2", 1, host_id=host)
            with client.play(session, patience_s=60) as play:
                step(play)
            if host == "host-b":
                client.close_session(session)
        members = ["host-a", "host-b", "mover-a", "mover-b"]
        pids = {name: own_fleet.members[name].pid for name in members}
        pids |= {f"data plane of {name}": data_plane(own_fleet, name) for name in members[2:]}
        destinations = ["host-b", "host-a"]
        for codec, destination in zip(CODECS, destinations, strict=True):
            with watched(list(pids.values())) as most:
                asked = client.request_move(session.session_id, destination, codec=codec)
                move = client.wait(asked.move_id, timeout_s=100)
            assert (move.state, move.plan.codec) == (MOVE_STATE_MOVED, codec), (move.reason, move.message)
            assert {name: most[pid] for name, pid in pids.items() if most[pid] > BOUND_BYTES} == {}
