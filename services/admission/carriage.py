"""How state on devices gets from host to host: the destination's device reads the source's, or it is staged.

Staged means through buffers in the host memory of both ends (`docs/gpu.md`): over any transport, also where no device
can read the other.
"""

from __future__ import annotations

from admission.facts import HostFacts
from worldline.plan import RAW, Placement

SOUND = "sound"


def staged_because(source: HostFacts, destination: HostFacts) -> str:
    """Why the destination's device cannot read the source's, by name and in words; "" if it can."""
    if not source.device_id:
        return ""
    if source.mover_id != destination.mover_id:
        return f"OTHER_NODE: mover {source.mover_id} is beside the one host, {destination.mover_id} beside the other"
    verdict = destination.peers.get(source.device_id)
    if verdict is None:
        return f"DEVICE_UNREACHABLE: {destination.host_id} does not see device {source.device_id}"
    if verdict != SOUND:
        return f"PEER_ACCESS_UNSOUND: between {source.host_id} and {destination.host_id}: {verdict}"
    return ""


def is_staged(transport: str, placement: Placement, codec: str, because: str) -> bool:
    """Whether a plan is staged: where it must be (`because`), and where its transport or codec asks for it."""
    return placement is Placement.DEVICE and (bool(because) or transport != "local" or codec != RAW)
