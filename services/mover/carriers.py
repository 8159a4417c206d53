"""Who carries a move's bytes, and where they are checked.

Movers carry regions in host memory. State on devices is carried by the engine hosts themselves (the destination's
device reads the source's), or, where it cannot, staged: the hosts copy it to and from buffers in host memory, take its
checksums on the devices, and the movers carry the buffers.
"""

from __future__ import annotations

from dataclasses import replace

from mover.verification import require_placement
from worldline.errors import Unsupported
from worldline.plan import DEVICE_CODECS, RAW, Placement, Plan


def hosts_carry(plan: Plan) -> bool:
    """Whether the destination's engine host pulls from the source's."""
    return plan.placement is Placement.DEVICE and not plan.staged


def require_carrier(plan: Plan) -> None:
    """Refuse a placement that nobody here has for this plan. Raises Unsupported."""
    if plan.placement is not Placement.DEVICE:
        require_placement(plan.placement)
    elif not plan.staged and (plan.transport != "local" or plan.codec != RAW):
        raise Unsupported(
            "placement DEVICE without staging is for transport 'local' and codec 'raw': engine hosts pull from each "
            f"other on one node, not over {plan.transport!r} with {plan.codec!r}",
            reason="PLACEMENT_UNSUPPORTED",
        )


def wire_plan(plan: Plan) -> Plan:
    """What a data plane is told of a plan.

    Buffers of a staged move are checked in host memory as well, beside the receive threads: what the wire broke is sent
    again before it goes to the device. What is coded on the device goes as it is.
    """
    if not plan.staged:
        return plan
    codec = RAW if plan.codec in DEVICE_CODECS else plan.codec
    return replace(plan, placement=Placement.PIPELINED, staged=False, codec=codec)
