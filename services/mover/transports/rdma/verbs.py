"""The verbs that this transport uses, over pyverbs, with plain types: nothing else imports pyverbs.

Work and receive requests are made once and changed in place: pyverbs does not free their scatter-gather lists.
pyverbs calls hold the GIL, so each of them is short; the kernel's part of a wait is never inside one: whoever waits
for completions polls the completion channel's descriptor, and asks pyverbs only when it is readable.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from worldline.errors import Exhausted, Unavailable, Unsupported

try:
    import pyverbs.enums as e
except ImportError:  # renamed in later releases
    import pyverbs.libibverbs_enums as e

LOCAL_READ = 0
BINDABLE = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
REMOTE_WRITE = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
WINDOW_FLAGS = (1 << 23) | (1 << 24)  # IBV_DEVICE_MEM_WINDOW_TYPE_2A, _2B
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PORT_ACTIVE = int(e.IBV_PORT_ACTIVE)
STATUS_NAMES = {
    int(getattr(e, name)): name.removeprefix("IBV_WC_")
    for name in dir(e)
    if name == "IBV_WC_SUCCESS" or (name.startswith("IBV_WC_") and name.endswith("_ERR"))
}
SUCCESS = int(e.IBV_WC_SUCCESS)
_RECEIVE_BIT = 1 << 62
_DESCRIPTORS = "/proc/self/fd"
_CHANNEL_LINK = "anon_inode:[infinibandevent]"
_channels = threading.Lock()
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


@dataclass(frozen=True, slots=True)
class Completion:
    """One work request that is over: `number` as it was posted; `immediate` of a peer's write."""

    number: int
    status: int
    received: bool
    immediate: int


@contextmanager
def _calling(what: str, device: str) -> Iterator[None]:
    """Turn what the kernel refuses into our errors."""
    try:
        yield
    except PyverbsError as error:
        code = int(getattr(error, "error_code", -1))
        if code in (errno.ENOMEM, errno.EAGAIN):
            raise Exhausted(
                f"{what} on {device} was refused for lack of memory that may be pinned ({error}): raise the memlock "
                "limit of this process (ulimit -l unlimited, or --ulimit memlock=-1 for a container)",
                reason="RDMA_MEMORY_LIMIT",
            ) from None
        if code in (errno.EFAULT, errno.EOPNOTSUPP, errno.EPERM):
            raise Unsupported(
                f"{what} on {device} is not possible ({error}): the device cannot reach this memory. Device memory is "
                "moved by way of a pinned region in host memory",
                reason="RDMA_MEMORY_UNSUPPORTED",
            ) from None
        raise Unavailable(f"{what} on {device} failed: {error}", reason="RDMA_CALL_FAILED") from None


class Domain:
    """A protection domain: a queue pair of it reaches memory registered in it, and no other."""

    def __init__(self, context: Context, device: str) -> None:
        """Raises Unavailable, Exhausted."""
        self._device = device
        with _calling("allocating a protection domain", device):
            self.raw = PD(context)

    def close(self) -> None:
        """Free it; nothing of it may be left."""
        with _calling("freeing a protection domain", self._device):
            self.raw.close()


class Verbs:
    """An open device with the protection domain of all that is not given another."""

    def __init__(self, device: str) -> None:
        """Raises Unavailable: the device cannot be opened."""
        self.device = device
        with _calling("opening", device):
            self._context = Context(name=device)
            self._domain = Domain(self._context, device)
            attributes = self._context.query_device()
        self.max_segment_bytes = int(attributes.max_mr_size)
        self.has_windows = bool(int(attributes.device_cap_flags) & WINDOW_FLAGS)

    def port(self, number: int) -> tuple[int, int, int]:
        """State, MTU as the verbs number it, longest message in bytes."""
        with _calling("querying its port", self.device):
            port = self._context.query_port(number)
        return int(port.state), int(port.active_mtu), int(port.max_msg_sz)

    def gid(self, port: int, index: int) -> str:
        """A GID in its textual form."""
        with _calling(f"querying GID {index}", self.device):
            return str(self._context.query_gid(port, index)).strip()

    def domain(self) -> Domain:
        """A protection domain of its own. Raises Unavailable, Exhausted."""
        return Domain(self._context, self.device)

    def register(self, address: int, size_bytes: int, access: int, domain: Domain | None = None) -> Segment:
        """Pin and register memory. Raises Exhausted, Unsupported."""
        with _calling(f"registering {size_bytes} bytes", self.device):
            pd = (domain or self._domain).raw
            return Segment(MR(pd, size_bytes, access, address=address), address, size_bytes)

    def window(self) -> Window:
        """A memory window of type 2, not bound yet."""
        with _calling("allocating a memory window", self.device):
            return Window(MW(self._domain.raw, e.IBV_MW_TYPE_2))

    def pair(self, depth: int, receives: int, *, events: bool = False, domain: Domain | None = None) -> Pair:
        """A reliable queue pair of `depth` sends and `receives` receives, with its completion queue.

        `events`: completions can be waited for by a descriptor. Raises Unavailable, Exhausted, Unsupported.
        """
        channel = Channel(self._context, self.device) if events else None
        try:
            with _calling("making a queue pair", self.device):
                queue = CQ(self._context, depth + receives, None, channel.raw if channel else None, 0)
                try:
                    cap = QPCap(max_send_wr=depth, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
                    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=queue, rcq=queue, cap=cap, sq_sig_all=0)
                    return Pair(self.device, channel, queue, QP((domain or self._domain).raw, init))
                except BaseException:
                    queue.close()
                    raise
        except BaseException:
            if channel is not None:
                channel.close()
            raise

    def close(self) -> None:
        """Close the device; everything made from it must be closed."""
        self._domain.close()
        with _calling("closing", self.device):
            self._context.close()


