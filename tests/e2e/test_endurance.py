"""Many moves in a row, and large ones beside small sessions: nothing grows, nobody waits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from e2e_tools import action, all_free, shown, step, until

from worldline.client import AsyncClient, Client
from worldline.fleet import Fleet
from worldline.v1 import move_pb2

MEMBERS = ("admission", "mover-a", "mover-b", "host-a", "host-b")


def usage(fleet: Fleet) -> dict[str, tuple[int, int, int]]:
    """Descriptors, threads and mappings of slots of each process."""
    found = {}
    for name in MEMBERS:
        process = Path(f"/proc/{fleet.members[name].pid}")
        slots = sum("worldline-slot" in line for line in (process / "maps").read_text().splitlines())
        found[name] = (len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())), slots)
    return found


@pytest.mark.slow
def test_many_moves_in_a_row_leave_nothing_behind(fleet: Fleet, client: Client) -> None:
    session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
    with client.play(session) as play:

        def to_and_fro(times: int) -> None:
            for _ in range(times):
                for destination in ("host-b", "host-a"):
                    move = client.move(session.session_id, destination, timeout_s=60)
                    assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
                step(play)

        to_and_fro(20)  # pools and caches fill
        before = usage(fleet)
        to_and_fro(60)
        after = usage(fleet)
    for name in MEMBERS:
        (descriptors, threads, slots), (descriptors_now, threads_now, slots_now) = before[name], after[name]
        # A few for calls that happen to be in flight; a leak would be one a move.
        assert descriptors_now - descriptors < 20, name
        assert threads_now - threads < 20, name
        assert slots_now <= slots, name
    client.close_session(session)
    until("every slot is free again", lambda: all_free(client))


@pytest.mark.slow
def test_others_keep_their_pace_while_a_large_session_moves(fleet: Fleet, client: Client) -> None:
    large = client.place("window-rewrite", "mg2", 2, host_id="host-a")
    small = [client.place("window-rewrite", "tiny", 3, host_id=host) for host in ("host-a", "host-b")]
    moving = threading.Event()
    played = {session.session_id: 0 for session in small}
    unready: list[str] = []
    failed: list[BaseException] = []

    def keep_playing(index: int) -> None:
        try:
            with client.play(small[index]) as play:
                while not moving.is_set():
                    step(play)
                    played[small[index].session_id] += 1
        except BaseException as error:
            failed.append(error)

    players = [threading.Thread(target=keep_playing, args=(index,)) for index in range(len(small))]
    for player in players:
        player.start()
    until("both small sessions play", lambda: all(played.values()))
    asked = client.request_move(large.session_id, "host-b")
    at_freeze: dict[str, int] | None = None
    at_end: dict[str, int] | None = None
    for move in client.watch(asked.move_id, timeout_s=120):
        unready += [host.registration.host_id for host in client.hosts() if not host.ready]
        if move.stage == "wire" and at_freeze is None:
            at_freeze = dict(played)
        if move.state == move_pb2.MOVE_STATE_DONE:
            at_end = dict(played)
    moving.set()
    for player in players:
        player.join()
    assert failed == []
    assert client.get_move(asked.move_id).state == move_pb2.MOVE_STATE_MOVED
    # 1.67 GB were read, sent, checked and installed; heartbeats came in time and both others went on.
    assert unready == []
    assert at_freeze is not None
    assert at_end is not None
    assert all(at_end[session.session_id] > at_freeze[session.session_id] for session in small)
    for session in (large, *small):
        client.close_session(session)


def test_asyncio_plays_and_moves_alike(fleet: Fleet, client: Client) -> None:
    twin = client.place("window-rewrite", "tiny", 8, host_id="host-a")

    async def main() -> list[tuple[int, bytes, int | None]]:
        blocks = []
        async with AsyncClient(fleet.target) as loop_client:
            session = await loop_client.place("window-rewrite", "tiny", 8, host_id="host-a")
            async with await loop_client.play(session, with_state_crc=True) as play:
                for number in range(6):
                    if number == 2:
                        asked = await loop_client.request_move(session.session_id, "host-b")
                    blocks.append(shown(await play.step(action(play.next_block, play.action_bytes))))
                closed = await loop_client.wait(asked.move_id)
                assert closed.state == move_pb2.MOVE_STATE_MOVED
                blocks.append(shown(await play.step(action(play.next_block, play.action_bytes))))
                assert (play.host_id, play.epoch, play.moves) == ("host-b", 2, 1)
        client.close_session(session)
        return blocks

    with client.play(twin, with_state_crc=True) as reference:
        expected = [shown(step(reference)) for _ in range(7)]
    client.close_session(twin)
    assert asyncio.run(main()) == expected
