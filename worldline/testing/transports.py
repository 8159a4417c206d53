"""The conformance suite that every transport passes, whatever carries its bytes.

Give each test of a subclass a pair of processes' worth of transport:

    class TestTcp(TransportConformance):
        def open_transport(self) -> Transport: ...

Tests are written against `worldline.transport` alone. They use threads, real memory and real time-outs; nothing is
decided by how long something took, only by what was raised and by what lies in the region.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from worldline.crc import crc32
from worldline.errors import BadRequest, Cancelled, TimedOut, Unauthenticated, Unavailable, WorldlineError
from worldline.move import Fault, FaultKind, new_token
from worldline.plan import Chunk
from worldline.testing.carrying import PATIENT_S, Carried, plan_for, receive_round, send_all, send_chunk
from worldline.testing.faults import Injector
from worldline.transport import Landed, ReceiveLink, SendLink, Terms, Transport

IMPATIENT_S = 0.3


class TransportConformance:
    """Subclass it, name the subclass `Test...`, and say how to open the transport."""

    # Whether moves are those of a plan with a codec.
    coded = False
    # The bound in tests of silence.
    no_progress_s = IMPATIENT_S

    def open_transport(self) -> Transport:
        """A fresh transport for one test."""
        raise NotImplementedError

    # --- fixtures

    @pytest.fixture
    def transport(self) -> Iterator[Transport]:
        opened = self.open_transport()
        yield opened
        opened.close()

    @pytest.fixture
    def pool(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(16) as opened:
            yield opened

    @pytest.fixture
    def carry(self, transport: Transport) -> Iterator[Callable[..., Carried]]:
        """Makes moves that are listened for, and closes them."""
        made: list[Carried] = []

        def make(
            size_bytes: int,
            chunk_bytes: int = 4096,
            *,
            streams: int = 1,
            no_progress_s: float = PATIENT_S,
            tail_bytes: tuple[int, ...] = (),
        ) -> Carried:
            chunks = plan_for(transport.name, chunk_bytes, streams, tail_bytes).chunks(size_bytes)
            terms = Terms(str(uuid.uuid4()), new_token(), streams, no_progress_s, coded=self.coded)
            source = memoryview(os.urandom(size_bytes))
            slot = memoryview(bytearray(size_bytes))
            carried = Carried(transport, chunks, terms, source, slot, transport.listen(slot, chunks, terms))
            made.append(carried)
            return carried

        yield make
        for carried in made:
            carried.close()

    # --- bytes

    @pytest.mark.parametrize(
        ("size_bytes", "chunk_bytes", "tail_bytes"),
        [
            (64, 4096, ()),
            (4096, 4096, ()),
            (4096 * 5 + 64, 4096, ()),
            (1, 4096, ()),
            (4097, 4096, ()),
            (3 << 20, 1 << 20, (1 << 19, 4096, 333, 1)),
            ((1 << 20) + 63, 1 << 20, ()),
        ],
    )
    def test_every_byte_lands_where_it_was(
        self,
        carry: Callable[..., Carried],
        pool: ThreadPoolExecutor,
        size_bytes: int,
        chunk_bytes: int,
        tail_bytes: tuple[int, ...],
    ) -> None:
        """Whole chunks, odd sizes, a tail, one byte."""
        carried = carry(size_bytes, chunk_bytes, tail_bytes=tail_bytes)
        carried.open_streams()
        sending = pool.submit(send_all, carried.senders[0], carried.source, carried.chunks)
        landed = receive_round(carried.receivers[0])
        carried.receivers[0].answer(())
        assert sending.result(PATIENT_S) == []
        assert [item.chunk for item in landed] == list(carried.chunks)
        for item in landed:
            with carried.source[item.chunk.offset : item.chunk.offset + item.chunk.size_bytes] as piece:
                assert item.source_crc == crc32(piece)
        assert carried.differing() == []

    def test_several_streams(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """Each stream carries its share, in any order, into one region."""
        streams = 4
        carried = carry(1 << 20, 1 << 14, streams=streams)
        carried.open_streams()
        sending = [
            pool.submit(send_all, carried.senders[n], carried.source, carried.chunks[n::streams])
            for n in range(streams)
        ]
        receiving = [pool.submit(receive_round, link) for link in carried.receivers]
        landed = [item.chunk.index for future in receiving for item in future.result(PATIENT_S)]
        for link in carried.receivers:
            link.answer(())
        assert [future.result(PATIENT_S) for future in sending] == [[]] * streams
        assert sorted(landed) == [chunk.index for chunk in carried.chunks]
        assert carried.differing() == []

    def test_two_moves_at_once_do_not_mix(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """Two moves through one transport."""
        moves = [carry(1 << 19, 1 << 14, streams=2) for _ in range(2)]
        for carried in moves:
            carried.open_streams()
        sending, receiving = [], []
        for carried in moves:
            for n in range(2):
                sending.append(pool.submit(send_all, carried.senders[n], carried.source, carried.chunks[n::2]))
                receiving.append(pool.submit(receive_round, carried.receivers[n]))
        for future in receiving:
            future.result(PATIENT_S)
        for carried in moves:
            for link in carried.receivers:
                link.answer(())
            assert carried.differing() == []
        assert all(future.result(PATIENT_S) == [] for future in sending)

    # --- rounds

    def test_what_is_wanted_again_is_sent_again(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A flipped chunk is found by its CRC and repaired in a second round."""
        carried = carry(1 << 18, 1 << 14)
        carried.open_streams()
        fired: list[Fault] = []
        link = Injector([Fault(FaultKind.FLIP, chunk=3)], fired.append).wrap(carried.senders[0])
        sending = pool.submit(send_all, link, carried.source, carried.chunks)
        bad = [item.chunk.index for item in receive_round(carried.receivers[0]) if not _intact(carried, item)]
        assert bad == [3]
        assert [fault.chunk for fault in fired] == [3]
        carried.receivers[0].answer(bad)
        assert sending.result(PATIENT_S) == [3]
        again = pool.submit(send_all, link, carried.source, [carried.chunks[3]])
        assert all(_intact(carried, item) for item in receive_round(carried.receivers[0]))
        carried.receivers[0].answer(())
        assert again.result(PATIENT_S) == []
        assert carried.differing() == []

    def test_a_dropped_chunk_is_missed(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A chunk that was never sent does not land, and the stream goes on."""
        carried = carry(1 << 16, 1 << 14)
        carried.open_streams()
        link = Injector([Fault(FaultKind.DROP, chunk=1)]).wrap(carried.senders[0])
        sending = pool.submit(send_all, link, carried.source, carried.chunks)
        assert [item.chunk.index for item in receive_round(carried.receivers[0])] == [0, 2, 3]
        carried.receivers[0].answer([1])
        assert sending.result(PATIENT_S) == [1]

    def test_busy_keeps_a_waiting_sender(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A receiver that is still at work says so more often than the bound, and answers after it."""
        carried = carry(4096, no_progress_s=self.no_progress_s)
        carried.open_streams()
        sending = pool.submit(send_all, carried.senders[0], carried.source, carried.chunks)
        receive_round(carried.receivers[0])
        pause = threading.Event()
        for _ in range(8):
            carried.receivers[0].busy()
            pause.wait(self.no_progress_s / 4)
        carried.receivers[0].answer(())
        assert sending.result(PATIENT_S) == []

    # --- who may come in

    def test_a_wrong_token_is_refused(self, carry: Callable[..., Carried]) -> None:
        """Nothing lands, and the right stream still comes in."""
        carried = carry(4096)
        wrong = Terms(carried.terms.move_id, new_token(), 1, PATIENT_S)
        with pytest.raises(Unauthenticated) as refused:
            carried.transport.connect(carried.source, carried.chunks, wrong, carried.listener.endpoint, 0)
        assert refused.value.reason == "WRONG_TOKEN"
        carried.open_streams()
        assert bytes(carried.slot) == bytes(4096)

    def test_another_moves_token_is_refused(self, carry: Callable[..., Carried]) -> None:
        """A token is good for its own move only."""
        mine, other = carry(4096), carry(4096)
        mixed = Terms(other.terms.move_id, mine.terms.token, 1, PATIENT_S)
        with pytest.raises(Unauthenticated):
            mine.transport.connect(mine.source, mine.chunks, mixed, other.listener.endpoint, 0)

    def test_a_stream_comes_in_once(self, carry: Callable[..., Carried]) -> None:
        """Neither the same stream twice nor one that the plan does not have."""
        carried = carry(4096)
        carried.open_streams()
        for stream in (0, 1):
            with pytest.raises(BadRequest):
                carried.transport.connect(
                    carried.source, carried.chunks, carried.terms, carried.listener.endpoint, stream
                )

    def test_a_closed_listener_lets_nobody_in(self, carry: Callable[..., Carried]) -> None:
        """A move that was given up is not connected to."""
        carried = carry(4096)
        carried.listener.close()
        with pytest.raises(WorldlineError):
            carried.transport.connect(carried.source, carried.chunks, carried.terms, carried.listener.endpoint, 0)

    # --- what does not belong

    def test_a_chunk_that_is_not_the_plans(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A chunk beyond the plan or of another size is refused at one end or the other; nothing is written outside."""
        for chunk in (Chunk(7, 0, 4096), Chunk(0, 0, 8192), Chunk(0, 0, 4095)):
            carried = carry(8192)
            carried.open_streams()
            sending = pool.submit(_send_lying, carried.senders[0], chunk)
            receiving = pool.submit(receive_round, carried.receivers[0])
            assert any(isinstance(error, BadRequest) for error in _failures(carried, sending, receiving))

    def test_pieces_out_of_order(self, carry: Callable[..., Carried]) -> None:
        """A piece that is not the next of its chunk is refused before it is carried."""
        carried = carry(8192, 8192)
        carried.open_streams()
        carried.senders[0].begin(carried.chunks[0])
        with pytest.raises(BadRequest), carried.source[4096:] as piece:
            carried.senders[0].write(piece, 4096)

    # --- ends

    @pytest.mark.parametrize("gone", ["sender", "receiver"])
    def test_a_peer_that_goes(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor, gone: str) -> None:
        """The other end is told at once, not after the no-progress bound."""
        carried = carry(1 << 16, 1 << 14)
        carried.open_streams()
        if gone == "sender":
            send_chunk(carried.senders[0], carried.source, carried.chunks[0])
            receiving = pool.submit(receive_round, carried.receivers[0])
            carried.senders[0].close()
            waiting: Future[object] = receiving  # type: ignore[assignment]
        else:
            waiting = pool.submit(lambda: send_all(carried.senders[0], carried.source, carried.chunks))
            carried.receivers[0].close()
        with pytest.raises(Unavailable) as error:
            waiting.result(PATIENT_S / 2)
        assert error.value.reason == "PEER_GONE"

    def test_truncation(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A chunk that came in part never counts as landed."""
        carried = carry(1 << 16, 1 << 14)
        carried.open_streams()
        link = Injector([Fault(FaultKind.TRUNCATE, chunk=2)]).wrap(carried.senders[0])
        sending = pool.submit(send_all, link, carried.source, carried.chunks)
        landed: list[int] = []
        with pytest.raises(Unavailable):
            _receive_into(landed, carried.receivers[0])
        assert 2 not in landed
        with pytest.raises(Unavailable):
            sending.result(PATIENT_S)

    def test_a_silent_sender(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A sender that stalls with its stream open ends the receiver's wait within the bound."""
        carried = carry(1 << 16, 1 << 14, no_progress_s=self.no_progress_s)
        carried.open_streams()
        link = Injector([Fault(FaultKind.STALL, chunk=1, seconds=60)]).wrap(carried.senders[0])
        sending = pool.submit(send_all, link, carried.source, carried.chunks)
        with pytest.raises(TimedOut) as error:
            receive_round(carried.receivers[0])
        assert error.value.reason == "NO_PROGRESS"
        link.close()
        with pytest.raises(Cancelled):
            sending.result(PATIENT_S)

    def test_a_silent_receiver(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A receiver that does nothing ends the sender's write or its wait for the answer within the bound."""
        carried = carry(1 << 16, 1 << 14, no_progress_s=self.no_progress_s)
        carried.open_streams()
        sending = pool.submit(send_all, carried.senders[0], carried.source, carried.chunks)
        with pytest.raises(TimedOut) as error:
            sending.result(PATIENT_S)
        assert error.value.reason == "NO_PROGRESS"

    def test_nobody_comes(self, carry: Callable[..., Carried]) -> None:
        """`accept` ends within the bound."""
        carried = carry(4096, no_progress_s=self.no_progress_s)
        with pytest.raises(TimedOut):
            carried.listener.accept()

    @pytest.mark.parametrize("blocked", ["accept", "next", "finish"])
    def test_close_wakes_what_blocks(
        self, carry: Callable[..., Carried], pool: ThreadPoolExecutor, blocked: str
    ) -> None:
        """From another thread, any number of times."""
        carried = carry(4096)
        if blocked == "accept":
            waiting: Future[object] = pool.submit(carried.listener.accept)
            close = carried.listener.close
        elif blocked == "next":
            carried.open_streams()
            waiting = pool.submit(carried.receivers[0].next)
            close = carried.receivers[0].close
        else:
            carried.open_streams()
            waiting = pool.submit(carried.senders[0].finish)
            close = carried.senders[0].close
        threading.Event().wait(0.05)  # most runs find it blocked; the others find it closed, with the same outcome
        close()
        close()
        with pytest.raises(Cancelled):
            waiting.result(PATIENT_S / 2)

    def test_a_closed_link_stays_closed(self, carry: Callable[..., Carried]) -> None:
        """Every call on it says so."""
        carried = carry(4096)
        carried.open_streams()
        carried.senders[0].close()
        with pytest.raises(WorldlineError):
            send_chunk(carried.senders[0], carried.source, carried.chunks[0])
        carried.receivers[0].close()
        with pytest.raises(WorldlineError):
            carried.receivers[0].next()


def _intact(carried: Carried, item: Landed) -> bool:
    with carried.slot[item.chunk.offset : item.chunk.offset + item.chunk.size_bytes] as landed:
        return crc32(landed) == item.source_crc


def _send_lying(link: SendLink, chunk: Chunk) -> None:
    link.begin(chunk)
    link.write(memoryview(bytes(chunk.size_bytes)), chunk.offset)
    link.end(0)
    link.finish()


def _receive_into(landed: list[int], link: ReceiveLink) -> None:
    while (item := link.next()) is not None:
        landed.append(item.chunk.index)


def _failures(carried: Carried, sending: Future[None], receiving: Future[list[Landed]]) -> list[BaseException]:
    """What both ends raise; the first that is over ends the other."""
    over = threading.Event()
    sending.add_done_callback(lambda _: over.set())
    receiving.add_done_callback(lambda _: over.set())
    over.wait(PATIENT_S)
    carried.close()
    return [error for error in (sending.exception(PATIENT_S), receiving.exception(PATIENT_S)) if error is not None]
