"""Registered memory: each region is pinned and registered once and kept, within a bound of bytes, for its next move.

What is kept lets nobody in: a peer's access is a memory window or a registration of one move, and dies with it. A kept
registration holds its memory's pages even when the engine host gives them back, so that is looked for and ended.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from mover.memory import SharedMapping
from mover.transports.rdma.verbs import BINDABLE, LOCAL_READ, REMOTE_WRITE, Domain, Segment, Verbs
from worldline.buffers import address_of
from worldline.errors import Internal, Unsupported, WorldlineError

_SWEEP_S = 1.0
_BLOCK_BYTES = 512
_Key = tuple[int, int, int]


class Registered:
    """Memory that the device may reach, as segments of equal size but for the last."""

    def __init__(self, segments: tuple[Segment, ...], size_bytes: int) -> None:
        self.segments = segments
        self.size_bytes = size_bytes
        self._step = segments[0].size_bytes

    def pieces(self, offset: int, size_bytes: int, longest: int) -> Iterator[tuple[int, int, int]]:
        """(address, local key, bytes) of a stretch, cut where segments end and at `longest` bytes."""
        while size_bytes:
            index, inside = divmod(offset, self._step)
            segment = self.segments[index]
            size = min(size_bytes, segment.size_bytes - inside, longest)
            yield segment.address + inside, segment.local_key, size
            offset, size_bytes = offset + size, size_bytes - size

    def close(self) -> None:
        """Deregister all of it."""
        for segment in self.segments:
            segment.close()


def register(
    verbs: Verbs, address: int, size_bytes: int, access: int, segment_bytes: int, domain: Domain | None = None
) -> Registered:
    """Register memory in segments, so that other threads run between two of them. Raises Exhausted, Unsupported."""
    segments: list[Segment] = []
    try:
        for at in range(0, size_bytes, segment_bytes):
            segments.append(verbs.register(address + at, min(segment_bytes, size_bytes - at), access, domain))
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return Registered(tuple(segments), size_bytes)


@dataclass
class _Kept:
    registered: Registered
    descriptor: int
    writable: bool
    users: int = 0

    def given_back(self) -> bool:
        """Whether the memory's owner has removed pages of it, so that what is registered is no longer it."""
        return os.fstat(self.descriptor).st_blocks * _BLOCK_BYTES < self.registered.size_bytes

    def close(self) -> None:
        self.registered.close()
        os.close(self.descriptor)


class Regions:
    """The registrations of one device. Safe from any thread."""

    def __init__(self, verbs: Verbs, segment_bytes: int, cache_bytes: int, *, windows: bool) -> None:
        """`windows`: peers are let in by memory windows, so that a destination's registration may be kept."""
        self.registrations = 0
        self._verbs = verbs
        self._segment_bytes = segment_bytes
        self._cache_bytes = cache_bytes
        self._windows = windows
        self._changed = threading.Condition()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._single: set[Registered] = set()
        self._closed = False
        self._sweeper = threading.Thread(target=self._sweep, name="rdma-regions", daemon=True)
        self._sweeper.start()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the registrations that outlive their moves."""
        with self._changed:
            return sum(kept.registered.size_bytes for kept in self._kept.values())

    @property
    def in_use(self) -> int:
        """Registrations that moves hold now."""
        with self._changed:
            return len(self._single) + sum(1 for kept in self._kept.values() if kept.users)

    def acquire(self, view: memoryview, *, writable: bool, domain: Domain | None = None) -> Registered:
        """The registration of a region, made now or kept from before. Raises Exhausted, Unsupported.

        `domain` is for registrations that let a peer in, which are never kept.
        """
        access = LOCAL_READ if not writable else BINDABLE if self._windows else REMOTE_WRITE
        mapping = view.obj
        with self._changed:
            if not isinstance(mapping, SharedMapping) or access == REMOTE_WRITE:
                return self._register_single(view, access, domain)
            status = os.fstat(mapping.descriptor)
            key = (status.st_dev, status.st_ino, view.nbytes)
            kept = self._kept.get(key)
            if kept is not None and (kept.given_back() or (writable and not kept.writable)):
                if kept.users:
                    return self._register_single(view, access)
                self._drop(key)
                kept = None
            if kept is None:
                registered = self._register_shared(view, mapping.descriptor, access)
                kept = self._kept[key] = _Kept(registered, os.dup(mapping.descriptor), writable)
            kept.users += 1
            self._kept.move_to_end(key)
            self._trim()
            return kept.registered

    def register_private(self, view: memoryview, access: int, domain: Domain | None = None) -> Registered:
        """Memory of this transport's own: small, so in one segment, and never kept."""
        with self._changed:
            return self._register_single(view, access, domain, view.nbytes)

    def release(self, registered: Registered) -> None:
        """A move is through with it."""
        with self._changed:
            if registered in self._single:
                registered.close()
                self._single.remove(registered)
                return
            for kept in self._kept.values():
                if kept.registered is registered and kept.users:
                    kept.users -= 1
                    self._trim()
                    self._changed.notify_all()
                    return
        raise Internal("a registration was released that nobody held")

    def close(self) -> None:
        """Deregister everything. Raises Internal if a move still holds something."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sweeper.join()
        with self._changed:
            held = len(self._single) + sum(1 for kept in self._kept.values() if kept.users)
            if held:
                raise Internal(f"{held} registrations are still held", reason="REGION_IN_USE")
            for key in list(self._kept):
                self._drop(key)

    def _register_single(
        self, view: memoryview, access: int, domain: Domain | None = None, segment_bytes: int = 0
    ) -> Registered:
        registered = self._register(view, access, domain, segment_bytes)
        self._single.add(registered)
        return registered

    def _register_shared(self, view: memoryview, descriptor: int, access: int) -> Registered:
        try:
            return self._register(view, access)
        except Unsupported:
            if not view.readonly:
                raise
        # Linux before 6.2 pins shared memory only through a mapping that may be written. There is one for this moment;
        # nothing writes through it, and the device is given no more than read access.
        try:
            descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Unsupported(
                f"this kernel cannot pin memory that is shared read-only, nor may it be opened anew ({error}): "
                "use Linux 6.2 or later, or run mover and engine host as one user",
                reason="RDMA_MEMORY_UNSUPPORTED",
            ) from None
        try:
            with mmap.mmap(descriptor, view.nbytes) as mapping, memoryview(mapping) as writable:
                return self._register(writable, access)
        finally:
            os.close(descriptor)

    def _register(
        self, view: memoryview, access: int, domain: Domain | None = None, segment_bytes: int = 0
    ) -> Registered:
        self.registrations += 1
        step = segment_bytes or self._segment_bytes
        return register(self._verbs, address_of(view), view.nbytes, access, step, domain)

    def _trim(self) -> None:
        """Drop what is idle: all that was given back, and the oldest beyond the bound."""
        total = sum(kept.registered.size_bytes for kept in self._kept.values())
        for key, kept in list(self._kept.items()):
            if not kept.users and (total > self._cache_bytes or kept.given_back()):
                total -= kept.registered.size_bytes
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self._kept[key].close()
        del self._kept[key]

    def _sweep(self) -> None:
        with self._changed:
            while not self._closed:
                idle = any(not kept.users for kept in self._kept.values())
                self._changed.wait(_SWEEP_S if idle else None)
                with suppress(WorldlineError):  # the device is gone: the next move on it says so
                    self._trim()
