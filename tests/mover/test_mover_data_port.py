"""The data port against those who do not belong there: closed, quickly, without memory taken, and others unharmed."""

from __future__ import annotations

import os
import resource
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from mover.settings import default_congestion
from mover.transports import tcp, tcp_port
from mover.transports.tcp import Tcp, pace
from mover.transports.tcp_port import GREETING, MAGIC, MAX_GREETING, VERSION
from worldline.errors import BadRequest, Exhausted, TimedOut, Unavailable
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.testing.coded import Keeper
from worldline.transport import CodedReceiveLink, Listener, Terms

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZE_BYTES = 1 << 16
GREETING_S = 0.5
PATIENT_S = 20.0
CHUNKS = Plan("tcp", 4096, 1, Placement.PIPELINED, 20, 20, 20).chunks(SIZE_BYTES)


@pytest.fixture(autouse=True)
def _quick_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_port, "GREETING_S", GREETING_S)


@pytest.fixture
def transport() -> Iterator[Tcp]:
    opened = Tcp("127.0.0.1:0")
    yield opened
    opened.close()


@pytest.fixture
def expected(transport: Tcp) -> Iterator[tuple[Terms, Listener, bytearray]]:
    """A move that is expected at the port."""
    terms = Terms(str(uuid.uuid4()), new_token(), 1, 5.0)
    slot = bytearray(SIZE_BYTES)
    listener = transport.listen(memoryview(slot), CHUNKS, terms)
    yield terms, listener, slot
    listener.close()


def greeting(terms: Terms, **changes: object) -> bytes:
    values = {
        "magic": MAGIC,
        "version": VERSION,
        "stream": 0,
        "move": uuid.UUID(terms.move_id).bytes,
        "token": terms.token,
        "trace": b"",
        **changes,
    }
    return GREETING.pack(*values.values())


def connect(listener: Listener) -> socket.socket:
    host, _, port = listener.endpoint.rpartition(":")
    connected = socket.create_connection((host, int(port)), timeout=PATIENT_S)
    connected.settimeout(PATIENT_S)
    return connected


def answer(listener: Listener, data: bytes) -> bytes:
    """What the port says before it closes; b"" if nothing."""
    with connect(listener) as connected:
        try:
            connected.sendall(data)
            return connected.recv(64)
        except ConnectionError:
            return b""


def still_carries(transport: Tcp, expected: tuple[Terms, Listener, bytearray]) -> None:
    """The move that is expected is not harmed."""
    terms, listener, slot = expected
    source = memoryview(os.urandom(SIZE_BYTES))
    with ThreadPoolExecutor(1) as pool:
        sender = transport.connect(source, CHUNKS, terms, listener.endpoint, 0)
        receiver = listener.accept()
        try:
            sending = pool.submit(_send, sender, source)
            while receiver.next() is not None:
                pass
            receiver.answer(())
            sending.result(10)
        finally:
            sender.close()
            receiver.close()
    assert slot == source


def _send(sender: object, source: memoryview) -> None:
    for chunk in CHUNKS:
        sender.begin(chunk)  # type: ignore[attr-defined]
        sender.write(source[chunk.offset : chunk.offset + chunk.size_bytes], chunk.offset)  # type: ignore[attr-defined]
        sender.end(0)  # type: ignore[attr-defined]
    sender.finish()  # type: ignore[attr-defined]


Forge = Callable[[Terms], bytes]


@pytest.mark.parametrize(
    "forge",
    [
        lambda terms: os.urandom(GREETING.size * 4),
        lambda terms: b"GET / HTTP/1.1\r\nHost: worldline\r\n\r\n" + bytes(GREETING.size),
        lambda terms: b"\x80\x04\x95" + bytes(GREETING.size),
        lambda terms: greeting(terms, token=os.urandom(32)),
        lambda terms: greeting(terms, move=os.urandom(16)),
        lambda terms: greeting(terms, version=9),
        lambda terms: greeting(terms, stream=1),
        lambda terms: greeting(terms, stream=65_535),
        lambda terms: greeting(terms)[:-1] + b"",
    ],
    ids=["random", "http", "pickle", "token", "move", "version", "stream", "big-stream", "short"],
)
def test_who_does_not_belong_is_closed(
    transport: Tcp, expected: tuple[Terms, Listener, bytearray], forge: Forge
) -> None:
    terms, listener, slot = expected
    assert answer(listener, forge(terms)) in (b"", b"\x02", b"\x03", b"\x04")
    assert slot == bytes(SIZE_BYTES)
    still_carries(transport, expected)


