"""Suite `grpc`: the same bytes in streams of gRPC messages, into the same memory, with and without checksums.

`python -m benchmarks.grpc_stream SIZE HOST` receives. Messages are bare bytes behind an offset: no protobuf is encoded.
With checksums the sender checks each message before it goes, the receiver what lies in its region after it came, and
both say the CRC-32 of all.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import grpc

from benchmarks.child import Child, say
from benchmarks.report import Row
from benchmarks.suite import STREAMS, Figures, Setup, plan
from benchmarks.wire import Arms, memory
from mover.memory import Region
from worldline.crc import combine_all, crc32
from worldline.errors import DataLoss

MESSAGE_BYTES = 1 << 20
_HEAD = struct.Struct("<Q?")  # where the bytes belong, and whether they are to be checked
_METHOD = "/benchmarks.Stream/Send"
_OPTIONS = (("grpc.max_receive_message_length", 2 * MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1))


def run(setup: Setup) -> Figures:
    """Both arms beside a raw socket and the mover's pipeline."""
    size_bytes = setup.size_bytes
    bare, verified = Row("raw socket", size_bytes), Row("verified move", size_bytes, "raw socket")
    plain, checked = Row("gRPC", size_bytes, "raw socket"), Row("gRPC, with checksums", size_bytes, "raw socket")
    with Arms(size_bytes, plan()) as arms, Child("benchmarks.grpc_stream", size_bytes, "127.0.0.1") as receiver:
        receiver.ask("address")
        address = receiver.told("address")
        for number in range(setup.runs + 1):
            taken = {
                bare.name: arms.bare(),
                verified.name: arms.job(verified=True),
                plain.name: send(arms.view, address, checked=False),
                checked.name: send(arms.view, address, checked=True),
            }
            if number:
                for row in (bare, verified, plain, checked):
                    row.seconds.append(taken[row.name])
    return Figures([bare, verified, plain, checked], {"message_bytes": MESSAGE_BYTES, "streams": STREAMS})


def send(region: memoryview, address: str, *, checked: bool) -> float:
    """Seconds until the receiver has all, and both checksums are there if asked for. Raises DataLoss."""
    share = -(-len(region) // STREAMS)
    parts = [(at, min(at + share, len(region))) for at in range(0, len(region), share)]
    with ThreadPoolExecutor(STREAMS) as pool:
        channels = [grpc.insecure_channel(address, options=_OPTIONS) for _ in parts]
        for channel in channels:
            grpc.channel_ready_future(channel).result(timeout=15)
        start = perf_counter()
        sent = [
            pool.submit(_send_part, channel, region, first, end, checked=checked)
            for channel, (first, end) in zip(channels, parts, strict=True)
        ]
        for part in sent:
            part.result()
        taken_s = perf_counter() - start
        for channel in channels:
            channel.close()
    return taken_s


def _send_part(channel: grpc.Channel, region: memoryview, first: int, end: int, *, checked: bool) -> None:
    crcs: list[tuple[int, int]] = []

    def messages() -> Iterator[bytes]:
        for at in range(first, end, MESSAGE_BYTES):
            with region[at : min(at + MESSAGE_BYTES, end)] as piece:
                if checked:
                    crcs.append((crc32(piece), len(piece)))
                yield b"".join((_HEAD.pack(at, checked), piece))

    call = channel.stream_unary(_METHOD, request_serializer=None, response_deserializer=None)
    told = int.from_bytes(call(messages(), timeout=120))
    if checked and told != combine_all(crcs):
        raise DataLoss("bytes differ after gRPC")


class _Receiver(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stub only
    """Lays messages down in one region."""

    def __init__(self, region: memoryview) -> None:
        self._region = region

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if handler_call_details.method != _METHOD:
            return None
        return grpc.stream_unary_rpc_method_handler(self._receive)

    def _receive(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        crcs: list[tuple[int, int]] = []
        for message in messages:
            at, checked = _HEAD.unpack_from(message)
            body = memoryview(message)[_HEAD.size :]
            with self._region[at : at + len(body)] as piece:
                piece[:] = body
                if checked:
                    crcs.append((crc32(piece), len(piece)))
        return combine_all(crcs).to_bytes(4)


def main(arguments: Sequence[str]) -> None:
    """The receiving process."""
    size_bytes, host = int(arguments[0]), arguments[1]
    descriptor = memory(size_bytes)
    region = Region(descriptor, size_bytes, writable=True)
    os.close(descriptor)
    region.populate()
    server = grpc.server(ThreadPoolExecutor(STREAMS), handlers=[_Receiver(region.view)], options=_OPTIONS)
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    say("ready")
    for _ in sys.stdin:
        say({"address": f"{host}:{port}"})
    server.stop(None).wait()


if __name__ == "__main__":
    main(sys.argv[1:])
