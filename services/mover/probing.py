"""Probes of a path: bytes that are nobody's, from one mover's data plane to another's, carried as a move's would be.

A probe costs what a small move costs, and takes a place among the moves that come in: it is for idle paths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mover.carriers import hosts_carry
from mover.running import Running
from worldline import rpc, wire
from worldline.errors import BadRequest, DataLoss, TimedOut, Unavailable, Unsupported
from worldline.move import TOKEN_BYTES, new_token, require_uuid
from worldline.plan import RAW, Plan
from worldline.transport import Terms
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

MAX_PROBE_BYTES = 256 << 20
PROBE_S = 10.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What is carried, and how; `token` is the secret of its data connections."""

    terms: Terms
    plan: Plan
    size_bytes: int


def probe_from(request: pb.ProbeRequest | pb.ReceiveProbeRequest, token: bytes) -> Probe:
    """Raises BadRequest naming the field; Unsupported: a plan that mover to mover carries none of."""
    plan = wire.plan_from(request.plan)
    violations = {}
    if not 0 < request.size_bytes <= MAX_PROBE_BYTES:
        violations["size_bytes"] = f"1 to {MAX_PROBE_BYTES} are needed, not {request.size_bytes}"
    if len(token) != TOKEN_BYTES:
        violations["token"] = f"{TOKEN_BYTES} bytes are needed, not {len(token)}"
    if violations:
        wrong = "; ".join(f"{name}: {what}" for name, what in violations.items())
        raise BadRequest(f"the probe was refused: {wrong}", violations=violations)
    if hosts_carry(plan) or plan.codec != RAW:
        raise Unsupported(
            f"a probe measures what movers carry raw, not placement {plan.placement.name} with codec {plan.codec!r}",
            reason="PROBE_UNSUPPORTED",
        )
    terms = Terms(require_uuid(request.probe_id, "probe_id"), token, plan.streams, plan.no_progress_s)
    return Probe(terms, plan, request.size_bytes)


def send(running: Running, request: pb.ProbeRequest) -> pb.ProbeResponse:
    """Carry a probe to another mover, and say what it took.

    Raises:
        DataLoss: PROBE_DIFFERS, what came is not what was sent. WorldlineError: the path is not there.
    """
    probe = probe_from(request, new_token())
    address = wire.address_from(request.destination_mover_address, "destination_mover_address")
    with _scratch(running, probe.size_bytes) as region, running.job() as job:
        job.map(running.stop, region, probe.size_bytes, writable=False)
        asked = pb.ReceiveProbeRequest(
            probe_id=probe.terms.move_id,
            plan=wire.plan_to(probe.plan),
            size_bytes=probe.size_bytes,
            token=probe.terms.token,
        )
        with rpc.calling("destination's mover"):
            stub = MoverServiceStub(running.channels.to(address))
            answers = iter(stub.ReceiveProbe(asked, timeout=running.remaining_s))
            ready = _next(answers)
            job.connect(running.stop, probe.plan, probe.terms, ready.endpoint)
            sent = job.run(running.stop, running.remaining_s, lambda progress: None)
            came = _next(answers)
    if tuple(came.chunk_crcs) != tuple(sent.crcs):
        raise DataLoss("the probe's bytes changed on their way", reason="PROBE_DIFFERS")
    return pb.ProbeResponse(wire_s=came.wire_s, verify_s=came.verify_s)


def receive(running: Running, probe: Probe) -> Iterator[pb.ReceiveProbeResponse]:
    """Take a probe's bytes into memory that is let go afterwards."""
    with _scratch(running, probe.size_bytes) as region, running.job() as job:
        job.map(running.stop, region, probe.size_bytes, writable=True)
        yield pb.ReceiveProbeResponse(endpoint=job.listen(running.stop, probe.plan, probe.terms))
        outcome = job.run(running.stop, running.remaining_s, lambda progress: None)
        yield pb.ReceiveProbeResponse(wire_s=outcome.wire_s, verify_s=outcome.verify_s, chunk_crcs=outcome.crcs)


def _next(answers: Iterator[pb.ReceiveProbeResponse]) -> pb.ReceiveProbeResponse:
    answer = next(answers, None)
    if answer is None:
        raise Unavailable("the destination's mover ended the probe early", reason="PROBE_ENDED", retry_after_s=1.0)
    return answer


@contextmanager
def _scratch(running: Running, size_bytes: int) -> Iterator[int]:
    """Memory for a probe, which must be over in `PROBE_S`."""
    running.end_by(
        time.monotonic() + PROBE_S, lambda: TimedOut(f"the probe took over {PROBE_S} s", reason="NO_PROGRESS")
    )
    region = os.memfd_create("worldline-probe")
    try:
        os.ftruncate(region, size_bytes)
        yield region
    finally:
        os.close(region)
