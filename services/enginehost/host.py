"""One engine host: its parts, and what all verbs ask of it first."""

from __future__ import annotations

import functools
import resource
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from enginehost.charge import Budget
from enginehost.cpu import Cpu
from enginehost.device import Device, Memory
from enginehost.fingerprint import Fingerprints
from enginehost.loading import Ahead
from enginehost.motion import made_of
from enginehost.ownership import check_fence
from enginehost.regions import Regions
from enginehost.scheduler import Scheduler
from enginehost.session import Session
from enginehost.sessions import Sessions
from enginehost.settings import EngineHostSettings
from enginehost.staging import Staging
from enginehost.stream import ended
from enginehost.warm_slots import WarmSlots
from enginehost.warmth import Warmth
from worldline import telemetry
from worldline.contract import Contract
from worldline.engine import Engine, Preset, preset_of
from worldline.errors import Exhausted, NotFound, Unavailable
from worldline.layout import Layout
from worldline.made import Made
from worldline.manifest import Manifest
from worldline.move import Fence
from worldline.plan import Plan
from worldline.receipt import Receipt, Side, whole_crc

# Descriptors that are not slots': the process's own, connections, regions on their way to movers.
RESERVED_FDS = 256
# What a heartbeat may report.
MAX_SESSIONS = 10_000
_log = telemetry.log("host")
P = ParamSpec("P")
R = TypeVar("R")


