"""All sessions of this host by id, and what is remembered of those that are gone. Bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from enginehost.ownership import Ownership, State
from enginehost.session import Session
from worldline.errors import NotFound, TimedOut

MAX_REMEMBERED = 10_000


class Sessions:
    """The registry. Its lock is held for moments only."""

    def __init__(self) -> None:
        self._all: dict[str, Session] = {}
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, session_id: str) -> Session | None:
        """The session, or what is remembered of it."""
        with self._lock:
            return self._all.get(session_id)

    def get(self, session_id: str) -> Session:
        """The session, or what is remembered of it. Raises NotFound."""
        found = self.find(session_id)
        if found is None:
            raise NotFound(
                f"session {session_id} is not on this host",
                reason="UNKNOWN_SESSION",
                resource=("session", session_id),
            )
        return found

    def closed(self, session_id: str) -> bool:
        """Whether it is remembered that the session was closed here."""
        session = self.find(session_id)
        return session is not None and session.ownership.state is State.NOTHING and session.ownership.closed

    def count(self) -> int:
        """How many sessions this host holds bytes of."""
        with self._lock:
            return sum(session.copy is not None for session in self._all.values())

    def held(self) -> list[Session]:
        """Sessions that this host holds bytes of, ordered by id."""
        with self._lock:
            held = [session for session in self._all.values() if session.copy is not None]
        return sorted(held, key=lambda session: session.session_id)

    @contextmanager
    def verb(self, session_id: str, timeout_s: float, *, create: bool = False) -> Iterator[Session]:
        """Hold the session's `verbs`: nothing else changes what it is meanwhile.

        Raises:
            NotFound: it is unknown and not to be created.
            TimedOut: another verb did not end in time.
        """
        with self._lock:
            session = self._all.get(session_id)
            if session is None and create:
                session = self._all[session_id] = Session(session_id)
            if session is not None:
                session.users += 1
        if session is None:
            session = self.get(session_id)
        try:
            if not session.verbs.acquire(timeout=max(0.0, timeout_s)):
                raise TimedOut(
                    f"session {session_id} was busy with another verb for {timeout_s:.3f} s",
                    reason="SESSION_BUSY",
                    retry_after_s=0.5,
                )
            try:
                yield session
            finally:
                session.verbs.release()
        finally:
            with self._lock:
                session.users -= 1
            self.settle(session)

    def settle(self, session: Session) -> None:
        """File it as held, remembered or unknown, after it may have changed; the oldest remembered are forgotten."""
        with self._lock:
            if session.copy is not None:
                self._remembered.pop(session.session_id, None)
                return
            if session.ownership == Ownership() and not session.users:
                self._all.pop(session.session_id, None)
                self._remembered.pop(session.session_id, None)
                return
            self._remembered[session.session_id] = None
            self._remembered.move_to_end(session.session_id)
            for forgotten in list(self._remembered)[: max(0, len(self._remembered) - MAX_REMEMBERED)]:
                if not self._all[forgotten].users:
                    del self._all[forgotten], self._remembered[forgotten]
