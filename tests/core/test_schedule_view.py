"""How the command shows a drain or a plan."""

from __future__ import annotations

from rich.console import Console

from worldline.cli import scheduling
from worldline.v1 import admission_service_pb2 as pb


def schedule(**fields: object) -> pb.Schedule:
    steps = [
        pb.ScheduleStep(
            session_id="s-1",
            source_host_id="host-a",
            destination_host_id="host-b",
            state=pb.STEP_STATE_MOVED,
            move_id="m-1",
            predicted_s=0.25,
        ),
        pb.ScheduleStep(
            session_id="s-2",
            source_host_id="host-a",
            state=pb.STEP_STATE_FAILED,
            reason="NO_SLOT_MEMORY",
            message="10 B slot > 5 B free",
        ),
        pb.ScheduleStep(session_id="s-3", source_host_id="host-a", round=1, state=pb.STEP_STATE_GONE),
    ]
    return pb.Schedule(steps=steps, rounds=2, predicted_s=0.5, **fields)  # type: ignore[arg-type]


def test_what_cannot_be_moved_is_told_with_its_reason() -> None:
    ended = schedule(
        schedule_id="x", host_id="host-a", state=pb.SCHEDULE_STATE_DONE, created_at_s=10.0, closed_at_s=10.75
    )
    head, failed = scheduling.summary(ended)
    assert head.startswith("drain of host-a x: DONE; 1 moved, 1 left by themselves, 1 not moved; 2 rounds, 0.500 s")
    assert head.endswith("took 0.750 s")
    assert failed == "  s-2 stays on host-a: NO_SLOT_MEMORY: 10 B slot > 5 B free"


def test_a_dry_run_says_what_would_be() -> None:
    head, *_ = scheduling.summary(schedule())
    assert head == "plan: would take 2 rounds, 0.500 s predicted; 1 cannot be moved"


def test_the_table_counts_rounds_from_one_and_gives_none_to_what_stays() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(scheduling.table(schedule()))
    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines] == ["round", "1", "-", "2"]
    assert "host-a -> ?" in lines[2]
