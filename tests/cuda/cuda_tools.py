"""What the tests on a GPU share: devices, hosts in this process, and moves between them driven by hand."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from enginehost.cuda.device import CudaDevice
from enginehost.destination import Destination
from enginehost.engines.window_rewrite import WindowRewriteEngine
from enginehost.host import Host
from enginehost.lifecycle import Lifecycle, Wanted
from enginehost.session import Session
from enginehost.settings import EngineHostSettings
from enginehost.shadow import PullFrom
from enginehost.source import Source
from worldline.manifest import Manifest
from worldline.move import Fence, RegionRef
from worldline.plan import Placement, Plan
from worldline.receipt import Receipt
from worldline.settings import load

PLAN = Plan("local", 64 << 10, 1, Placement.DEVICE, 10.0, 3.0, 3.0, tail_bytes=(5_000, 77))


@cache
def device(ordinal: int) -> CudaDevice:
    """A GPU, opened once a test process."""
    return CudaDevice(ordinal)


def first_and_last() -> tuple[CudaDevice, CudaDevice]:
    """Two GPUs; the same one twice on a machine that has one."""
    return device(0), device(torch.cuda.device_count() - 1)


class CudaHost:
    """A whole host on a GPU in this process, without gRPC."""

    def __init__(self, directory: Path, host_id: str, on: CudaDevice, **values: object) -> None:
        settings = load(
            EngineHostSettings,
            host_id=host_id,
            state_dir=directory / "state",
            regions_dir=directory,
            device=str(on.torch_device),
            budget_bytes=64 << 20,
            fault_injection=True,
            **values,
        )
        engine = WindowRewriteEngine()
        engine.use_device(on.torch_device)
        self.host = Host(settings, {engine.name: engine}, 1, on)
        self.host.regions.start()
        self.host.scheduler.start()
        self.life = Lifecycle(self.host)
        self.life.start()
        self.source = Source(self.host)
        self.destination = Destination(self.host)

    def create(self, seed: int = 1) -> Session:
        """A live session of preset `tiny`."""
        wanted = Wanted("window-rewrite", "tiny", seed, None, "")
        return self.life.create(str(uuid.uuid4()), wanted, 10.0)[0]

    def close(self) -> None:
        """End it; its memory is given back."""
        self.host.end_all("DRAINING")
        self.life.stop()
        for session in self.host.sessions.held():
            session.let_go()
        self.host.regions.close()
        self.host.suspended.close()


class ByHand:
    """A move between two hosts of this process."""

    def __init__(
        self, source: CudaHost, destination: CudaHost, session: Session, epoch: int = 1, plan: Plan = PLAN
    ) -> None:
        self.source, self.destination, self.session_id, self.plan = source, destination, session.session_id, plan
        self.fence = Fence(str(uuid.uuid4()), session.session_id, epoch, 1, 1)

    def stage(self) -> None:
        """Register, and stage with the source's region mapped."""
        registered = self.source.source.register(self.session_id, self.fence, self.plan)
        region = RegionRef(self.source.host.host_id, registered.ticket, registered.device_id)
        self.destination.destination.stage(
            self.fence,
            registered.layout,
            registered.descriptor,
            registered.fingerprint,
            10.0,
            PullFrom(region, self.plan),
            self.plan,
        )

    def freeze(self) -> Manifest:
        """Freeze the source."""
        return self.source.source.freeze(self.fence, 3.0, 10.0).manifest

    def pull(self, flip: Collection[int] = ()) -> list[int]:
        """Pull everything. Returns the slot's checksums."""
        return self.destination.destination.pull(
            self.fence, self.plan, (), flip=frozenset(flip), wanted=lambda: True, timeout_s=10.0
        ).crcs

    def receipts(self) -> Receipt:
        """All up to both receipts. Returns the source's."""
        self.stage()
        manifest = self.freeze()
        pulled = self.pull()
        crcs = list(self.source.source.checksum(self.fence, self.plan, 10.0).chunk_crcs)
        assert crcs == pulled
        self.destination.destination.attest(self.fence, manifest, self.plan, crcs, 10.0)
        return self.source.source.attest(self.fence, manifest, self.plan, crcs)

    def take(self, receipt: Receipt) -> Session:
        """Release and commit. Returns the session there."""
        grant = self.source.source.release(self.fence)
        assert grant is not None
        self.destination.destination.commit(self.fence, grant, receipt, 10.0)
        return self.destination.destination.activate(self.fence)


@contextmanager
def two_hosts(directory: Path, **values: object) -> Iterator[tuple[CudaHost, CudaHost]]:
    """Hosts on the first and the last GPU."""
    here, there = first_and_last()
    first = CudaHost(directory, "host-a", here, **values)
    try:
        second = CudaHost(directory, "host-b", there, **values)
        try:
            yield first, second
        finally:
            second.close()
    finally:
        first.close()


def content(session: Session) -> bytes:
    """Every byte of the slot."""
    slot = session.require_copy().slot
    with slot.device.aside():
        return bytes(slot.arena.tensor().cpu().numpy())


def free_bytes(on: CudaDevice) -> int:
    """What the driver has free, apart from what torch keeps."""
    torch.cuda.synchronize(on.ordinal)
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(on.ordinal)[0])
