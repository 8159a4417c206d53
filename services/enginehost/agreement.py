"""What has to agree before a staged copy is taken: the manifest with the copy, checksums and receipts with each other.

Nothing is changed here; each check raises with what differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginehost.session import Copy, Landing, Session
from worldline.errors import DataLoss, Mismatch, WrongState
from worldline.manifest import Manifest
from worldline.move import Fence
from worldline.receipt import Receipt, require_match


def landing_of(session: Session, fence: Fence) -> Landing:
    """What was attested here for this move. Raises WrongState."""
    landing = session.landings.get(fence.move_id)
    if landing is None:
        raise WrongState(
            f"move {fence.move_id} has not been attested here: its bytes have not landed", reason="NOT_ATTESTED"
        )
    return landing


def require_of(manifest: Manifest, copy: Copy, fence: Fence) -> None:
    """Refuse a manifest that is not of the staged copy. Raises Mismatch with each difference."""
    pairs: dict[str, tuple[object, object]] = {
        "session_id": (manifest.session_id, fence.session_id),
        "epoch": (manifest.epoch, fence.epoch),
        "layout_digest": (manifest.layout_digest, copy.slot.layout.digest),
        "descriptor_digest": (manifest.descriptor_digest, copy.descriptor.digest),
        "fingerprint_digest": (manifest.fingerprint_digest, copy.fingerprint.digest),
        "tier": (manifest.tier, copy.descriptor.contract.tier),
    }
    differences = {
        f"manifest.{name}": f"{_shown(given)} given, {_shown(staged)} staged"
        for name, (given, staged) in pairs.items()
        if given != staged
    }
    if differences:
        raise Mismatch(
            "the manifest is not of what is staged here: " + "; ".join(f"{k}: {v}" for k, v in differences.items()),
            reason="MANIFEST_MISMATCH",
            violations=differences,
        )


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def require_pulled(session: Session, chunk_crcs: Sequence[int]) -> None:
    """Refuse checksums that are not those of what was pulled into the slot. Raises Mismatch."""
    different = [index for index, crc in enumerate(chunk_crcs) if session.pulled.get(index) != crc]
    if different:
        raise Mismatch(
            f"{len(different)} of {len(chunk_crcs)} chunks in the slot are not the source's, first {different[0]}",
            reason="PULLED_DIFFERS",
            numbers={"chunks": len(different), "first": different[0]},
        )


def require_bound(landing: Landing, source: Receipt) -> None:
    """Refuse a receipt over another manifest or plan than the attested."""
    given = (source.manifest_digest, source.plan_digest)
    if given != (landing.manifest.digest, landing.plan.digest):
        raise Mismatch("the source's receipt is of another manifest or plan", reason="RECEIPT_MISMATCH")


def require_attested(session: Session, landing: Landing, source: Receipt) -> None:
    """Refuse a source receipt that differs from what was attested here; the staged copy stays."""
    chunks = landing.plan.chunks(session.require_copy().slot.layout.region_bytes)
    if landing.receipt is None:
        raise WrongState("the staged copy has no receipt", reason="NOT_ATTESTED")
    try:
        require_match(source, landing.receipt, chunks)
    except DataLoss as error:
        # No byte of the slot was looked at: this is not the final refusal that DataLoss means to the caller.
        raise Mismatch(error.message, reason="RECEIPT_MISMATCH", numbers=error.numbers) from None