class Host:
    """The parts of one host, put together. `address` fields are known once the server listens."""

    def __init__(
        self,
        settings: EngineHostSettings,
        engines: Mapping[str, Engine],
        incarnation: int,
        device: Device | None = None,
        state_id: str = "",
    ) -> None:
        """Serves on the CPU if no device is given. `state_id`: of the directory that keeps the incarnation."""
        self.settings = settings
        self.device = device or Cpu()
        self.host_id = settings.host_id
        self.incarnation = incarnation
        self.instance_id = uuid.uuid4().hex
        self.state_id = state_id
        self.engines = dict(engines)
        self.budget = Budget(settings.budget_bytes or self.device.budget_bytes())
        self.warm_slots = WarmSlots(self.device, self.budget)
        self.warmth = Warmth()
        self.ahead = Ahead()
        self.staging = Staging(settings.staging_bytes, self.device)
        self.suspended = Staging(settings.suspend_bytes, self.device, "suspend_bytes")
        # What each element of a proven cold leaf holds, by engine and preset, and path; see `enginehost.cold_proof`.
        self.constants: dict[tuple[str, str], Mapping[str, bytes]] = {}
        self.fingerprints = Fingerprints(self.engines, self.device)
        self.sessions = Sessions()
        self.scheduler = Scheduler(settings.torch_threads, self.sessions.settle, self.device.serve)
        self.regions = Regions(settings.regions_dir / f"{settings.host_id}.sock")
        self.streams = threading.BoundedSemaphore(max(1, settings.rpc_threads // 2))
        self.draining = False
        self.ended = False
        # Makes the host talk to its admission at once; set where there is one.
        self.ask_admission: Callable[[], None] = _nobody
        self._told = bool(settings.admission)
        self._term = -1 if self._told else 0
        self._term_lock = threading.Lock()

    # --- whose messages count

    def receipt(
        self, side: Side, fence: Fence, layout: Layout, manifest: Manifest, plan: Plan, chunk_crcs: Sequence[int]
    ) -> Receipt:
        """This host's receipt over a region; both sides bind the same fields, so that they can be compared."""
        return Receipt(
            side=side,
            move_id=fence.move_id,
            epoch=fence.epoch,
            layout_digest=layout.digest,
            manifest_digest=manifest.digest,
            plan_digest=plan.digest,
            size_bytes=layout.region_bytes,
            chunk_crcs=tuple(chunk_crcs),
            state_crc=whole_crc(plan.chunks(layout.region_bytes), chunk_crcs),
            host_id=self.host_id,
            incarnation=self.incarnation,
        )

    def check(self, fence: Fence) -> None:
        """Refuse a stale fence, and one of a term that admission has not told. Raises StaleFence, Unavailable."""
        with self._term_lock:
            term = self._term
        try:
            check_fence(fence, self.incarnation, term, told=self._told)
        except Unavailable:
            self.ask_admission()
            raise

    def accepted(self, fence: Fence) -> None:
        """A message was done. Without admission, its controller outranks older ones from now on."""
        if not self._told:
            with self._term_lock:
                self._term = max(self._term, fence.term)

    def admission_term(self, term: int, *, registered: bool) -> None:
        """What admission answered. A registration counts also downwards: the journal may have been replaced."""
        with self._term_lock:
            self._term = term if registered else max(self._term, term)

    # --- what is taken

    def engine(self, name: str, preset: str) -> tuple[Engine, Preset]:
        """An engine and one of its presets. Raises NotFound with the names there are."""
        engine = self.engines.get(name)
        if engine is None:
            raise NotFound(
                f"this host serves no engine {name[:64]!r}; it serves {', '.join(sorted(self.engines)) or 'none'}",
                reason="UNKNOWN_ENGINE",
                resource=("engine", name[:64]),
            )
        return engine, preset_of(engine, preset)

    def slot_memory(self, session_id: str, size_bytes: int, what: str) -> Memory:
        """Memory for a slot, allocated ahead if there is any. Raises Exhausted, naming `what` needs it."""
        return self.warm_slots.memory(session_id, size_bytes, lambda: self.budget.reserve(size_bytes, what))

    def made(self, engine: Engine, preset: Preset, layout: Layout) -> tuple[Made, ...]:
        """What moves of such a session may make at the destination instead of sending it."""
        return made_of(layout, self.constants.get((engine.name, preset.name), {}))

    def require_open(self) -> None:
        """Refuse new sessions and slots while draining. Raises Unavailable."""
        if self.draining:
            raise Unavailable(f"engine host {self.host_id} is draining", reason="DRAINING", retry_after_s=1.0)

    def require_room(self) -> None:
        """Refuse a further slot where descriptors could run out. Raises Exhausted."""
        held, limit = self.sessions.count(), max_sessions(self.settings)
        if held >= limit:
            raise Exhausted(
                f"engine host {self.host_id} holds {held} sessions and staged copies, and {limit} at most "
                "(RLIMIT_NOFILE less a reserve): move some away, or raise the limit of open files",
                reason="MAX_SESSIONS",
                numbers={"held": held, "limit": limit},
                violations={"sessions": f"at most {limit}"},
                retry_after_s=1.0,
            )

    def freeze_limit_s(self, contract: Contract) -> float:
        """Longest freeze that a session of this contract bears, in seconds."""
        if contract.has_deadline:
            return contract.horizon_s + self.settings.grace_s
        return self.settings.max_freeze_s

    def thaw(self, session: Session, move_id: str) -> None:
        """The freeze lasted too long: the session goes on by itself."""
        with session.cond:
            thawed = session.ownership.thaw(move_id)
            if thawed is session.ownership:
                return
            session.ownership, session.freeze = thawed, None
        self.regions.revoke(move_id)
        session.unstage(move_id)
        _log.warning("resumed by the freeze timer", session_id=session.session_id, move_id=move_id)
        self.scheduler.wake(session)

    def end_all(self, reason: str) -> None:
        """Stop playing at once and tell every player why."""
        self.draining = self.ended = True
        self.scheduler.stop()
        for session in self.sessions.held():
            with session.cond:
                stream = session.stream
                timer, session.freeze_timer = session.freeze_timer, None
            if timer is not None:
                timer.cancel()
            if stream is not None:
                stream.finish(ended(reason))


class _Verbs(Protocol):
    _host: Host


V = TypeVar("V", bound=_Verbs)


def fenced(verb: Callable[Concatenate[V, Fence, P], R]) -> Callable[Concatenate[V, Fence, P], R]:
    """A verb of a move: refused if its fence is stale; a term counts only once its message was done."""

    @functools.wraps(verb)
    def checked(self: V, fence: Fence, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._host.check(fence)
        answer = verb(self, fence, *args, **kwargs)
        self._host.accepted(fence)
        return answer

    return checked


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: every slot holds one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_sessions(settings: EngineHostSettings) -> int:
    """Slots that the limit of open files leaves room for, each call's own descriptors set aside."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_SESSIONS
    return max(0, min(MAX_SESSIONS, soft - RESERVED_FDS - 2 * settings.rpc_threads))


def _nobody() -> None:
    """There is no admission to ask."""
