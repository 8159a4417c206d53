"""What a transport that carries coded chunks passes beside `worldline.testing.transports`: pieces, and lies about them.

    class TestTcpCoded(CodedConformance):
        def open_transport(self) -> Transport: ...

It knows no codec: payloads here are any bytes, and a decoder keeps what it was handed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from worldline.crc import crc32
from worldline.errors import BadRequest, TimedOut, Unavailable, WorldlineError
from worldline.move import Fault, FaultKind
from worldline.plan import Chunk
from worldline.testing.carrying import PATIENT_S, Carried, receive_round
from worldline.testing.faults import Injector
from worldline.testing.transports import TransportConformance
from worldline.transport import CodedReceiveLink, CodedSendLink, Piece, ReceiveLink, SendLink


class Keeper:
    """A `worldline.transport.Decoder` that keeps every piece and its payload."""

    def __init__(self) -> None:
        self.kept: list[tuple[Chunk, Piece, bytes]] = []
        self._lock = threading.Lock()

    def buffer(self, size_bytes: int) -> memoryview:
        """See `worldline.transport.Decoder`."""
        return memoryview(bytearray(size_bytes))

    def decode(self, chunk: Chunk, piece: Piece, payload: memoryview) -> None:
        """See `worldline.transport.Decoder`."""
        with self._lock:
            self.kept.append((chunk, piece, bytes(payload)))


def coded(link: SendLink) -> CodedSendLink:
    """The link as one that carries coded chunks."""
    assert isinstance(link, CodedSendLink)
    return link


def told(link: ReceiveLink) -> Keeper:
    """A decoder that the link was told of."""
    assert isinstance(link, CodedReceiveLink)
    keeper = Keeper()
    link.decode_with(keeper)
    return keeper


def send_pieces(link: CodedSendLink, carried: Carried, chunk: Chunk, pieces: Sequence[Piece]) -> list[bytes]:
    """One coded chunk; raw pieces are the region's bytes, the others random ones. Returns the payloads."""
    link.begin_coded(chunk)
    payloads = []
    for piece in pieces:
        if piece.planes:
            payload = os.urandom(piece.wire_bytes)
        else:
            payload = bytes(carried.source[piece.offset : piece.offset + piece.size_bytes])
        link.write_piece(piece, [memoryview(payload[:3]), memoryview(payload[3:])])
        payloads.append(payload)
    link.end(crc32(carried.source[chunk.offset : chunk.offset + chunk.size_bytes]))
    return payloads


