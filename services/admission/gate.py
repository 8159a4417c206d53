"""Lets calls through to the service of the term that this process leads in, and to nothing while it leads in none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from admission.leadership import not_leader
from admission.server import AdmissionService
from worldline.v1 import admission_service_pb2_grpc as pb_grpc


@dataclass(frozen=True, slots=True)
class _Open:
    service: AdmissionService
    require: Callable[[], None]


class Gate:
    """Stands before every RPC of admission. `leader`: where whoever leads is asked, "" if nobody is known to.

    What was begun under a term is not answered after it: the answer may be a decision that another leader has taken
    otherwise.
    """

    def __init__(self, leader: Callable[[], str], retry_after_s: float) -> None:
        self._leader = leader
        self._retry_after_s = retry_after_s
        self._now: _Open | None = None

    def serve_on(self, server: grpc.Server) -> None:
        """Register all RPCs. `server` must not have started."""
        pb_grpc.add_AdmissionServiceServicer_to_server(_Doors(self), server)  # type: ignore[arg-type]

    def open(self, service: AdmissionService, require: Callable[[], None]) -> None:
        """Calls reach `service` for as long as `require` does not raise."""
        self._now = _Open(service, require)

    def close(self) -> None:
        """Calls are told who leads."""
        self._now = None

    def through(self) -> _Open:
        """What is open. Raises Unavailable: NOT_LEADER."""
        now = self._now
        if now is None:
            raise not_leader(self._leader(), self._retry_after_s)
        now.require()
        return now


class _Doors:
    """Looks like the servicer to generated code: one door for each RPC, whichever there are."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        handler = getattr(AdmissionService, name)
        gate = self._gate

        def call(request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - any message
            now = gate.through()
            answer = handler(now.service, request, context)
            if isinstance(answer, Iterator):
                return _each(answer, now)
            now.require()
            return answer

        return call


def _each(answers: Iterator[Any], now: _Open) -> Iterator[Any]:
    for answer in answers:
        now.require()
        yield answer
