"""Who carries a move's bytes: this mover's data plane, or, with placement DEVICE, the engine hosts themselves."""

from __future__ import annotations

from mover.verification import require_placement
from worldline.errors import Unsupported
from worldline.plan import RAW, Placement, Plan


def hosts_carry(plan: Plan) -> bool:
    """Whether the destination's engine host pulls from the source's."""
    return plan.placement is Placement.DEVICE


def require_carrier(plan: Plan) -> None:
    """Refuse a placement that nobody here has for this plan. Raises Unsupported."""
    if not hosts_carry(plan):
        require_placement(plan.placement)
    elif plan.transport != "local" or plan.codec != RAW:
        raise Unsupported(
            "placement DEVICE is for transport 'local' and codec 'raw': engine hosts pull from each other on one node, "
            f"not over {plan.transport!r} with {plan.codec!r}",
            reason="PLACEMENT_UNSUPPORTED",
        )
