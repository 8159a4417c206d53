"""Probes: what is known of an idle path is looked at again, gently, before it rots.

One probe at a time in the whole fleet, on the path that was unseen for longest, and only while neither of its movers is
in a move. It is as small as the smallest move that measures bandwidth. It measures the pace; the setup of a path is
measured by its moves alone, and loses confidence between them.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field

from admission.coordinator import Coordinator
from admission.estimators import BANDWIDTH_SAMPLE_BYTES, PathKey, parts_of
from admission.fleet import Fleet, Mover
from admission.journal import Journal
from admission.offers import streams_for
from admission.profile import Profile
from admission.settings import AdmissionSettings
from worldline import rpc, telemetry, wire
from worldline.errors import WorldlineError
from worldline.plan import RAW, Placement, Plan
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1 import mover_service_pb2_grpc as mover_grpc

# A probe that takes longer says that the path is not idle, or not there.
_PROBE_S = 10.0
# Looks at the paths in each idle time.
_LOOKS = 4


@dataclass(frozen=True, slots=True)
class Prober:
    """Probes idle paths on a thread of its own, from `start` to `stop`; not at all if `probe_idle_s` is 0."""

    profile: Profile
    journal: Journal
    fleet: Fleet
    coordinator: Coordinator
    settings: AdmissionSettings
    channels: rpc.Channels
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        """Begin."""
        if self.settings.probe_idle_s:
            threading.Thread(target=self._run, name="prober", daemon=True).start()

    def stop(self) -> None:
        """Probe no more; a probe on its way teaches nothing."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self.settings.probe_idle_s / _LOOKS):
            try:
                self.look()
            except Exception as error:
                # A bug of ours must not end what keeps constants fresh.
                telemetry.log("probe").exception("unexpected", error=f"{type(error).__name__}: {error}")

    def look(self) -> list[PathKey]:
        """Probe every path that is idle now. Returns those that were measured."""
        return [
            key
            for key in self.profile.idle(self.settings.probe_idle_s)
            if not self._stopped.is_set() and self._probe(key)
        ]

    def _probe(self, key: PathKey) -> bool:
        """Measure one path. Returns whether it could be measured undisturbed."""
        _, placement, codec = parts_of(key.idiom)
        movers = [self.fleet.mover(mover_id) for mover_id in (key.source_mover, key.destination_mover)]
        source, destination = movers
        if placement is Placement.DEVICE or codec != RAW or source is None or destination is None:
            return False
        if not self._quiet(source, destination):
            return False
        try:
            pace = self._measure(key, source, destination)
        except WorldlineError as error:
            telemetry.log("probe").warning(
                "failed", path=f"{key.source_mover} -> {key.destination_mover}", idiom=key.idiom, error=error.message
            )
            return False
        if not pace > 0 or self._stopped.is_set() or not self._quiet(source, destination):
            return False
        rows = self.profile.probed(key, pace)
        self.journal.save_estimates(rows)
        self.profile.keep(rows)
        return True

    def _quiet(self, *movers: Mover) -> bool:
        """Whether these movers were heard lately and are in no move."""
        now_s, ids = self.fleet.now_s(), {mover.facts.mover_id for mover in movers}
        if any(now_s - mover.heard_at_s > self.settings.silent_s for mover in movers):
            return False
        hosts = {host.host_id for record in self.coordinator.records() for host in (record.source, record.destination)}
        return ids.isdisjoint(self.fleet.host(host_id).facts.mover_id for host_id in hosts)

    def _measure(self, key: PathKey, source: Mover, destination: Mover) -> float:
        """Seconds a byte takes. Raises what the mover answers."""
        transport, placement, codec = parts_of(key.idiom)
        settings = self.settings
        plan = Plan(
            transport,
            settings.large_chunk_bytes,
            settings.streams or streams_for((source.facts, destination.facts), large=True),
            placement,
            _PROBE_S,
            _PROBE_S,
            min(settings.no_progress_s, _PROBE_S),
            codec,
        )
        request = mover_pb.ProbeRequest(
            probe_id=str(uuid.uuid4()),
            destination_mover_address=destination.facts.address,
            plan=wire.plan_to(plan),
            size_bytes=BANDWIDTH_SAMPLE_BYTES,
        )
        stub = mover_grpc.MoverServiceStub(self.channels.to(source.facts.address))
        with telemetry.span("probe", {"path.idiom": key.idiom}), rpc.calling(f"mover {key.source_mover}"):
            answer = stub.Probe(request, timeout=_PROBE_S)
        return (answer.wire_s + answer.verify_s) / BANDWIDTH_SAMPLE_BYTES
