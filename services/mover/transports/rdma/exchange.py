"""What both ends tell each other over the greeted TCP connection before their queue pairs work.

The sender speaks first. Everything has a fixed size but the keys, whose count is bounded by the plan's own region.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from dataclasses import dataclass

from worldline.errors import BadRequest, Unavailable

EXCHANGE_S = 5.0
VERSION = 2
MAX_SEGMENTS = 1 << 16
_MAX_WORDS = 512

# Magic, version, MTU as verbs number it, queue pair, packet sequence number, GID.
_END = struct.Struct(">8sHHII16s")
_MAGIC = b"WLRDMA\r\n"
# Region address, region bytes, segment bytes, keys, record address, record key, records; for coded pieces the address,
# key and number of places.
_OFFER = struct.Struct(">QQQIQIIQII")
_ANSWER = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class End:
    """One end's queue pair."""

    mtu: int
    pair: int
    psn: int
    gid: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What the receiver lets the sender write: its region in segments, each with a key, and one record a chunk; for a
    coded move also the places where pieces land, else none.
    """

    end: End
    address: int
    size_bytes: int
    segment_bytes: int
    keys: tuple[int, ...]
    records_address: int
    records_key: int
    records: int
    staging_address: int = 0
    staging_key: int = 0
    places: int = 0


def send_end(connected: socket.socket, end: End) -> None:
    """Raises OSError."""
    connected.sendall(_pack(end))


def receive_end(connected: socket.socket, deadline: float) -> End:
    """Raises OSError, or BadRequest for what is no end of this version."""
    return _unpack(read(connected, _END.size, deadline))


def send_offer(connected: socket.socket, offer: Offer) -> None:
    """Raises OSError."""
    body = _OFFER.pack(
        offer.address,
        offer.size_bytes,
        offer.segment_bytes,
        len(offer.keys),
        offer.records_address,
        offer.records_key,
        offer.records,
        offer.staging_address,
        offer.staging_key,
        offer.places,
    )
    keys = struct.pack(f">{len(offer.keys)}I", *offer.keys)
    connected.sendall(_ANSWER.pack(0, 0) + _pack(offer.end) + body + keys)


def send_refusal(connected: socket.socket, reason: str) -> None:
    """Tell the sender why there is no offer. Raises OSError."""
    words = reason.encode()[:_MAX_WORDS]
    connected.sendall(_ANSWER.pack(1, len(words)) + words)


def receive_offer(connected: socket.socket, deadline: float) -> Offer:
    """Raises OSError, BadRequest, or Unavailable with what the receiver says."""
    refused, size = _ANSWER.unpack(read(connected, _ANSWER.size, deadline))
    if refused:
        words = read(connected, min(size, _MAX_WORDS), deadline).decode("utf-8", "replace")
        raise Unavailable(f"the receiver refused the stream: {words}", reason="RDMA_REFUSED")
    end = _unpack(read(connected, _END.size, deadline))
    address, size_bytes, segment_bytes, count, *rest = _OFFER.unpack(read(connected, _OFFER.size, deadline))
    if not segment_bytes or not 0 < count <= MAX_SEGMENTS or count != -(-size_bytes // segment_bytes):
        raise BadRequest(
            f"the receiver offers {count} keys for {size_bytes} bytes in segments of {segment_bytes}",
            reason="WRONG_PEER",
        )
    keys = struct.unpack(f">{count}I", read(connected, 4 * count, deadline))
    return Offer(end, address, size_bytes, segment_bytes, keys, *rest)


def read(connected: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly `size` bytes by `deadline` (monotonic seconds). Raises OSError."""
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer took too long")
        connected.settimeout(left_s)
        came = connected.recv(size - len(data))
        if not came:
            raise ConnectionResetError("the peer closed")
        data += came
    return data


def _pack(end: End) -> bytes:
    return _END.pack(_MAGIC, VERSION, end.mtu, end.pair, end.psn, ipaddress.IPv6Address(end.gid).packed)


def _unpack(data: bytes) -> End:
    magic, version, mtu, pair, psn, gid = _END.unpack(data)
    if magic != _MAGIC or version != VERSION:
        raise BadRequest(f"the peer does not speak version {VERSION} of the rdma exchange", reason="WRONG_VERSION")
    return End(mtu, pair, psn, ipaddress.IPv6Address(gid).exploded)
