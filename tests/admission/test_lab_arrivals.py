"""Arrivals of the lab: the wanted load, bursts, and recorded traces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from admission.lab.arrivals import BURST, Arrivals, bursts, poisson, read_trace, requests, trace
from admission.lab.fabric import MESH
from worldline.errors import BadRequest

# The form of the Azure LLM inference traces: seven digits of a second, CRLF, no newline at the end.
TRACE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.9799600,3180,8\r\n2023-11-16 18:17:04.4799600,110,27\r\n2023-11-16 18:17:07.9799600,7433,14"
)


@pytest.mark.parametrize("arrivals", [poisson, bursts])
def test_the_mean_rate_is_the_wanted_one(arrivals: Arrivals) -> None:
    times = arrivals(random.Random(1), 4000, 10.0)
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.1)


def test_bursts_come_at_once() -> None:
    times = bursts(random.Random(1), 10, 10.0)
    assert len(times) == 10
    assert len(set(times)) == -(-10 // BURST)


def test_a_trace_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(TRACE)
    assert read_trace(path) == pytest.approx([0.0, 0.5, 1.0, 4.0])


def test_a_trace_keeps_its_shape_at_another_load() -> None:
    times = trace([0.0, 0.5, 1.0, 4.0])(random.Random(1), 3, 30.0)
    assert times == pytest.approx([0.0, 0.0125, 0.025])


def test_seeds_take_windows_of_a_trace() -> None:
    arrivals = trace([0.1 * number**1.5 for number in range(1000)])
    windows = [arrivals(random.Random(seed), 100, 10.0) for seed in range(5)]
    assert len({tuple(window) for window in windows}) == 5
    assert all(window[0] == 0.0 and window == sorted(window) for window in windows)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"time,tokens\n1,2\n", "no column TIMESTAMP"),
        (b"", "no column TIMESTAMP"),
        (b"TIMESTAMP\n2023-11-16 18:17:03\n", "1 arrivals"),
        (b"TIMESTAMP\nyesterday\n2023-11-16 18:17:03\n", "line 2: 'yesterday' is no time stamp"),
        (b"TIMESTAMP\n\xff\xfe\n", "cannot read"),
        (b"TIMESTAMP\n2023-11-16 18:17:03\n2023-11-16 18:17:03+00:00\n", "zone"),
    ],
)
def test_a_trace_that_is_none(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=what):
        read_trace(path)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot read"):
        read_trace(tmp_path / "no.csv")


def test_a_trace_that_is_too_short() -> None:
    with pytest.raises(BadRequest, match="3 arrivals"):
        trace([0.0, 1.0, 2.0])(random.Random(1), 3, 1.0)


def test_a_trace_window_without_length() -> None:
    with pytest.raises(BadRequest, match="same time stamp"):
        trace([1.0] * 5)(random.Random(1), 3, 1.0)


def test_requests_are_due_a_horizon_after_they_came() -> None:
    found = requests(MESH, poisson, 1, 50, 1.0)
    assert all(request.deadline_s - request.arrival_s == pytest.approx(MESH.horizon_s) for request in found)
    assert {request.source for request in found} == set(range(MESH.nodes))
    assert found == requests(MESH, poisson, 1, 50, 1.0)
    # Another load brings the same sessions, only faster.
    assert [request.source for request in found] == [request.source for request in requests(MESH, poisson, 1, 50, 2.0)]
