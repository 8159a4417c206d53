"""What refuses figures: readings of a /proc that is made up, and the rules over them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import attribution
from benchmarks.attribution import Reading, judge, lacks_before, read

HOST: dict[str, str | int | float] = {
    "cpu": "some model",
    "cores": 2,
    "memory_bytes": 1 << 34,
    "kernel": "6.1",
    "python": "3.11.7",
    "crc_library": "zlib",
}
IDLE = Reading(at_s=100.0, cores=2, load_1min=0.2, busy_s=1000.0, steal_s=5.0, own_s=10.0, others_s=990.0)
KERNEL = 2
TICKS = os.sysconf("SC_CLK_TCK")


def later(elapsed_s: float = 10.0, own_s: float = 15.0, busy_s: float | None = None, **changes: float) -> Reading:
    """A reading after a run that kept this process tree busy for `own_s`; nobody else by default."""
    made = replace(
        IDLE,
        at_s=IDLE.at_s + elapsed_s,
        own_s=IDLE.own_s + own_s,
        busy_s=IDLE.busy_s + (own_s if busy_s is None else busy_s),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # every field is a number


def fake_proc(root: Path, processes: dict[int, tuple[int, int]], cpu: str, load: str = "0.25 0.1 0.1 1/9 9") -> Path:
    """`processes`: id -> parent, ticks; KERNEL's are its threads. The names try to break whoever splits at blanks."""
    root.mkdir()
    (root / "stat").write_text(f"cpu  {cpu} 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n")
    (root / "loadavg").write_text(load + "\n")
    (root / "version").write_text("not a process\n")
    for process, (parent, ticks) in processes.items():
        (root / str(process)).mkdir()
        flags = str(0x00208040 if parent == KERNEL else 0x00400040)
        fields = ["S", str(parent), "0", "0", "0", "0", flags, *(["0"] * 4), str(ticks - 6), "1", "2", "3", "0", "0"]
        (root / str(process) / "stat").write_text(f"{process} (a ) 7 (b) {' '.join(fields)}\n")
    return root


def test_a_reading_tells_our_tree_from_all_others(tmp_path: Path) -> None:
    processes = {1: (0, 1000), 40: (1, 100), 41: (40, 20), 42: (41, 10), 50: (1, 500), 60: (3, 77), 70: (KERNEL, 900)}
    found = read(fake_proc(tmp_path / "proc", processes, "300 20 80 9000 11 5 6 44"), root=40)
    assert found.own_s * TICKS == pytest.approx(130)
    assert found.others_s * TICKS == pytest.approx(1577)
    assert found.busy_s * TICKS == pytest.approx(400)
    assert found.steal_s * TICKS == pytest.approx(44)
    assert (found.cores, found.load_1min) == (2, 0.25)


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    root = fake_proc(tmp_path / "proc", {1: (0, 10), 40: (1, 10)}, "1 1 1 1 1 1 1 1")
    (root / "77").mkdir()  # listed, and gone before its file was read
    assert read(root, root=40).others_s * TICKS == pytest.approx(10)


def test_this_machine_can_be_read() -> None:
    found = read()
    assert found.own_s > 0
    assert found.busy_s > 0
    assert found.cores == os.cpu_count()


def test_an_idle_machine_is_attributed() -> None:
    assert lacks_before(IDLE, HOST) == []
    verdict = judge(IDLE, later(load_1min=4.0), [])
    assert verdict.failures == ()
    assert verdict.as_json()["attributed"] is True


@pytest.mark.parametrize("name", attribution.FINGERPRINT)
def test_a_host_without_fingerprint_is_not(name: str) -> None:
    for host in ({**HOST, name: ""}, {key: value for key, value in HOST.items() if key != name}):
        assert lacks_before(IDLE, host) == [f"the host's fingerprint lacks {name}"]


def test_load_before_the_first_run() -> None:
    busy = replace(IDLE, load_1min=1.01)
    (lack,) = lacks_before(busy, HOST)
    assert "1.01 before the first run" in lack
    assert "1.00" in lack
    assert lacks_before(replace(IDLE, load_1min=1.0), HOST) == []
    # What the suite before it did is in the average still.
    assert lacks_before(busy, HOST, ran_before=True) == []
    assert lacks_before(replace(IDLE, load_1min=9.5), HOST, ran_before=True)


def test_load_after_the_last_run() -> None:
    (failure,) = judge(IDLE, later(load_1min=9.5), []).failures
    assert "9.50 after the last run" in failure


def test_steal() -> None:
    assert judge(IDLE, later(steal_s=IDLE.steal_s + 0.39), []).failures == ()
    verdict = judge(IDLE, later(steal_s=IDLE.steal_s + 0.41), [])
    assert verdict.steal_share == pytest.approx(0.0205)
    assert "the hypervisor took 0.41 s" in verdict.failures[0]


def test_others_that_can_be_seen() -> None:
    assert judge(IDLE, later(others_s=IDLE.others_s + 0.99), []).failures == ()
    (failure,) = judge(IDLE, later(others_s=IDLE.others_s + 2.0), []).failures
    assert "other processes used 2.00 s, 10.0%" in failure


def test_others_that_only_the_machine_knows() -> None:
    assert judge(IDLE, later(own_s=10.0, busy_s=10.9), []).failures == ()
    (failure,) = judge(IDLE, later(own_s=10.0, busy_s=12.0), []).failures
    assert "other processes used 2.00 s" in failure


def test_a_few_ticks_of_a_short_run_are_no_finding() -> None:
    assert judge(IDLE, later(0.1, 0.1, others_s=IDLE.others_s + 0.09), []).failures == ()
    assert judge(IDLE, later(0.1, 0.1, others_s=IDLE.others_s + 0.11), []).failures


def test_lacks_stay_in_the_verdict() -> None:
    assert judge(IDLE, later(), ["one", "two"]).failures == ("one", "two")


seconds = st.floats(0.2, 1000.0)


@given(
    elapsed_s=seconds,
    own=st.floats(0.0, 1.0),
    others=st.floats(0.0, 1.0),
    hidden=st.floats(0.0, 1.0),
    steal=st.floats(0.0, 1.0),
    load=st.floats(0.0, 50.0),
)
def test_figures_are_attributed_only_within_every_bound(
    elapsed_s: float, own: float, others: float, hidden: float, steal: float, load: float
) -> None:
    machine_s = 2 * elapsed_s
    after = later(
        elapsed_s,
        own * machine_s,
        (own + hidden) * machine_s,
        others_s=IDLE.others_s + others * machine_s,
        steal_s=IDLE.steal_s + steal * machine_s,
        load_1min=load,
    )
    verdict = judge(IDLE, after, [])
    if not verdict.failures:
        allowed_s = max(0.0501 * machine_s, 0.101)
        assert others * machine_s <= allowed_s
        assert hidden * machine_s <= allowed_s
        assert steal * machine_s <= max(0.0201 * machine_s, 0.101)
        assert load <= 9.0
    elif max(others, hidden) <= 0.0499 and steal <= 0.0199:
        assert load > 9.0
