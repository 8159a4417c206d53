"""Registration of this mover with admission, and its heartbeats, on one thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worldline import rpc, telemetry
from worldline.errors import WorldlineError
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub

_CALL_S = 2.0
_RETRY_S = 0.5


class Registration:
    """Registers, beats, and registers again when admission does not know this mover (any more)."""

    def __init__(
        self,
        channels: rpc.Channels,
        admission: str,
        registration: pb.MoverRegistration,
        beat: Callable[[], pb.HeartbeatMoverRequest],
    ) -> None:
        """`beat` makes each heartbeat."""
        self._stub = AdmissionServiceStub(channels.to(admission))
        self._registration = registration
        self._beat_message = beat
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)
        self._log = telemetry.log("mover")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; admission notices by the silence."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        heartbeat_s: float | None = None
        while not self._ended.is_set():
            try:
                heartbeat_s = self._register() if heartbeat_s is None else self._beat(heartbeat_s)
                wait_s = heartbeat_s or 0.0
            except WorldlineError as error:
                self._log.warning("admission_unreachable", reason=error.reason, message=error.message)
                wait_s = _RETRY_S
            self._ended.wait(wait_s)

    def _register(self) -> float:
        with rpc.calling("admission"):
            answer = self._stub.RegisterMover(pb.RegisterMoverRequest(registration=self._registration), timeout=_CALL_S)
        self._log.info("registered", term=answer.term, heartbeat_s=answer.heartbeat_s)
        return max(0.05, answer.heartbeat_s)

    def _beat(self, heartbeat_s: float) -> float | None:
        """The pace to go on with; None when admission wants a new registration."""
        with rpc.calling("admission"):
            answer = self._stub.HeartbeatMover(self._beat_message(), timeout=_CALL_S)
        return None if answer.unknown else heartbeat_s
