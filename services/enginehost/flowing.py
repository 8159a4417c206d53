"""The streams of a staged move: how far a buffer is filled at the source, and how far it has landed elsewhere."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import grpc

from enginehost.coded import Filled
from enginehost.device import Pulled
from enginehost.source import Checksummed
from worldline import telemetry, wire
from worldline.codec.parts import Part, carried_bytes, most_parts
from worldline.errors import BadRequest, WorldlineError
from worldline.filling import Filling
from worldline.v1 import engine_host_service_pb2 as pb


def said_of_filling(fill: Callable[[Filled], Checksummed], size_bytes: int) -> Iterator[pb.FillResponse]:
    """What `fill` tells of, as it does, and last what it returns; raises what it raises.

    It runs on a thread of its own: the session's memory waits for no reader.
    """
    said: queue.SimpleQueue[pb.FillResponse | Checksummed | BaseException] = queue.SimpleQueue()
    carrier = telemetry.inject()

    def tell(filled_bytes: int, parts: Sequence[Part]) -> None:
        said.put(pb.FillResponse(filled_bytes=filled_bytes, parts=wire.parts_to(parts)))

    def run() -> None:
        try:
            with telemetry.extracted(carrier):
                said.put(fill(tell))
        except BaseException as error:
            said.put(error)

    thread = threading.Thread(target=run, name="fill", daemon=True)
    thread.start()
    try:
        while isinstance(item := said.get(), pb.FillResponse):
            yield item
    finally:
        thread.join()
    if isinstance(item, BaseException):
        raise item
    filled_bytes = carried_bytes(item.parts) if item.parts else size_bytes
    yield pb.FillResponse(filled_bytes=filled_bytes, chunk_crcs=item.chunk_crcs, last=True)


def pulled_as_it_lands(
    requests: Iterator[pb.PullLandingRequest],
    context: grpc.ServicerContext,
    pull: Callable[[pb.PullRequest, Filling], Pulled],
    size_bytes: Callable[[pb.PullRequest], int],
) -> Pulled:
    """Pull what the first request asks for, while the others say how far it has landed."""
    first = next(requests, None)
    if first is None or not first.HasField("pull"):
        raise BadRequest("the first message says what is wanted", violations={"pull": "is needed in the first message"})
    limit_bytes = size_bytes(first.pull)
    landing = Filling(limit_bytes, most_parts=most_parts(limit_bytes))
    threading.Thread(target=_heard, args=(requests, landing), name="landing", daemon=True).start()
    # A caller that leaves, or whose time is up, wakes whoever waits.
    if not context.add_callback(landing.stop):
        landing.stop()
    return pull(first.pull, landing)


def _heard(requests: Iterator[pb.PullLandingRequest], landing: Filling) -> None:
    landed_bytes = 0
    try:
        for request in requests:
            landed_bytes = request.landed_bytes
            landing.advance(landed_bytes, wire.parts_from(request.parts))
        landing.advance(landed_bytes, last=True)
    except WorldlineError as error:
        landing.stop(error)
    except (grpc.RpcError, ValueError):
        landing.stop()  # the call is over
    except Exception:
        landing.stop()
        raise
