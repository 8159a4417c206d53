"""Schedules, drains and estimates as the journal keeps them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

from admission.estimators import PathEstimate, PathKey, rows_of
from admission.journal import Journal
from admission.schedule import ScheduleRow, ScheduleState, StepRow, StepState
from worldline.move import StageTimes


def test_everything_comes_back_after_a_restart(tmp_path: Path) -> None:
    schedule = ScheduleRow(
        str(uuid.uuid4()), str(uuid.uuid4()), b"digest", "host-a", ScheduleState.RUNNING, 30.0, 1.5, 0.0, 2.5
    )
    waiting = StepRow(
        schedule.schedule_id, 0, "s-1", "host-a", "host-b", False, 0, 0, StepState.WAITING, "", 0.25, "", ""
    )
    pinned = replace(waiting, line=1, session_id="s-2", pinned=True, round=1)
    later = replace(waiting, line=2, session_id="s-3", round=2)
    key = PathKey("mover-a", "mover-b", "tcp/pipelined/raw")
    estimates = rows_of(key, PathEstimate.prior(1e9, 0.1).after(1 << 30, StageTimes(wire_s=1.0), 7.0, 600.0))
    journal = Journal(tmp_path / "j.db", 100)
    journal.add_schedule(schedule, [waiting, pinned])
    journal.set_drain("host-a", 1.5, schedule.schedule_id)
    journal.set_drain("host-b", 1.5, "another")
    journal.clear_drain("host-b")
    moving = replace(waiting, state=StepState.MOVING, attempt=2, move_id="m-1", reason="R", message="why\nso")
    journal.save_steps([moving, later])
    journal.save_estimates(estimates)
    journal.close()

    journal = Journal(tmp_path / "j.db", 100)
    assert journal.open_schedules() == [schedule]
    assert journal.schedule_of_request(schedule.request_id) == schedule
    assert journal.steps(schedule.schedule_id) == [moving, pinned, later]
    assert journal.drains() == {"host-a": schedule.schedule_id}
    assert sorted(journal.estimates(), key=str) == sorted(estimates, key=str)
    done = replace(schedule, state=ScheduleState.DONE, closed_at_s=9.0)
    journal.save_schedule(done)
    assert journal.open_schedules() == []
    assert journal.schedule(schedule.schedule_id) == done
    assert journal.schedule(str(uuid.uuid4())) is None
    journal.close()


def test_the_id_of_a_request_follows_from_step_and_attempt() -> None:
    step = StepRow(str(uuid.uuid4()), 3, "s-1", "host-a", "", False, 0, 0, StepState.WAITING, "", 0.0, "", "")
    again = replace(step, state=StepState.MOVING, move_id="m-1", destination_host_id="host-b", round=7)
    assert step.request_id == again.request_id
    others = {replace(step, attempt=1).request_id, replace(step, line=4).request_id, step.request_id}
    assert len(others) == 3
