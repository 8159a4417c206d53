"""Verbs 2 and 3, which others do for this host: admission decides, the mover beside it moves."""

from __future__ import annotations

from enginehost.host import Host
from worldline import rpc, wire
from worldline.errors import BadRequest, Internal, Unsupported
from worldline.manifest import Manifest
from worldline.move import Fence, HostRef
from worldline.plan import Plan
from worldline.receipt import Receipt
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import move_pb2
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub
from worldline.verdict import Verdict


class Driving:
    """Calls to admission and to this host's mover."""

    def __init__(self, host: Host, channels: rpc.Channels) -> None:
        self._host = host
        self._channels = channels

    def admit(
        self, session_id: str, destination_host_id: str, mode: move_pb2.MoveMode.ValueType, timeout_s: float
    ) -> Verdict:
        """Admission's verdict on moving the session. Raises Unsupported where there is no admission."""
        address = self._host.settings.admission
        if not address:
            raise Unsupported("this engine host has no admission service: set `admission`", reason="NO_ADMISSION")
        request = admission_pb.EvaluateMoveRequest(
            session_id=session_id, destination_host_id=destination_host_id, mode=mode
        )
        with rpc.calling("admission"):
            answer = AdmissionServiceStub(self._channels.to(address)).EvaluateMove(request, timeout=timeout_s)
        return wire.verdict_from(answer.verdict)

    def migrate(
        self, fence: Fence, plan: Plan, destination: HostRef, mover_address: str, own_address: str, timeout_s: float
    ) -> tuple[Manifest, Receipt, Receipt]:
        """Stage the session into a shadow slot of `destination`: manifest and both receipts.

        Raises:
            BadRequest: the destination is this host.
            Unsupported: no mover is set.
        """
        host = self._host
        host.check(fence)
        host.sessions.get(fence.session_id)
        if not host.settings.mover_address:
            raise Unsupported("this engine host has no mover: set `mover_address`", reason="NO_MOVER")
        if destination.host_id == host.host_id:
            raise BadRequest(
                f"the session is on {host.host_id} already",
                reason="MOVE_TO_ITSELF",
                violations={"destination.host_id": "this host"},
            )
        host.accepted(fence)
        request = mover_pb.MoveRequest(
            fence=wire.fence_to(fence),
            plan=wire.plan_to(plan),
            source=wire.host_to(HostRef(host.host_id, host.incarnation, own_address)),
            destination=wire.host_to(destination),
            destination_mover_address=mover_address,
        )
        last: mover_pb.MoveResponse | None = None
        with rpc.calling("the mover"):
            stub = MoverServiceStub(self._channels.to(host.settings.mover_address))
            for progress in stub.Move(request, timeout=timeout_s):
                last = progress
        if last is None or not last.HasField("destination_receipt"):
            raise Internal(f"the mover ended move {fence.move_id} without receipts")
        return (
            wire.manifest_from(last.manifest),
            wire.receipt_from(last.source_receipt),
            wire.receipt_from(last.destination_receipt),
        )
