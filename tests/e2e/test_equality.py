"""A session moved k times equals, frame for frame and CRC for CRC, the same session never moved."""

from __future__ import annotations

import pytest
from e2e_tools import shown, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldline.client import Client
from worldline.fleet import Fleet
from worldline.v1 import move_pb2


def play_moved_and_unmoved(
    client: Client, engine: str, preset: str, seed: int, moves: int, *, blocks_between: int = 2, transport: str = ""
) -> list[move_pb2.Move]:
    """Play both side by side, moving one to and fro; returns the moves."""
    moved = client.place(engine, preset, seed, host_id="host-a")
    twin = client.place(engine, preset, seed, host_id="host-a")
    done = []
    try:
        with (
            client.play(moved, with_state_crc=True, patience_s=60) as play,
            client.play(twin, with_state_crc=True, patience_s=60) as reference,
        ):
            for number in range(moves):
                for _ in range(blocks_between):
                    assert shown(step(play)) == shown(step(reference))
                destination = "host-a" if play.host_id == "host-b" else "host-b"
                asked = client.request_move(moved.session_id, destination, transport=transport)
                assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, asked.verdict
                # The player goes on while the session moves.
                assert shown(step(play)) == shown(step(reference))
                move = client.wait(asked.move_id, timeout_s=60)
                assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
                assert move.source_receipt.state_crc == move.destination_receipt.state_crc
                assert list(move.source_receipt.chunk_crcs) == list(move.destination_receipt.chunk_crcs)
                block = step(play)
                assert shown(block) == shown(step(reference))
                assert (block.host_id, block.epoch) == (destination, number + 2)
                done.append(move)
            for _ in range(blocks_between):
                assert shown(step(play)) == shown(step(reference))
    finally:
        client.close_session(moved)
        client.close_session(twin)
    return done


def test_tiny_over_tcp(client: Client) -> None:
    moves = play_moved_and_unmoved(client, "window-rewrite", "tiny", seed=3, moves=4)
    assert {move.plan.transport for move in moves} == {"tcp"}


def test_tiny_over_same_host_memory(one_node: Fleet) -> None:
    with Client(one_node.target) as client:
        moves = play_moved_and_unmoved(client, "window-rewrite", "tiny", seed=4, moves=4)
    assert {move.plan.transport for move in moves} == {"local"}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1))
def test_random_trees(client: Client, seed: int) -> None:
    play_moved_and_unmoved(client, "random-tree", "tiny", seed=seed, moves=2, blocks_between=1)


def test_a_wide_random_tree_many_times(client: Client) -> None:
    play_moved_and_unmoved(client, "random-tree", "wide", seed=11, moves=6, blocks_between=1)


@pytest.mark.slow
def test_mg2_once(client: Client) -> None:
    moves = play_moved_and_unmoved(client, "window-rewrite", "mg2", seed=5, moves=1, blocks_between=1)
    assert moves[0].total_bytes >= 1_670_124_960