def test_silence_is_closed_and_does_not_block_others(
    transport: Tcp, expected: tuple[Terms, Listener, bytearray]
) -> None:
    _, listener, _ = expected
    silent = [connect(listener) for _ in range(MAX_GREETING // 2)]
    try:
        still_carries(transport, expected)
        for connected in silent:
            assert connected.recv(1) == b""
    finally:
        for connected in silent:
            connected.close()


def test_strangers_that_say_nothing_keep_no_stream_out(
    transport: Tcp, expected: tuple[Terms, Listener, bytearray]
) -> None:
    """All places are taken by silent strangers; the one that is silent longest makes room."""
    _, listener, _ = expected
    silent = [connect(listener) for _ in range(MAX_GREETING + 2)]
    try:
        still_carries(transport, expected)
    finally:
        for connected in silent:
            connected.close()


def test_a_flood_is_bounded(transport: Tcp, expected: tuple[Terms, Listener, bytearray]) -> None:
    """More than the port lets wait are closed at once; when they are gone others come in."""
    _, listener, _ = expected
    flood = [connect(listener) for _ in range(MAX_GREETING * 2)]
    try:
        for connected in flood:
            with suppress(ConnectionResetError):
                assert connected.recv(1) == b""
    finally:
        for connected in flood:
            connected.close()
    still_carries(transport, expected)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">4sIQ48x", b"WLCH", 0, 1 << 63),
        struct.pack(">4sIQ48x", b"WLCH", 0, 4097),
        struct.pack(">4sIQ48x", b"WLCH", len(CHUNKS), 4096),
        struct.pack(">4sIQ48x", b"WLCH", 0xFFFFFFFF, 4096),
        struct.pack(">4sIQ48x", b"WLAN", 0, 0),
        os.urandom(4) + bytes(60),
    ],
    ids=["huge", "long", "beyond", "far-beyond", "answer", "random"],
)
def test_a_lying_header_takes_no_memory(expected: tuple[Terms, Listener, bytearray], header: bytes) -> None:
    """Even one that has presented the token writes nothing outside its plan's chunks."""
    terms, listener, slot = expected
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connect(listener) as connected:
        connected.sendall(greeting(terms))
        assert connected.recv(1) == b"\x01"
        connected.sendall(header + bytes(1024))
        receiver = listener.accept()
        with pytest.raises(BadRequest) as error:
            receiver.next()
        receiver.close()
    assert error.value.reason == "BAD_CHUNK"
    assert slot == bytes(SIZE_BYTES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def piece(offset: int, size: int, *planes: int, count: int | None = None, magic: bytes = b"WLPC") -> bytes:
    """The header of a piece of a coded chunk."""
    sizes = (*planes, 0, 0, 0, 0)[:4]
    return struct.pack(">4sIQI4I28x", magic, len(planes) if count is None else count, offset, size, *sizes)


@pytest.mark.parametrize(
    "head",
    [
        piece(0, 4096, 4097),
        piece(0, 4096, 0xFFFFFFFF),
        piece(0, 0xFFFFFFFF),
        piece(0, 8192),
        piece(0, 0),
        piece(64, 64, 9),
        piece(1 << 63, 64, 9),
        piece(0, 4096, 1, 1, 1),
        piece(0, 63, 1, 1),
        piece(0, 4096, count=5),
        piece(0, 4096, count=1 << 31),
        piece(0, 4096, 9, magic=b"WLCH"),
    ],
)
def test_a_lying_piece_takes_no_memory(expected: tuple[Terms, Listener, bytearray], head: bytes) -> None:
    """Nor does it write outside its chunk, or ask the decoder for anything."""
    terms, listener, slot = expected
    keeper = Keeper()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connect(listener) as connected:
        connected.sendall(greeting(terms))
        assert connected.recv(1) == b"\x01"
        connected.sendall(struct.pack(">4sIQ48x", b"WLCZ", 0, 4096) + head + bytes(1024))
        receiver = listener.accept()
        assert isinstance(receiver, CodedReceiveLink)
        receiver.decode_with(keeper)
        with pytest.raises(BadRequest) as error:
            receiver.next()
        receiver.close()
    assert error.value.reason == "BAD_PIECE"
    assert (slot, keeper.kept) == (bytes(SIZE_BYTES), [])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_lying_answer_takes_no_memory(transport: Tcp) -> None:
    """A receiver that wants 2**32 chunks again is refused by the sender."""
    terms = Terms(str(uuid.uuid4()), new_token(), 1, 5.0)
    with socket.create_server(("127.0.0.1", 0)) as port, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(
            transport.connect, memoryview(b""), CHUNKS, terms, f"127.0.0.1:{port.getsockname()[1]}", 0
        )
        with port.accept()[0] as connected:
            connected.recv(GREETING.size, socket.MSG_WAITALL)
            connected.sendall(b"\x01")
            sender = connecting.result(10)
            connected.sendall(struct.pack(">4sIQ48x", b"WLAN", 0xFFFFFFFF, 0))
            with pytest.raises(BadRequest) as error:
                sender.finish()
            sender.close()
    assert error.value.reason == "BAD_ANSWER"


def test_a_port_that_does_not_answer(transport: Tcp) -> None:
    """Control is reachable but data is not: an error within seconds, with when to try again."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        terms = Terms(str(uuid.uuid4()), new_token(), 1, 0.3)
        with pytest.raises(Unavailable) as error:
            transport.connect(memoryview(b""), CHUNKS, terms, f"127.0.0.1:{port.getsockname()[1]}", 0)
        assert error.value.retry_after_s
    with pytest.raises(Unavailable):
        transport.connect(memoryview(b""), CHUNKS, terms, "127.0.0.1:9", 0)
    with pytest.raises(BadRequest):
        transport.connect(memoryview(b""), CHUNKS, terms, "nowhere", 0)


def test_a_move_is_expected_once(transport: Tcp, expected: tuple[Terms, Listener, bytearray]) -> None:
    with pytest.raises(BadRequest):
        transport.listen(memoryview(bytearray(SIZE_BYTES)), CHUNKS, expected[0])


def test_the_trace_comes_with_the_stream(transport: Tcp, expected: tuple[Terms, Listener, bytearray]) -> None:
    terms, listener, _ = expected
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    traced = Terms(terms.move_id, terms.token, 1, 5.0, trace)
    sender = transport.connect(memoryview(bytes(SIZE_BYTES)), CHUNKS, traced, listener.endpoint, 0)
    receiver = listener.accept()
    assert receiver.traceparent == trace
    sender.close()
    receiver.close()


def test_an_unknown_congestion_control_says_so() -> None:
    with pytest.raises(Exhausted, match="leave the setting empty"):
        Tcp("127.0.0.1:0", congestion="nonesuch")


def test_congestion_control_is_chosen_before_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """At both ends: a socket that began with one that paces stays paced, whatever is chosen later."""
    chosen: list[str] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: object) -> None:
        chosen.append(congestion_of(self))
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", watched)
    transport = Tcp("127.0.0.1:0", congestion="reno")
    terms = Terms(str(uuid.uuid4()), new_token(), 1, 5.0)
    listener = transport.listen(memoryview(bytearray(SIZE_BYTES)), CHUNKS, terms)
    sender = tcp_port.greet(listener.endpoint, terms, 0, "reno")
    receiver = listener.accept()
    assert chosen == ["reno"]
    assert congestion_of(sender) == "reno"
    sender.close()
    receiver.close()
    listener.close()
    transport.close()


def test_the_streams_of_a_paced_move_share_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    paced: list[int] = []
    monkeypatch.setattr(tcp, "pace", lambda connected, rate_Bps: paced.append(rate_Bps))
    transport = Tcp("127.0.0.1:0", pace_Bps=8_000_001)
    terms = Terms(str(uuid.uuid4()), new_token(), 2, 5.0)
    region = memoryview(bytearray(SIZE_BYTES))
    listener = transport.listen(region, CHUNKS, terms)
    links = [transport.connect(region, CHUNKS, terms, listener.endpoint, stream) for stream in range(2)]
    assert paced == [4_000_000, 4_000_000]
    for link in links:
        link.close()
    listener.close()
    transport.close()


def test_the_kernel_keeps_a_pace() -> None:
    with socket.socket() as probe:
        pace(probe, 8_000_000)
        assert probe.getsockopt(socket.SOL_SOCKET, 47) == 8_000_000  # SO_MAX_PACING_RATE


def test_the_default_congestion_control_may_be_chosen() -> None:
    name = default_congestion()
    with socket.socket() as probe:
        if name:
            tcp_port.set_congestion(probe, name)
            assert congestion_of(probe) == name == "cubic"
        else:
            with pytest.raises(Exhausted):
                tcp_port.set_congestion(probe, "cubic")


def congestion_of(connected: socket.socket) -> str:
    return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_accept_is_bounded(transport: Tcp) -> None:
    terms = Terms(str(uuid.uuid4()), new_token(), 1, 0.1)
    listener = transport.listen(memoryview(bytearray(SIZE_BYTES)), CHUNKS, terms)
    with pytest.raises(TimedOut):
        listener.accept()
    listener.close()
