"""What the stages of one move took: admission's own work apart from its waits, each ask, and the downtime."""

from __future__ import annotations

import time
from dataclasses import replace

from admission.machine import EventKind
from worldline.move import StageTimes


class Stopwatch:
    """Runs with one move, on its thread. Of what was before a restart of admission, `stages` is all it knows."""

    def __init__(self, stages: StageTimes) -> None:
        self._own_since_s = time.monotonic()
        self._own_s = stages.admission_s
        self._asked_at_s: float | None = None
        self._frozen_at_s: float | None = None

    def work(self) -> None:
        """Admission itself works from now on."""
        self._own_since_s = time.monotonic()

    def wait(self) -> None:
        """It waits for somebody from now on: what it has spent itself is counted."""
        now_s = time.monotonic()
        self._own_s, self._own_since_s = self._own_s + now_s - self._own_since_s, now_s

    def ask(self) -> bool:
        """A host is asked. Returns whether it is the first ask since the last answer."""
        if self._asked_at_s is not None:
            return False
        self._asked_at_s = time.monotonic()
        return True

    def answered(self) -> None:
        """The ask is over."""
        self._asked_at_s = None

    def freeze(self) -> bool:
        """The session is frozen. Returns whether that is news."""
        if self._frozen_at_s is not None:
            return False
        self._frozen_at_s = time.monotonic()
        return True

    def after(self, kind: EventKind, stages: StageTimes) -> StageTimes:
        """The stage times after an answer."""
        self.wait()
        now_s = time.monotonic()
        stages = replace(stages, admission_s=self._own_s)
        asked_s = now_s - self._asked_at_s if self._asked_at_s is not None else 0.0
        if kind in (EventKind.GRANTED, EventKind.RESUMED):
            return replace(stages, release_s=asked_s)
        if kind in (EventKind.COMMITTED, EventKind.COMMIT_REFUSED):
            return replace(stages, commit_s=asked_s)
        if kind is EventKind.ACTIVATED and self._frozen_at_s is not None:
            frozen_before_s = max(0.0, stages.freeze_s - stages.boundary_s)
            return replace(stages, downtime_s=now_s - self._frozen_at_s + frozen_before_s)
        return stages
