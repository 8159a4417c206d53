"""Coded moves over verbs: pieces land in their places and are decoded from there; exact, or failed by name."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from rdma_tools import PATIENT_S, chunks_of, open_rdma, two_hosts

from mover.job import Job
from mover.messages import Outcome, WireFault
from mover.transports.rdma.staging import PLACES
from mover.verification import PLACEMENTS
from worldline.codec.runs import Run
from worldline.errors import BadRequest, DataLoss, WorldlineError
from worldline.move import new_token
from worldline.plan import Chunk, Placement, Plan
from worldline.testing.coded import Keeper
from worldline.transport import Piece, Terms

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]

SIZE_BYTES = (6 << 20) + 333


def content() -> bytes:
    """A third each of bf16 numbers, zeros and noise, many more pieces than there are places."""
    third = SIZE_BYTES // 3
    rng = np.random.default_rng(1)
    numbers = (rng.standard_normal(third // 2 + 1, dtype=np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return (numbers[:third] + bytes(third) + rng.bytes(third)).ljust(SIZE_BYTES, b"\x07")


def run(
    devices: tuple[str, str], placement: Placement, faults: list[WireFault], **settings: object
) -> tuple[Outcome | WorldlineError, Outcome | WorldlineError, bool]:
    """A coded move between two hosts: what both halves say, and whether the slot is the source."""
    plan = Plan("rdma", 128 << 10, 2, placement, 60, 60, PATIENT_S, codec="zstd")
    terms = Terms(str(uuid.uuid4()), new_token(), plan.streams, plan.no_progress_s)
    data = content()
    source, slot = os.memfd_create("worldline-source"), os.memfd_create("worldline-slot")
    os.pwrite(source, data, 0)
    os.ftruncate(slot, SIZE_BYTES)

    def result(future: Future[Outcome], job: Job) -> Outcome | WorldlineError:
        try:
            return future.result(2 * PATIENT_S)
        except WorldlineError as error:
            job.cancel()
            return error

    with two_hosts(devices, **settings) as (sender_home, receiver_home), ThreadPoolExecutor(2) as pool:
        sender, receiver = Job({"rdma": sender_home}, 1, 1), Job({"rdma": receiver_home}, 1, 1)
        try:
            sender.map(os.dup(source), SIZE_BYTES, writable=False)
            receiver.map(os.dup(slot), SIZE_BYTES, writable=True)
            endpoint = receiver.listen(plan, terms)
            sender.connect(plan, terms, endpoint, faults, lambda kind, chunk: None, [Run(SIZE_BYTES, 2)])
            receiving = pool.submit(receiver.run, 2 * PATIENT_S, lambda progress: None)
            sending = pool.submit(sender.run, 2 * PATIENT_S, lambda progress: None)
            received, sent = result(receiving, receiver), result(sending, sender)
        finally:
            sender.close()
            receiver.close()
    same = os.pread(slot, SIZE_BYTES, 0) == data
    os.close(source)
    os.close(slot)
    return sent, received, same


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("access", ["window", "registration"])
def test_a_coded_move_is_exact(devices: tuple[str, str], placement: Placement, access: str) -> None:
    """With a flip in the coded stream, which is sent again raw."""
    sent, received, same = run(devices, placement, [WireFault("FLIP", 2, 1, 0.0)], access=access)
    assert isinstance(sent, Outcome), sent
    assert isinstance(received, Outcome), received
    assert same
    assert sent.crcs == received.crcs
    assert received.retried_chunks == 1
    assert sent.coding is not None
    assert sent.coding.coded_pieces + sent.coding.zero_pieces > PLACES
    assert sent.coding.wire_bytes < SIZE_BYTES


def test_a_flip_that_comes_back_is_named(devices: tuple[str, str]) -> None:
    _, received, _ = run(devices, Placement.PIPELINED, [WireFault("FLIP", 2, 0, 0.0)])
    assert isinstance(received, DataLoss)
    assert received.numbers["chunk"] == 2


def test_a_peer_that_lies_in_a_place_is_refused(devices: tuple[str, str]) -> None:
    """A piece that is not in its chunk, and one of a chunk that there is not, each written by a sender of its own."""
    for chunk, piece in ((1, Piece(0, 4096, (9,))), (77, Piece(0, 4096, (9,)))):
        with two_hosts(devices) as (sender_home, receiver_home):
            source, slot = memoryview(os.urandom(8192)), memoryview(bytearray(8192))
            chunks = chunks_of(8192, 4096)
            terms = Terms(str(uuid.uuid4()), new_token(), 1, PATIENT_S, coded=True)
            listener = receiver_home.listen(slot, chunks, terms)
            sender = sender_home.connect(source, chunks, terms, listener.endpoint, 0)
            receiver = listener.accept()
            receiver.decode_with(Keeper())
            lie = Chunk(chunk, 0, 4096)
            sender._stage(lie, piece, [memoryview(b"123456789")])
            with pytest.raises(BadRequest) as refused:
                receiver.next()
            assert refused.value.reason == "BAD_PIECE"
            sender.close()
            receiver.close()
            listener.close()
            assert bytes(slot) == bytes(8192)


def test_both_ends_must_mean_a_coded_move(devices: tuple[str, str]) -> None:
    home = open_rdma(devices[0])
    source, slot, chunks = memoryview(os.urandom(4096)), memoryview(bytearray(4096)), chunks_of(4096, 4096)
    terms = Terms(str(uuid.uuid4()), new_token(), 1, PATIENT_S)
    listener = home.listen(slot, chunks, terms)
    with pytest.raises(BadRequest, match="places for coded pieces"):
        home.connect(source, chunks, Terms(terms.move_id, terms.token, 1, PATIENT_S, coded=True), listener.endpoint, 0)
    listener.close()
    home.close()