class Segment:
    """One registered piece of memory."""

    def __init__(self, registered: MR, address: int, size_bytes: int) -> None:
        self._registered = registered
        self.address = address
        self.size_bytes = size_bytes
        self.local_key = int(registered.lkey)
        self.remote_key = int(registered.rkey)

    @property
    def raw(self) -> MR:
        """For a bind."""
        return self._registered

    def close(self) -> None:
        """Deregister and unpin."""
        with _calling("deregistering", "the device"):
            self._registered.close()


class Window:
    """A memory window: access for one queue pair's peer, until `close`."""

    def __init__(self, window: MW) -> None:
        self.raw = window

    def close(self) -> None:
        """Take the access away."""
        with _calling("freeing a memory window", "the device"):
            self.raw.close()


class Channel:
    """A completion channel; `descriptor` is readable when something has completed since the queue was armed.

    pyverbs does not tell the descriptor: it is the one of its kind that appears when the channel is made.
    """

    def __init__(self, context: Context, device: str) -> None:
        """Raises Unsupported: the descriptor is not to be found."""
        with _channels, _calling("making a completion channel", device):
            before = _channel_descriptors()
            self.raw = CompChannel(context)
            made = _channel_descriptors() - before
            if len(made) != 1:
                self.raw.close()
                raise Unsupported(
                    f"{device}: {len(made)} descriptors of completion channels appeared where one was made: set "
                    "rdma_completions to poll",
                    reason="RDMA_NO_EVENTS",
                )
        (self.descriptor,) = made
        os.set_blocking(self.descriptor, False)

    def close(self) -> None:
        """Close it; its queue must be closed."""
        with _channels, _calling("closing a completion channel", "the device"):
            self.raw.close()


def _channel_descriptors() -> set[int]:
    found = set()
    for name in os.listdir(_DESCRIPTORS):
        try:
            if os.readlink(f"{_DESCRIPTORS}/{name}") == _CHANNEL_LINK:
                found.add(int(name))
        except FileNotFoundError:
            continue  # closed meanwhile, as the listing's own is
    return found


@dataclass(frozen=True, slots=True)
class Route:
    """What connects a queue pair to its peer; MTU as the verbs number it."""

    port: int
    gid_index: int
    traffic_class: int
    service_level: int
    mtu: int
    timeout_exponent: int
    retry_count: int
    rnr_retry_count: int


