"""Sessions come and go without a move: creation, closing, and what happens to those that everybody has left."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from enginehost import tree
from enginehost.charge import Charge
from enginehost.host import Host
from enginehost.loading import load
from enginehost.ownership import State
from enginehost.session import Copy, Session
from enginehost.slots import Slot
from enginehost.stream import ended
from enginehost.suspension import suspend_abandoned
from worldline import telemetry
from worldline.contract import Contract
from worldline.engine import Engine, Preset
from worldline.errors import BadRequest, Internal, TimedOut, Unauthenticated, WorldlineError, WrongState
from worldline.manifest import Descriptor

FIRST_EPOCH = 1
MAX_REQUESTS = 10_000
_log = telemetry.log("lifecycle")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session that is asked for. `session_id` may be empty; no contract: the preset's own."""

    engine: str
    preset: str
    seed: int
    contract: Contract | None
    session_id: str


@dataclass(slots=True)
class _Request:
    wanted: Wanted
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: tuple[Session, str] | None = None


class Lifecycle:
    """Creates and closes sessions; a thread of its own ends what everybody has left: sessions and staged copies."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="idle", daemon=True)

    def start(self) -> None:
        """Watch for what was abandoned."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    # --- creating

    def create(self, request_id: str, wanted: Wanted, timeout_s: float) -> tuple[Session, str]:
        """A live session and its resume token; the same request id gives the same one.

        Raises:
            BadRequest: the request id was used for something else.
            Exhausted: the budget does not allow it; nothing was allocated.
            NotFound: no such engine or preset.
            Unmovable: the engine's state has leaves that cannot be moved.
            WrongState: the session id is taken.
        """
        with self._lock:
            request = self._requests.setdefault(request_id, _Request(wanted))
            while len(self._requests) > MAX_REQUESTS:
                self._requests.popitem(last=False)
        if request.wanted != wanted:
            raise BadRequest(
                f"request_id {request_id} was used for another session",
                reason="REQUEST_ID_REUSED",
                violations={"request_id": "used for another session"},
            )
        if not request.lock.acquire(timeout=max(0.0, timeout_s)):
            raise TimedOut(f"request {request_id} was still being worked on after {timeout_s:.3f} s")
        try:
            if request.made is None:
                try:
                    request.made = self._make(wanted, timeout_s)
                except WorldlineError:
                    with self._lock:
                        self._requests.pop(request_id, None)
                    raise
            return request.made
        finally:
            request.lock.release()

    def _make(self, wanted: Wanted, timeout_s: float) -> tuple[Session, str]:
        host = self._host
        host.require_open()
        host.require_room()
        engine, preset = host.engine(wanted.engine, wanted.preset)
        token = secrets.token_urlsafe(32)
        descriptor = Descriptor(
            session_id=wanted.session_id or f"s-{secrets.token_hex(8)}",
            engine=wanted.engine,
            engine_version=engine.version,
            preset=preset.name,
            seed=wanted.seed,
            contract=wanted.contract or preset.contract,
            resume_token_digest=hashlib.sha256(token.encode()).digest(),
        )
        with host.sessions.verb(descriptor.session_id, timeout_s, create=True) as session:
            live = session.ownership.create()
            # The engine's own tree exists beside the slot until it is copied in.
            charge = host.budget.reserve(2 * preset.state_bytes, f"creating a session of {engine.name}/{preset.name}")
            try:
                copy = self._reserve(engine, preset, descriptor, charge)
            finally:
                charge.release()
            try:
                session.install(copy, load(engine, preset, copy.slot), 0)
            except BaseException:
                session.let_go()
                copy.slot.close()
                raise
            with session.cond:
                session.ownership = live
                session.away_since_s = time.monotonic()
        _log.info(
            "created",
            session_id=session.session_id,
            engine=engine.name,
            preset=preset.name,
            region_bytes=copy.slot.layout.region_bytes,
            leaves=len(copy.slot.layout.leaves),
        )
        return session, token

    def _reserve(self, engine: Engine, preset: Preset, descriptor: Descriptor, charge: Charge) -> Copy:
        fingerprint = self._host.fingerprints.of(engine.name, preset.name)
        device = self._host.device
        device.serve()
        captured = tree.capture(engine.create(preset.name, descriptor.seed), device.torch_device)
        device.settle()
        region_bytes = captured.layout.region_bytes
        if region_bytes > preset.state_bytes:
            raise Internal(
                f"engine {engine.name} made a state of {region_bytes} bytes, but its preset {preset.name} "
                f"says at most {preset.state_bytes}: correct state_bytes",
                reason="ENGINE_LIES",
                numbers={"region_bytes": region_bytes, "state_bytes": preset.state_bytes},
            )
        arena = self._host.warm_slots.memory(descriptor.session_id, region_bytes, lambda: charge.split(region_bytes))
        slot = Slot(captured.layout, arena, device)
        try:
            slot.flatten(captured)
        except BaseException:
            slot.close()
            raise
        made = self._host.made(engine, preset, captured.layout)
        return Copy(descriptor, engine, preset, fingerprint, slot, made)

    # --- closing

    def close(self, session_id: str, token: str, timeout_s: float) -> None:
        """End a session and free its memory.

        Raises:
            Owned: a move has it.
            Unauthenticated: another resume token is its.
        """
        self._host.sessions.get(session_id)
        with self._host.sessions.verb(session_id, timeout_s) as session:
            require_token(session, token)
            session.require_copy()
            session.ownership.close()
            session.halt(timeout_s)
            self._end(session, "CLOSED", session.ownership.state)

    def _end(self, session: Session, reason: str, state: State) -> None:
        """Close it if it is still in `state`. Holder of `verbs`, with the session halted."""
        try:
            with session.cond:
                if session.ownership.state is not state:
                    raise WrongState(
                        f"session {session.session_id} is {session.ownership.state.name} by now: ask again",
                        retry_after_s=0.1,
                    )
                session.ownership = session.ownership.close()
                stream, session.stream = session.stream, None
        finally:
            session.go()
            self._host.scheduler.wake(session)
        freed = session.let_go()
        if stream is not None:
            stream.finish(ended(reason))
        _log.info("closed", session_id=session.session_id, reason=reason, freed_bytes=freed)

    # --- what was abandoned

    def _watch(self) -> None:
        settings = self._host.settings
        tick_s = min(1.0, settings.idle_s / 4, settings.close_s / 4, settings.stage_ttl_s / 4)
        while not self._stopped.wait(tick_s):
            for session in self._host.sessions.held():
                try:
                    self._close_abandoned(session, settings.idle_s, settings.close_s)
                    self._drop_abandoned(session)
                    self._unstage_abandoned(session)
                    self._suspend_abandoned(session)
                except WorldlineError:
                    # A verb has it, or a player just came: not abandoned.
                    continue

    def _close_abandoned(self, session: Session, idle_s: float, close_s: float) -> None:
        with session.cond:
            away_s = time.monotonic() - session.away_since_s
            if session.stream is not None or session.ownership.move_id or away_s < idle_s or not session.at_boundary:
                return
            session.ownership = session.ownership.suspend()
            if session.ownership.state is not State.SUSPENDED or away_s < idle_s + close_s:
                return
            if session.in_a_move(self._host.settings.stage_ttl_s):
                return
        with self._host.sessions.verb(session.session_id, 0.0) as held:
            held.halt(0.0)
            self._end(held, "IDLE", State.SUSPENDED)

    def _suspend_abandoned(self, session: Session) -> None:
        """Take the slot of a session that stands suspended, where host memory is set aside for its state."""
        with session.cond:
            if session.ownership.state is not State.SUSPENDED or session.ownership.move_id:
                return
        suspend_abandoned(self._host, session)

    def _unstage_abandoned(self, session: Session) -> None:
        """Give back the host memory of a move that registered, never froze and has told nothing for too long."""
        with session.cond:
            abandoned = session.ownership.state in (State.LIVE, State.SUSPENDED) and not session.in_a_move(
                self._host.settings.stage_ttl_s
            )
        if abandoned:
            session.unstage()

    def _drop_abandoned(self, session: Session) -> None:
        """Drop a staged copy that was not attested and whose move has told nothing for too long.

        Not while its source may still be frozen for it. Whoever maps its memory still writes into no other slot.
        """
        settings = self._host.settings
        with session.cond:
            move_id, copy = session.ownership.move_id, session.copy
            if session.ownership.state is not State.STAGED or copy is None:
                return
            bound_s = settings.stage_ttl_s + self._host.freeze_limit_s(copy.descriptor.contract)
        with self._host.sessions.verb(session.session_id, 0.0):
            with session.cond:
                attested = move_id in session.landings
                if attested or time.monotonic() - session.staged_at_s < bound_s:
                    return
                expired = session.ownership.expire(move_id)
                if expired is session.ownership:
                    return
                session.ownership = expired
            freed_bytes = session.let_go()
        self._host.regions.revoke(move_id)
        _log.warning(
            "dropped: its move told nothing for too long",
            session_id=session.session_id,
            move_id=move_id,
            bound_s=bound_s,
            freed_bytes=freed_bytes,
        )


def require_token(session: Session, token: str) -> None:
    """Refuse whoever does not know the session's secret. Raises Unauthenticated."""
    with session.cond:
        descriptor = session.copy.descriptor if session.copy is not None else session.descriptor
    given = hashlib.sha256(token.encode("utf-8", "replace")).digest()
    if descriptor is None or not hmac.compare_digest(given, descriptor.resume_token_digest):
        raise Unauthenticated(
            f"this is not the resume token of session {session.session_id}",
            reason="WRONG_RESUME_TOKEN",
            resource=("session", session.session_id),
        )
