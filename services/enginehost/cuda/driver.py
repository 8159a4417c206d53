"""The calls of the CUDA driver that slots, checksums and pulls need, with our errors instead of status codes.

torch has no way to allocate memory that another process can map by a file descriptor, to map such memory, or to
launch a kernel that is no Triton one; `cuda-bindings` (NVIDIA's own) has. Streams are torch's, addresses plain numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from worldline.errors import Exhausted, Internal, Unsupported


def _bindings(name: str) -> ModuleType:
    try:
        return import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise Unsupported(
            f"a host on a GPU needs cuda-bindings, which cannot be imported here ({error}): "
            "pip install 'worldline[cuda]'",
            reason="CUDA_NO_BINDINGS",
        ) from None


# The bindings tell no types: what they answer is checked here, at this one place.
_cuda: Any = _bindings("driver")


def _done(answer: Any, what: str) -> Any:  # noqa: ANN401
    """The value of an answer. Raises Exhausted or Internal."""
    status, *values = answer
    if status != _cuda.CUresult.CUDA_SUCCESS:
        _, name = _cuda.cuGetErrorName(status)
        text = f"{what} failed: {name.decode() if isinstance(name, bytes) else status}"
        if status == _cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise Exhausted(text, reason="OUT_OF_MEMORY")
        raise Internal(text, reason="CUDA_FAILED")
    return values[0] if len(values) == 1 else values


def use(ordinal: int) -> None:
    """Make the device the calling thread's, and torch's context of it the current one."""
    torch.cuda.set_device(ordinal)
    _done(_cuda.cuCtxSetCurrent(_context(ordinal)), f"using device {ordinal}")


@cache
def _context(ordinal: int) -> Any:  # noqa: ANN401
    """The context that torch uses, kept for the process's life."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return _done(_cuda.cuDevicePrimaryCtxRetain(_device(ordinal)), f"opening device {ordinal}")


class _Foreign:
    """Memory of ours as torch takes it over without a copy."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor(address: int, size_bytes: int, ordinal: int) -> torch.Tensor:
    """Device memory as uint8; whoever holds the tensor does not hold the memory."""
    return torch.as_tensor(_Foreign(address, size_bytes), device=torch.device("cuda", ordinal))


def device_uuid(ordinal: int) -> str:
    """The device's own id, the same in every process."""
    return str(torch.cuda.get_device_properties(ordinal).uuid)


def driver_version() -> int:
    """Of CUDA, as the driver supports it: 13000 is 13.0."""
    return int(_done(_cuda.cuDriverGetVersion(), "asking for the driver's version"))


def peer_access(ordinal: int, other: int) -> bool:
    """Whether a device may map another's memory, as the driver says."""
    return ordinal == other or bool(
        _done(_cuda.cuDeviceCanAccessPeer(_device(ordinal), _device(other)), "asking for peer access")
    )


def _device(ordinal: int) -> Any:  # noqa: ANN401
    return _done(_cuda.cuDeviceGet(ordinal), f"finding device {ordinal}")


# --- memory that can be exported


_FILE_DESCRIPTOR = _cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _properties(ordinal: int) -> Any:  # noqa: ANN401
    properties = _cuda.CUmemAllocationProp()
    properties.type = _cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes = _FILE_DESCRIPTOR
    properties.location.type = _cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    return properties


def granularity_bytes(ordinal: int) -> int:
    """Allocations are multiples of this."""
    wanted = _cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    return int(_done(_cuda.cuMemGetAllocationGranularity(_properties(ordinal), wanted), "asking for the granularity"))