class Pair:
    """A reliable queue pair and its completion queue. One thread at a time, but for `fail`."""

    def __init__(self, device: str, channel: Channel | None, queue: CQ, pair: QP) -> None:
        self._device = device
        self._channel = channel
        self._queue = queue
        self._pair = pair
        self.number = int(pair.qp_num)
        self._element = SGE(0, 0, 0)
        self._write = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[self._element])
        self._write.close()  # its own list; from here on it uses the element
        self._write.sg_list = self._element
        self._receive: RecvWR | None = None

    def connect(self, route: Route, gid: str, number: int, own_psn: int, peer_psn: int) -> None:
        """Bring the pair to its working state."""
        attributes = QPAttr(port_num=route.port)
        attributes.qp_access_flags = REMOTE_WRITE
        attributes.path_mtu = route.mtu
        attributes.dest_qp_num = number
        attributes.rq_psn, attributes.sq_psn = peer_psn, own_psn
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
        attributes.min_rnr_timer = 12  # 0.64 ms
        attributes.timeout, attributes.retry_cnt = route.timeout_exponent, route.retry_count
        attributes.rnr_retry = route.rnr_retry_count
        with _calling("connecting a queue pair", self._device):
            grh = GlobalRoute(
                dgid=GID(gid), sgid_index=route.gid_index, hop_limit=64, traffic_class=route.traffic_class
            )
            attributes.ah_attr = AHAttr(gr=grh, is_global=1, port_num=route.port, sl=route.service_level)
            self._pair.to_rts(attributes)

    def post_write(
        self, number: int, address: int, size_bytes: int, local_key: int, remote: int, key: int, *, signaled: bool
    ) -> None:
        """Write local memory to `remote`."""
        self._post(number, address, size_bytes, local_key, remote, key, e.IBV_WR_RDMA_WRITE, signaled)

    def post_write_with_immediate(
        self, number: int, address: int, size_bytes: int, local_key: int, remote: int, key: int, immediate: int
    ) -> None:
        """The same, and wake the peer's receive with a number of 32 bits once all earlier writes lie there."""
        self._write.imm_data = socket.htonl(immediate)
        self._post(number, address, size_bytes, local_key, remote, key, e.IBV_WR_RDMA_WRITE_WITH_IMM, True)

    def _post(
        self,
        number: int,
        address: int,
        size_bytes: int,
        local_key: int,
        remote: int,
        key: int,
        opcode: int,
        signaled: bool,
    ) -> None:
        request, element = self._write, self._element
        element.addr, element.length, element.lkey = address, size_bytes, local_key
        request.wr_id = number
        request.opcode = opcode
        request.send_flags = e.IBV_SEND_SIGNALED if signaled else 0
        request.set_wr_rdma(key, remote)
        with _calling("posting a write", self._device):
            self._pair.post_send(request)

    def post_bind(self, number: int, window: Window, segment: Segment) -> int:
        """Bind a window over a segment for this pair's peer alone. Returns the key that opens it."""
        info = MWBindInfo(segment.raw, segment.address, segment.size_bytes, e.IBV_ACCESS_REMOTE_WRITE)
        request = SendWR(wr_id=number, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        try:
            request.set_bind_wr(window.raw, info)
            with _calling("binding a memory window", self._device):
                self._pair.post_send(request)
            return int(request.rkey)
        finally:
            request.close()

    def post_receive(self, address: int, size_bytes: int, local_key: int) -> None:
        """Let one more write with an immediate come; the memory is never written."""
        if self._receive is None:
            element = SGE(address, size_bytes, local_key)
            self._receive = RecvWR(wr_id=_RECEIVE_BIT, num_sge=1, sg=[element])
            element.close()
        with _calling("posting a receive", self._device):
            self._pair.post_recv(self._receive)

    def poll(self, most: int = 32) -> list[Completion]:
        """What is over; does not wait."""
        with _calling("polling", self._device):
            count, entries = self._queue.poll(most)
        if not count:
            return []
        return [
            Completion(
                int(entry.wr_id) & ~_RECEIVE_BIT,
                int(entry.status),
                bool(int(entry.wr_id) & _RECEIVE_BIT),
                socket.ntohl(int(entry.imm_data) & 0xFFFFFFFF),
            )
            for entry in entries
        ]

    @property
    def descriptor(self) -> int | None:
        """Readable when something completes after `arm`; None for a pair without events."""
        return None if self._channel is None else self._channel.descriptor

    def arm(self) -> None:
        """Have the next completion make the descriptor readable; what is there already does not."""
        with _calling("arming a completion queue", self._device):
            self._queue.req_notify()

    def disarm(self) -> None:
        """Take the event that has made the descriptor readable."""
        if self._channel is not None:
            with _calling("taking a completion event", self._device):
                self._channel.raw.get_cq_event(self._queue)
                self._queue.ack_events(1)

    def fail(self) -> None:
        """Move to the error state: from now on nothing comes in and nothing goes out."""
        with _calling("stopping a queue pair", self._device):
            self._pair.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def timeout_exponent(self) -> int:
        """What the live pair says of its own timeout."""
        with _calling("querying a queue pair", self._device):
            attributes, _ = self._pair.query(e.IBV_QP_TIMEOUT)
        return int(attributes.timeout)

    def close(self) -> None:
        """Destroy both."""
        if self._receive is not None:
            self._receive.close()
            self._receive = None
        self._element.close()
        with _calling("destroying a queue pair", self._device):
            self._pair.close()
            self._queue.close()
        if self._channel is not None:
            self._channel.close()


def mtu_number(size_bytes: int) -> int:
    """An MTU as the verbs number it. Raises Unsupported."""
    for number, known in _MTU_BYTES.items():
        if known == size_bytes:
            return number
    raise Unsupported(f"rdma_mtu {size_bytes} is none of {', '.join(map(str, _MTU_BYTES.values()))}")
