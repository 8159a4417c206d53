"""One engine host: its parts, and what all verbs ask of it first."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from enginehost.arena import Budget
from enginehost.fingerprint import Fingerprints
from enginehost.ownership import check_fence
from enginehost.regions import Regions
from enginehost.scheduler import Scheduler
from enginehost.session import Session
from enginehost.sessions import Sessions
from enginehost.settings import EngineHostSettings
from enginehost.stream import ended
from worldline import telemetry
from worldline.engine import Engine, Preset, preset_of
from worldline.errors import NotFound, Unavailable
from worldline.move import Fence

_log = telemetry.log("host")


class Host:
    """The parts of one host, put together. `address` fields are known once the server listens."""

    def __init__(self, settings: EngineHostSettings, engines: Mapping[str, Engine], incarnation: int) -> None:
        self.settings = settings
        self.host_id = settings.host_id
        self.incarnation = incarnation
        self.engines = dict(engines)
        self.budget = Budget(settings.budget_bytes)
        self.fingerprints = Fingerprints(self.engines)
        self.sessions = Sessions()
        self.scheduler = Scheduler(settings.torch_threads, self.sessions.settle)
        self.regions = Regions(settings.regions_dir / f"{settings.host_id}.sock")
        self.streams = threading.BoundedSemaphore(max(1, settings.rpc_threads // 2))
        self.draining = False
        self._highest_term = 0
        self._term_lock = threading.Lock()

    def check(self, fence: Fence) -> None:
        """Refuse a stale fence. Raises StaleFence."""
        with self._term_lock:
            self._highest_term = check_fence(fence, self.incarnation, self._highest_term)

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

    def require_open(self) -> None:
        """Refuse new sessions and slots while draining. Raises Unavailable."""
        if self.draining:
            raise Unavailable(f"engine host {self.host_id} is draining", reason="DRAINING", retry_after_s=5.0)

    def thaw(self, session: Session, move_id: str) -> None:
        """The freeze lasted too long: the session goes on by itself."""
        with session.cond:
            thawed = session.ownership.thaw(move_id)
            if thawed is session.ownership:
                return
            session.ownership, session.freeze = thawed, None
        self.regions.revoke(move_id)
        _log.warning("resumed by the freeze timer", session_id=session.session_id, move_id=move_id)
        self.scheduler.wake(session)

    def end_all(self, reason: str) -> None:
        """Stop playing at once and tell every player why."""
        self.draining = True
        self.scheduler.stop()
        for session in self.sessions.held():
            with session.cond:
                stream = session.stream
                timer, session.freeze_timer = session.freeze_timer, None
            if timer is not None:
                timer.cancel()
            if stream is not None:
                stream.finish(ended(reason))
