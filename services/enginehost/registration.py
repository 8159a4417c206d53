"""This host and admission: registration, heartbeats, and the order to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from enginehost.host import Host
from enginehost.info import session_info
from enginehost.ownership import State
from enginehost.sampling import look
from worldline import rpc, telemetry, wire
from worldline.errors import Owned, StaleFence, WorldlineError
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub

RETRY_S = 0.5
# However often somebody asks for a beat at once, there is this much between two, in seconds.
PAUSE_S = 0.02
CALL_TIMEOUT_S = 5.0
MAX_VERDICT_CHARS = 256
_log = telemetry.log("registration")


class Registration:
    """A thread that keeps admission told. `on_refused` is called once, with why this process may play no more."""

    def __init__(
        self,
        host: Host,
        channels: rpc.Channels,
        cluster_address: str,
        public_address: str,
        on_refused: Callable[[WorldlineError], None],
    ) -> None:
        self._host = host
        self._stub = AdmissionServiceStub(channels.to(host.settings.admission))
        self._addresses = (cluster_address, public_address)
        self._on_refused = on_refused
        self._joined = False
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._told = threading.Condition()
        self._begun = self._done = 0
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Register, then keep beating."""
        self._host.ask_admission = self._woken.set
        self._thread.start()

    def tell(self, timeout_s: float) -> None:
        """Have admission told at once how things are now, and wait until that was tried."""
        with self._told:
            # The one in progress may have been written before.
            wanted = self._begun + 1
            self._woken.set()
            self._told.wait_for(lambda: self._done >= wanted or not self._thread.is_alive(), timeout_s)

    def stop(self) -> None:
        """Beat no more. A call in progress ends when the channels are closed."""
        self._stopped.set()
        self._woken.set()

    def _run(self) -> None:
        heartbeat_s: float | None = None
        while not self._stopped.is_set():
            with self._told:
                self._begun += 1
            try:
                if heartbeat_s is None:
                    heartbeat_s = self._register()
                elif self._beat():
                    heartbeat_s = None
                    continue
                wait_s = heartbeat_s
            except StaleFence as error:
                _log.error("this incarnation was fenced: all sessions end here", error=error.message)
                self._on_refused(error)
                return
            except WorldlineError as error:
                if isinstance(error, Owned) and error.reason == "HOST_ID_TAKEN" and not self._joined:
                    _log.error("another process is this engine host", error=error.message)
                    self._on_refused(error)
                    return
                _log.warning("admission was not told", error=error.message)
                wait_s = min(RETRY_S, heartbeat_s or RETRY_S)
            self._pause(wait_s)

    def _pause(self, wait_s: float) -> None:
        with self._told:
            self._done = self._begun
            self._told.notify_all()
        self._stopped.wait(min(PAUSE_S, wait_s))
        self._woken.wait(max(0.0, wait_s - PAUSE_S))
        self._woken.clear()

    def _register(self) -> float:
        host, (cluster_address, public_address) = self._host, self._addresses
        registration = pb.EngineHostRegistration(
            host_id=host.host_id,
            incarnation=host.incarnation,
            cluster_address=cluster_address,
            public_address=public_address,
            mover_id=host.settings.mover_id,
            fingerprint=wire.fingerprint_to(host.fingerprints.host),
            engines=[f"{name}/{preset}" for name, engine in host.engines.items() for preset in engine.presets()],
            budget_bytes=host.budget.total_bytes,
            instance_id=host.instance_id,
            device_id=host.device.device_id,
            peers=[
                pb.PeerAccess(device_id=device_id, verdict=verdict[:MAX_VERDICT_CHARS])
                for device_id, verdict in host.device.peers.items()
            ],
            codecs=[host.device.frames.name] if host.device.frames is not None else [],
            state_id=host.state_id,
        )
        with rpc.calling("admission"):
            answer = self._stub.RegisterEngineHost(
                pb.RegisterEngineHostRequest(registration=registration, status=self._status()), timeout=CALL_TIMEOUT_S
            )
        host.admission_term(answer.term, registered=True)
        self._joined = True
        _log.info("registered", term=answer.term, heartbeat_s=answer.heartbeat_s)
        return max(0.01, answer.heartbeat_s)

    def _beat(self) -> bool:
        """Returns whether admission does not know this host any more."""
        host = self._host
        with rpc.calling("admission"):
            answer = self._stub.HeartbeatEngineHost(
                pb.HeartbeatEngineHostRequest(
                    host_id=host.host_id,
                    incarnation=host.incarnation,
                    status=self._status(),
                    instance_id=host.instance_id,
                ),
                timeout=CALL_TIMEOUT_S,
            )
        if answer.fenced:
            raise StaleFence(f"incarnation {host.incarnation} of {host.host_id} was fenced", reason="FENCED")
        if not answer.unknown:
            host.admission_term(answer.term, registered=False)
        return answer.unknown

    def _status(self) -> pb.EngineHostStatus:
        host = self._host
        # A staged copy is not this host's session yet.
        owned = [session for session in host.sessions.held() if session.ownership.state is not State.STAGED]
        look(owned)
        for session in owned:
            if session.block_s and session.descriptor is not None:
                host.warmth.played(f"{session.descriptor.engine}/{session.descriptor.preset}")
        presets = [f"{name}/{preset}" for name, engine in host.engines.items() for preset in engine.presets()]
        warm_bytes = host.warm_slots.size_bytes
        return pb.EngineHostStatus(
            free_bytes=host.budget.free_bytes + warm_bytes,
            warm_bytes=warm_bytes,
            sessions=[session_info(session) for session in owned],
            draining=host.draining,
            presets=[
                pb.PresetWarmth(
                    preset=preset,
                    warm=host.warmth.is_warm(preset),
                    slots=host.warm_slots.count(preset),
                    first_touch_s=host.warmth.first_touch_s(preset),
                )
                for preset in presets
            ],
        )