class CodedConformance(TransportConformance):
    """Subclass it instead of `TransportConformance`, whose tests it holds as well."""

    coded = True

    def test_pieces_arrive_as_they_were_said(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """Raw pieces lie in the region, coded ones and zeros come to the decoder; raw chunks may come between."""
        carried = carry(1 << 16, 1 << 15)
        carried.open_streams()
        first, second = carried.chunks
        pieces = [
            Piece(0, 4096),
            Piece(4096, 8192, (100, 4096)),
            Piece(12288, 4, (0,)),
            Piece(12292, 4, (1, 0, 1, 1)),
            Piece(12296, (1 << 15) - 12296 - 1),
            Piece((1 << 15) - 1, 1, (1,)),
        ]
        link, keeper = coded(carried.senders[0]), told(carried.receivers[0])

        def send() -> tuple[list[bytes], Sequence[int]]:
            payloads = send_pieces(link, carried, first, pieces)
            link.begin(second)
            with carried.source[second.offset :] as rest:
                link.write(rest, second.offset)
                link.end(crc32(rest))
            return payloads, link.finish()

        sending = pool.submit(send)
        landed = receive_round(carried.receivers[0])
        carried.receivers[0].answer(())
        payloads, wanted = sending.result(PATIENT_S)
        assert not wanted
        assert [item.chunk for item in landed] == [first, second]
        assert landed[0].source_crc == crc32(carried.source[: 1 << 15])
        told_of = [(first, piece, payload) for piece, payload in zip(pieces, payloads, strict=True) if piece.planes]
        assert keeper.kept == told_of
        for piece in pieces:
            if not piece.planes:
                end = piece.offset + piece.size_bytes
                assert carried.slot[piece.offset : end] == carried.source[piece.offset : end]
        assert carried.slot[second.offset :] == carried.source[second.offset :]

    def test_a_coded_chunk_without_a_decoder_is_refused(
        self, carry: Callable[..., Carried], pool: ThreadPoolExecutor
    ) -> None:
        """A move whose plan is raw takes no coded chunk."""
        carried = carry(8192, 8192)
        carried.open_streams()
        link = coded(carried.senders[0])
        sending = pool.submit(send_pieces, link, carried, carried.chunks[0], [Piece(0, 8192, (9,))])
        with pytest.raises(BadRequest) as error:
            receive_round(carried.receivers[0])
        assert error.value.reason == "BAD_CHUNK"
        carried.close()
        sending.exception(PATIENT_S)

    @pytest.mark.parametrize(
        "pieces",
        [
            [Piece(4096, 4096)],  # not the next
            [Piece(0, 4096), Piece(0, 4096)],  # twice
            [Piece(0, 4096), Piece(4096, 8192)],  # beyond the chunk
            [Piece(0, 12288, (4,))],  # longer than the chunk
        ],
    )
    def test_a_piece_that_is_not_next_is_refused(self, carry: Callable[..., Carried], pieces: list[Piece]) -> None:
        """Before it is carried."""
        carried = carry(16384, 8192)
        carried.open_streams()
        with pytest.raises(BadRequest):
            send_pieces(coded(carried.senders[0]), carried, carried.chunks[0], pieces)

    def test_a_payload_that_is_not_its_pieces_is_refused(self, carry: Callable[..., Carried]) -> None:
        """Nor are raw bytes carried in a coded chunk, or pieces in a raw one."""
        carried = carry(8192, 8192)
        carried.open_streams()
        link = coded(carried.senders[0])
        link.begin_coded(carried.chunks[0])
        with pytest.raises(BadRequest):
            link.write_piece(Piece(0, 8192, (9,)), [memoryview(bytes(8))])
        with pytest.raises(BadRequest), carried.source[:4096] as piece:
            link.write(piece, 0)

    def test_pieces_in_a_raw_chunk_are_refused(self, carry: Callable[..., Carried]) -> None:
        """A chunk is one or the other."""
        carried = carry(8192, 8192)
        carried.open_streams()
        link = coded(carried.senders[0])
        link.begin(carried.chunks[0])
        with pytest.raises(BadRequest):
            link.write_piece(Piece(0, 8192, (2,)), [memoryview(b"ab")])

    def test_a_chunk_that_lacks_pieces_does_not_end(self, carry: Callable[..., Carried]) -> None:
        """Its checksum is not sent."""
        carried = carry(8192, 8192)
        carried.open_streams()
        with pytest.raises(BadRequest):
            send_pieces(coded(carried.senders[0]), carried, carried.chunks[0], [Piece(0, 4096, (7,))])

    def test_faults_of_coded_chunks(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """A dropped chunk does not come; of a flipped one the last part that has bytes differs, zeros included."""
        carried = carry(4 * 4096, 4096)
        carried.open_streams()
        faults = [Fault(FaultKind.DROP, chunk=0), Fault(FaultKind.FLIP, chunk=1), Fault(FaultKind.FLIP, chunk=2)]
        link, keeper = coded(Injector(faults).wrap(carried.senders[0])), told(carried.receivers[0])

        def send() -> list[bytes]:
            planes: list[tuple[int, ...]] = [(7,), (7,), (0,), (7,)]
            payloads = [
                send_pieces(link, carried, chunk, [Piece(chunk.offset, 4096, each)])[0]
                for chunk, each in zip(carried.chunks, planes, strict=True)
            ]
            link.finish()
            return payloads

        sending = pool.submit(send)
        landed = receive_round(carried.receivers[0])
        carried.receivers[0].answer(())
        payloads = sending.result(PATIENT_S)
        assert [item.chunk.index for item in landed] == [1, 2, 3]
        assert [payload == payloads[chunk.index] for chunk, _, payload in keeper.kept] == [False, True]
        with carried.slot[2 * 4096 : 3 * 4096] as zeros:
            assert sum(zeros) == 0x10

    def test_a_truncated_coded_chunk(self, carry: Callable[..., Carried], pool: ThreadPoolExecutor) -> None:
        """It never counts as landed."""
        carried = carry(2 * 4096, 4096)
        carried.open_streams()
        link = coded(Injector([Fault(FaultKind.TRUNCATE, chunk=0)]).wrap(carried.senders[0]))
        told(carried.receivers[0])
        sending = pool.submit(send_pieces, link, carried, carried.chunks[0], [Piece(0, 4096, (70,))])
        with pytest.raises(Unavailable):
            receive_round(carried.receivers[0])
        with pytest.raises(WorldlineError):
            sending.result(PATIENT_S)

    def test_a_silent_receiver_ends_a_coded_sender(
        self, carry: Callable[..., Carried], pool: ThreadPoolExecutor
    ) -> None:
        """Also where coded pieces wait to be taken in: within the bound."""
        carried = carry(1 << 18, 1 << 16, no_progress_s=self.no_progress_s)
        carried.open_streams()
        told(carried.receivers[0])
        sending = pool.submit(_send_coded, coded(carried.senders[0]), carried)
        with pytest.raises(TimedOut) as error:
            sending.result(PATIENT_S)
        assert error.value.reason == "NO_PROGRESS"

    @pytest.mark.parametrize("gone", ["sender", "receiver"])
    def test_a_peer_that_goes_between_coded_pieces(
        self, carry: Callable[..., Carried], pool: ThreadPoolExecutor, gone: str
    ) -> None:
        """The other end is told at once."""
        carried = carry(1 << 18, 1 << 16)
        carried.open_streams()
        link, receiver = coded(carried.senders[0]), carried.receivers[0]
        told(receiver)
        if gone == "sender":
            first = carried.chunks[0]
            link.begin_coded(first)
            link.write_piece(Piece(first.offset, 4096, (9,)), [memoryview(bytes(9))])
            receiving = pool.submit(receive_round, receiver)
            link.close()
            with pytest.raises(Unavailable) as error:
                receiving.result(PATIENT_S / 2)
        else:
            sending = pool.submit(_send_coded, link, carried)
            receiver.close()
            with pytest.raises(Unavailable) as error:
                sending.result(PATIENT_S / 2)
        assert error.value.reason == "PEER_GONE"


def _send_coded(link: CodedSendLink, carried: Carried) -> Sequence[int]:
    """Every chunk in coded pieces of 4096 bytes, and the end of the round."""
    for chunk in carried.chunks:
        offsets = range(chunk.offset, chunk.offset + chunk.size_bytes, 4096)
        send_pieces(link, carried, chunk, [Piece(offset, 4096, (2000, 100)) for offset in offsets])
    return link.finish()
