"""Which plans this mover carries for devices, and what its data plane is told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mover.carriers import hosts_carry, require_carrier, wire_plan
from worldline.errors import Unsupported
from worldline.plan import Placement, Plan

STAGED = Plan("tcp", 4096, 2, Placement.DEVICE, 10.0, 10.0, 2.0, staged=True)
PULLED = replace(STAGED, transport="local", staged=False)


@pytest.mark.parametrize("transport", ["tcp", "local", "rdma"])
@pytest.mark.parametrize("codec", ["raw", "zstd", "ans"])
def test_staged_plans_go_over_every_transport(transport: str, codec: str) -> None:
    plan = replace(STAGED, transport=transport, codec=codec)
    require_carrier(plan)
    assert not hosts_carry(plan)
    told = wire_plan(plan)
    assert (told.transport, told.placement, told.staged) == (transport, Placement.PIPELINED, False)
    assert told.codec == ("raw" if codec == "ans" else codec), "what is coded on the device goes as it is"


def test_pulled_plans_are_local_and_raw() -> None:
    require_carrier(PULLED)
    assert hosts_carry(PULLED)
    for change in ({"transport": "tcp"}, {"codec": "zstd"}):
        with pytest.raises(Unsupported, match="without staging") as caught:
            require_carrier(replace(PULLED, **change))  # type: ignore[arg-type]
        assert caught.value.reason == "PLACEMENT_UNSUPPORTED"


@pytest.mark.parametrize("placement", [Placement.PIPELINED, Placement.SEQUENTIAL, Placement.IN_PATH])
def test_other_plans_are_told_as_they_are(placement: Placement) -> None:
    plan = replace(PULLED, transport="tcp", placement=placement)
    require_carrier(plan)
    assert wire_plan(plan) is plan