class Mapping:
    """Device memory at `address` of this process: its own, or another process's that was imported."""

    def __init__(self, handle: Any, size_bytes: int, users: Sequence[int], *, writable: bool) -> None:  # noqa: ANN401
        """Map `handle`, which is taken over, for the devices `users`. Raises Exhausted, Internal."""
        flags = _cuda.CUmemAccess_flags
        rights = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        self.size_bytes = size_bytes
        self._handle = handle
        self.address = 0
        self._mapped = False
        try:
            reserved = _done(_cuda.cuMemAddressReserve(size_bytes, 0, 0, 0), "reserving addresses")
            self.address = int(reserved)
            _done(_cuda.cuMemMap(self.address, size_bytes, 0, handle, 0), "mapping device memory")
            self._mapped = True
            allowed = []
            for ordinal in users:
                access = _cuda.CUmemAccessDesc()
                access.location.type = _cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = ordinal
                access.flags = rights
                allowed.append(access)
            _done(_cuda.cuMemSetAccess(self.address, size_bytes, allowed, len(allowed)), "opening device memory")
        except BaseException:
            self.close()
            raise

    def export(self) -> int:
        """A new descriptor of the same memory; it keeps the memory, also when this process has ended."""
        return int(_done(_cuda.cuMemExportToShareableHandle(self._handle, _FILE_DESCRIPTOR, 0), "exporting memory"))

    def close(self) -> None:
        """Unmap; a second time does nothing. Nothing may be using it any more."""
        if self._mapped:
            self._mapped = False
            _done(_cuda.cuMemUnmap(self.address, self.size_bytes), "unmapping device memory")
        if self.address:
            address, self.address = self.address, 0
            _done(_cuda.cuMemAddressFree(address, self.size_bytes), "freeing addresses")
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _done(_cuda.cuMemRelease(handle), "releasing device memory")


def allocate(ordinal: int, size_bytes: int, users: Sequence[int]) -> Mapping:
    """New memory on a device, of a multiple of its granularity. Raises Exhausted."""
    what = f"allocating {size_bytes} bytes on device {ordinal}"
    handle = _done(_cuda.cuMemCreate(size_bytes, _properties(ordinal), 0), what)
    return Mapping(handle, size_bytes, users, writable=True)


def import_memory(descriptor: int, size_bytes: int, users: Sequence[int]) -> Mapping:
    """Another process's memory, for reading, by the descriptor that it exported, which stays the caller's."""
    handle = _done(_cuda.cuMemImportFromShareableHandle(descriptor, _FILE_DESCRIPTOR), "importing device memory")
    return Mapping(handle, size_bytes, users, writable=False)


# --- host memory that devices copy from and to at their full rate


_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE


def pin(address: int, size_bytes: int) -> None:
    """Register host memory of this process with every device. Raises Exhausted, Internal."""
    _done(_cuda.cuMemHostRegister(address, size_bytes, _PORTABLE), f"pinning {size_bytes} bytes of host memory")


def unpin(address: int) -> None:
    """Undo `pin`."""
    _done(_cuda.cuMemHostUnregister(address), "unpinning host memory")


# --- what runs on streams


def copy(to: int, source: int, size_bytes: int, stream: torch.cuda.Stream) -> None:
    """Queue a copy between addresses of any devices or of host memory."""
    _done(_cuda.cuMemcpyAsync(to, source, size_bytes, stream.cuda_stream), "copying")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is loaded on one device."""

    handle: object
    shared_bytes: int

    def launch(
        self, blocks: int, threads: int, stream: torch.cuda.Stream, arguments: Sequence[tuple[int, type]]
    ) -> None:
        """Queue it; each argument is a value and its ctypes type."""
        values = tuple(value for value, _ in arguments)
        types = tuple(kind for _, kind in arguments)
        _done(
            _cuda.cuLaunchKernel(
                self.handle, blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream.cuda_stream, (values, types), 0
            ),
            "launching a kernel",
        )


POINTER: type = ctypes.c_void_p
WHOLE: type = ctypes.c_int


def compile_module(source: Path, ordinal: int, definitions: dict[str, int]) -> object:
    """Compile CUDA C++ for the device and load it. Raises Internal with the compiler's words."""
    nvrtc: Any = _bindings("nvrtc")
    major, minor = torch.cuda.get_device_capability(ordinal)
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--std=c++17"]
    options += [f"-D{name}={value}".encode() for name, value in definitions.items()]
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise Internal(f"{source.name} does not compile for sm_{major}{minor}: {log.decode()}", reason="CUDA_FAILED")
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    binary = b" " * size
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(program)
    return _done(_cuda.cuModuleLoadData(binary), f"loading {source.name}")


def kernel(module: object, name: str, shared_bytes: int = 0) -> Kernel:
    """A kernel of a module, with dynamic shared memory."""
    handle = _done(_cuda.cuModuleGetFunction(module, name.encode()), f"finding {name}")
    if shared_bytes:
        attribute = _cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _done(_cuda.cuFuncSetAttribute(handle, attribute, shared_bytes), f"giving {name} its shared memory")
    return Kernel(handle, shared_bytes)
