"""A session moved through the three services by every transport, placement and codec that a caller can ask for.

It plays on, block for block and CRC for CRC, like its twin that is never moved; a bit that is flipped on the way is
repaired once, and never installed when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mover.verification import PLACEMENTS
from worldline.client import Client
from worldline.errors import BadRequest
from worldline.fleet import ONE_NODE, TWO_NODES, Fleet
from worldline.move import Fault, FaultKind
from worldline.plan import CODECS, Placement
from worldline.playing import Block
from worldline.v1 import move_pb2

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

ENGINE, PRESET = "window-rewrite", "tiny"
HOSTS = ("host-a", "host-b")
PLANS = [("tcp", placement, codec) for placement in PLACEMENTS for codec in CODECS]
PLANS += [("local", placement, "raw") for placement in PLACEMENTS]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Admission's address of a fleet of two nodes for tcp, and of one node for local."""
    two: Path = tmp_path_factory.mktemp("two")
    one: Path = tmp_path_factory.mktemp("one")
    with (
        Fleet(two, TWO_NODES, fault_injection=True) as apart,
        Fleet(one, ONE_NODE, fault_injection=True) as together,
    ):
        yield {"tcp": apart.target, "local": together.target}


Step = Callable[[], Block]


@contextmanager
def twins(client: Client) -> Iterator[tuple[str, Step]]:
    """A session that may be moved, and a step that plays its next block beside that of its twin."""
    moved, twin = (client.place(ENGINE, PRESET, 7, host_id=HOSTS[0]) for _ in range(2))
    with (
        client.play(moved, with_state_crc=True, patience_s=60) as play,
        client.play(twin, with_state_crc=True, patience_s=60) as reference,
    ):

        def step() -> Block:
            block, other = (each.step(bytes(each.action_bytes)) for each in (play, reference))
            assert (block.index, block.readout, block.state_crc) == (other.index, other.readout, other.state_crc)
            return block

        yield moved.session_id, step
    client.close_session(moved)
    client.close_session(twin)


@pytest.mark.parametrize(("transport", "placement", "codec"), PLANS)
def test_it_plays_on_like_its_twin(targets: dict[str, str], transport: str, placement: Placement, codec: str) -> None:
    with Client(targets[transport]) as client, twins(client) as (session_id, step):
        step()
        for number, faults in enumerate(([], [Fault(FaultKind.FLIP, chunk=0), Fault(FaultKind.DROP, chunk=1)])):
            asked = client.request_move(
                session_id,
                HOSTS[1 - number],
                transport=transport,
                codec=codec,
                placement=placement,
                faults=faults,
            )
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message, move.verdict)
            plan = move.plan
            assert (plan.transport, plan.placement, plan.codec) == (transport, int(placement), codec)
            assert move.retried_chunks == len(faults)
            assert step().host_id == HOSTS[1 - number]


@pytest.mark.parametrize(("transport", "placement", "codec"), PLANS)
def test_a_flip_that_comes_back_is_never_installed(
    targets: dict[str, str], transport: str, placement: Placement, codec: str
) -> None:
    with Client(targets[transport]) as client, twins(client) as (session_id, step):
        step()
        asked = client.request_move(
            session_id,
            HOSTS[1],
            transport=transport,
            codec=codec,
            placement=placement,
            faults=[Fault(FaultKind.FLIP, chunk=0, times=0)],
        )
        move = client.wait(asked.move_id, timeout_s=60)
        assert (move.state, move.reason) == (move_pb2.MOVE_STATE_ABORTED, "CHUNK_MISMATCH")
        assert step().host_id == HOSTS[0]


def test_what_cannot_be_is_refused_by_name(targets: dict[str, str]) -> None:
    with Client(targets["local"]) as client:
        session = client.place(ENGINE, PRESET, 1, host_id=HOSTS[0])
        with pytest.raises(BadRequest, match="lz4"):
            client.request_move(session.session_id, HOSTS[1], codec="lz4")
        with pytest.raises(BadRequest, match="at work on devices"):
            client.request_move(session.session_id, HOSTS[1], codec="ans", placement=Placement.PIPELINED)
        asked = client.request_move(session.session_id, HOSTS[1], codec="ans")
        assert asked.state == move_pb2.MOVE_STATE_REFUSED
        assert "is not on the devices of both hosts" in str(asked.verdict)
        client.close_session(session)
