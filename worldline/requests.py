"""What both clients ask alike: requests, how long each may take, and what is read from answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from worldline import wire
from worldline.contract import Contract
from worldline.errors import NotFound
from worldline.move import Fault
from worldline.plan import Placement
from worldline.playing import Session
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import move_pb2

CALL_TIMEOUT_S = 30.0
PLACE_TIMEOUT_S = 120.0
# Weights of gigabytes are read from disk.
PREWARM_TIMEOUT_S = 600.0
HOSTS_A_PAGE = 1000


def place_request(
    engine: str, preset: str, seed: int, contract: Contract | None, host_id: str, request_id: str = ""
) -> pb.PlaceSessionRequest:
    """Create a session; the same `request_id` again creates none."""
    return pb.PlaceSessionRequest(
        request_id=request_id or str(uuid.uuid4()),
        engine=engine,
        preset=preset,
        seed=seed,
        contract=wire.contract_to(contract) if contract else None,
        host_id=host_id,
    )


def placed_session(placed: pb.PlaceSessionResponse) -> Session:
    """The session that was created."""
    return Session(placed.session.descriptor.session_id, placed.resume_token, placed.public_address, placed.host_id)


def move_request(
    session_id: str,
    destination: str,
    patience_s: float,
    *,
    transport: str = "",
    codec: str = "",
    placement: Placement | None = None,
    request_id: str = "",
    faults: Iterable[Fault] = (),
) -> pb.RequestMoveRequest:
    """Ask for a move; what is left empty is admission's to pick."""
    return pb.RequestMoveRequest(
        request_id=request_id or str(uuid.uuid4()),
        session_id=session_id,
        destination_host_id=destination,
        mode=move_pb2.MOVE_MODE_FROZEN,
        patience_s=patience_s,
        transport=transport,
        codec=codec,
        placement=int(placement or 0),  # type: ignore[arg-type]
        faults=wire.faults_to(faults),
    )


def public_address(hosts: Iterable[pb.EngineHostInfo], host_id: str) -> str:
    """Where a host of the fleet is asked. Raises NotFound."""
    found = {host.registration.host_id: host.registration.public_address for host in hosts}
    if host_id not in found:
        raise NotFound(
            f"admission knows no engine host {host_id[:64]!r}; it knows {', '.join(sorted(found)) or 'none'}",
            reason="UNKNOWN_HOST",
            resource=("engine_host", host_id[:64]),
        )
    return found[host_id]
