"""The conformance suite, run on a verbs device, in each way of letting a peer in and of waiting for completions."""

from __future__ import annotations

from typing import ClassVar

import pytest
from rdma_tools import open_rdma

from mover.transports import retransmit_floor_s as shared_floor
from mover.transports.rdma.config import retransmit_floor_s
from worldline.testing.transports import TransportConformance
from worldline.transport import Transport

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]


class Conformance(TransportConformance):
    """Patient: the machine may be emulated."""

    no_progress_s = 2.0
    settings: ClassVar[dict[str, object]]

    @pytest.fixture(autouse=True)
    def _device(self, devices: tuple[str, str]) -> None:
        self.device = devices[0]

    def open_transport(self) -> Transport:
        return open_rdma(self.device, **self.settings)


class TestWindows(Conformance):
    settings: ClassVar[dict[str, object]] = {}


class TestRegistrations(Conformance):
    settings: ClassVar[dict[str, object]] = {"access": "registration", "completions": "poll"}


class TestSmallSegments(Conformance):
    """Regions larger than one registration may be, and a send queue that is always full."""

    settings: ClassVar[dict[str, object]] = {"segment_bytes": 8192, "depth": 8}


def test_the_retransmit_floor_is_the_live_queue_pairs(devices: tuple[str, str]) -> None:
    rdma = open_rdma(devices[0], timeout_exponent=12)
    assert rdma.retransmit_floor_s == retransmit_floor_s(12)
    assert shared_floor([rdma]) == rdma.retransmit_floor_s
    rdma.close()
