"""What both directions of a move share: its data-plane job, its bounds, and the check of a manifest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mover.plane import DataPlane, PlaneJob
from mover.stop import Stop, Watch
from worldline import telemetry
from worldline.errors import Internal, Mismatch, TimedOut, Unavailable, WorldlineError
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fence
from worldline.rpc import Channels

# For a call that has nothing to wait for; nothing is frozen where it is used.
CALL_S = 5.0
# Slower than this no memory is faulted in, unless something is wrong.
_PREFAULT_BPS = 200e6
# However large a stranger says that its region is.
LONGEST_RESERVE_S = 120.0
DATA_PLANE = "data plane of this mover"


def reserve_s(region_bytes: int) -> float:
    """Seconds that reserving or mapping a region may take."""
    return min(CALL_S + region_bytes / _PREFAULT_BPS, LONGEST_RESERVE_S)


class Running:
    """One move at work: where it may look, when it must end."""

    reserve_limit_s = 3_600.0

    def __init__(self, plane: DataPlane, channels: Channels, regions_dir: Path, stop: Stop) -> None:
        self.channels = channels
        self.regions_dir = regions_dir
        self.stop = stop
        self.watch = Watch(stop)
        self._plane = plane
        self._ends_at = float("inf")

    @contextmanager
    def job(self) -> Iterator[PlaneJob]:
        """A job of the data plane; after the block its region is unmapped for certain."""
        job = self._plane.open()
        try:
            yield job
        except BaseException:
            with suppress(Unavailable):  # it was killed, so the region is unmapped: the first error says more
                job.close()
            raise
        job.close()

    @contextmanager
    def beside(self, name: str, work: Callable[[], None]) -> Iterator[None]:
        """`work` on a thread of its own beside the block; what either raises ends the move and with it the other."""
        carrier = telemetry.inject()

        def run() -> None:
            try:
                with telemetry.extracted(carrier):
                    work()
            except WorldlineError as error:
                self.stop.tell(error)
            except Exception as error:
                telemetry.log("mover").exception("unexpected", thread=name)
                self.stop.tell(Internal(f"{name}: {type(error).__name__}: {error}"))

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        try:
            yield
        except WorldlineError as error:
            self.stop.tell(error)
            raise
        finally:
            thread.join()
        self.stop.check()

    def end_by(self, at: float, error: Callable[[], TimedOut]) -> None:
        """The move ends at `at` (monotonic seconds), with `error()`."""
        self._ends_at = at
        self.watch.end_by(at, error)

    @property
    def remaining_s(self) -> float:
        """Seconds left; 0 when it is over."""
        return max(0.0, self._ends_at - time.monotonic())

    def close(self) -> None:
        """Watch no more."""
        self.watch.close()


def require_manifest(
    manifest: Manifest, fence: Fence, layout: Layout, descriptor: Descriptor, fingerprint: Fingerprint
) -> None:
    """Refuse a manifest that is not of this move. Raises Mismatch with every field that differs."""
    pairs: dict[str, tuple[object, object]] = {
        "manifest.session_id": (manifest.session_id, fence.session_id),
        "manifest.epoch": (manifest.epoch, fence.epoch),
        "manifest.layout_digest": (manifest.layout_digest.hex(), layout.digest.hex()),
        "manifest.descriptor_digest": (manifest.descriptor_digest.hex(), descriptor.digest.hex()),
        "manifest.fingerprint_digest": (manifest.fingerprint_digest.hex(), fingerprint.digest.hex()),
    }
    wrong = {name: f"{given}, but the move is of {meant}" for name, (given, meant) in pairs.items() if given != meant}
    if wrong:
        raise Mismatch(
            "the manifest is not of this move: " + "; ".join(f"{name} {what}" for name, what in wrong.items()),
            reason="MANIFEST_MISMATCH",
            violations=wrong,
        )
