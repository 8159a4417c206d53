"""A GPU as the device of a host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from enginehost.charge import Charge
from enginehost.cpu import Cpu
from enginehost.cuda import driver
from enginehost.cuda.arena import CudaArena
from enginehost.cuda.crc import DeviceCrc
from enginehost.cuda.frames import ans_frames
from enginehost.cuda.pull import CudaAttached, HostBuffer, PeerRegion, Source
from enginehost.cuda.self_test import SOUND, peer_verdict
from enginehost.device import Crossing, Frames, Memory
from enginehost.staging import Buffer
from worldline import telemetry
from worldline.errors import Precondition, Unsupported
from worldline.plan import Chunk

_DRIVER = Path("/sys/module/nvidia/version")
_log = telemetry.log("cuda")


class Beside:
    """See `enginehost.device.Crossing`: a stream of its own."""

    def __init__(self, ordinal: int) -> None:
        self._stream = torch.cuda.Stream(ordinal)  # type: ignore[no-untyped-call]

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """See `Crossing`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)

    def mark(self) -> Callable[[], None]:
        """See `Crossing`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event.synchronize


class CudaDevice:
    """See `enginehost.device.Device`. `peers`: id of each GPU that this process sees -> its self-test."""

    def __init__(self, ordinal: int) -> None:
        """Raises Unsupported: there is no such GPU, or the bindings are missing."""
        count = torch.cuda.device_count()
        if ordinal >= count:
            raise Unsupported(
                f"there is no device cuda:{ordinal}: torch {torch.__version__} sees {count} GPUs",
                reason="CUDA_NO_DEVICE",
                numbers={"ordinal": ordinal, "count": count},
            )
        self.ordinal = ordinal
        self.torch_device = torch.device("cuda", ordinal)
        driver.use(ordinal)
        self.device_id = driver.device_uuid(ordinal)
        self._crc = DeviceCrc(ordinal)
        self._copies = torch.cuda.Stream(ordinal)  # type: ignore[no-untyped-call]
        self._ordinals = {driver.device_uuid(other): other for other in range(count)}
        self.peers: Mapping[str, str] = {
            device_id: SOUND if other == ordinal else peer_verdict(ordinal, other, self._crc)
            for device_id, other in self._ordinals.items()
        }
        self.frames: Frames | None = ans_frames(ordinal, self._copies)
        for device_id, verdict in self.peers.items():
            tell = _log.info if verdict == SOUND else _log.warning
            tell("peer access tested", device=self.device_id, peer=device_id, verdict=verdict)

    def budget_bytes(self) -> int:
        """Seven eighths of what the driver has free: the rest is for weights, scratch and workspaces."""
        free_bytes, _ = torch.cuda.mem_get_info(self.ordinal)
        return int(free_bytes) * 7 // 8

    def fields(self) -> Mapping[str, str]:
        """What the CPU's say, since generators and scalars are computed there, and the GPU and its libraries."""
        properties = torch.cuda.get_device_properties(self.ordinal)
        cudnn = torch.backends.cudnn
        return {
            **Cpu().fields(),
            "device": "cuda",
            "gpu": properties.name,
            "gpu_capability": f"{properties.major}.{properties.minor}",
            "gpu_multiprocessors": str(properties.multi_processor_count),
            "cuda": str(torch.version.cuda),
            "cuda_driver": str(driver.driver_version()),
            "nvidia_driver": _DRIVER.read_text().strip() if _DRIVER.exists() else "unknown",
            "cudnn": str(cudnn.version()),  # type: ignore[no-untyped-call]
            "cudnn_benchmark": str(cudnn.benchmark).lower(),
            "cudnn_deterministic": str(cudnn.deterministic).lower(),
            "tf32": f"matmul {torch.backends.cuda.matmul.allow_tf32}, cudnn {cudnn.allow_tf32}".lower(),
            "reduced_precision": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction).lower(),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "default"),
        }

    def allocate(self, name: str, size_bytes: int, charge: Charge) -> Memory:
        """One allocation that can be exported."""
        return CudaArena(self.ordinal, size_bytes, charge, self._crc, self._copies)

    def attach(self, descriptor: int, size_bytes: int, device_id: str) -> CudaAttached:
        """See `Device`."""
        if device_id not in self.peers:
            raise Precondition(
                f"the source's region lies on device {device_id or 'cpu'}, which this process does not see; it sees "
                f"{', '.join(self.peers)}: start every host of a node with all of its GPUs visible",
                reason="DEVICE_UNREACHABLE",
                violations={"source_region.device_id": "not visible here"},
            )
        verdict = self.peers[device_id]
        if verdict != SOUND:
            raise Precondition(
                f"device {self.device_id} failed its self-test of peer access with {device_id}: {verdict}",
                reason="PEER_ACCESS_UNSOUND",
                violations={"source_region.device_id": verdict},
            )
        return self._pulled_from(PeerRegion(descriptor, size_bytes, self.ordinal))

    def pin(self, address: int, size_bytes: int) -> None:
        """See `Device`."""
        driver.use(self.ordinal)
        driver.pin(address, size_bytes)

    def unpin(self, address: int) -> None:
        """See `Device`."""
        driver.use(self.ordinal)
        self._copies.synchronize()
        driver.unpin(address)

    def read_from(self, buffer: Buffer) -> CudaAttached:
        """See `Device`."""
        return self._pulled_from(HostBuffer(buffer))

    def _pulled_from(self, source: Source) -> CudaAttached:
        return CudaAttached(source, self.ordinal, self._crc, self._copies)

    @contextmanager
    def crossing(self) -> Iterator[Crossing]:
        """See `Device`."""
        beside = Beside(self.ordinal)
        try:
            yield beside
        finally:
            # Whatever happened: nothing reads or writes host memory or the slot after this.
            beside.mark()()
            self.settle()

    def checksums(self, address: int, chunks: Sequence[Chunk]) -> list[int]:
        """See `Device`."""
        filled = [chunk for chunk in chunks if chunk.size_bytes]
        found = iter(self._crc.crcs(address, filled).chunks if filled else ())
        return [next(found) if chunk.size_bytes else 0 for chunk in chunks]

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """The checksums' schedule, on the device."""
        self._crc.prepare(chunks)

    def serve(self) -> None:
        """Make the GPU the calling thread's."""
        driver.use(self.ordinal)

    def settle(self) -> None:
        """Wait for what the calling thread's stream has."""
        torch.cuda.current_stream(self.ordinal).synchronize()

    def aside(self) -> AbstractContextManager[object]:
        """On the host's own stream."""
        driver.use(self.ordinal)
        return torch.cuda.stream(self._copies)

    def close(self) -> None:
        """The process ends with it."""
