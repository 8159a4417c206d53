"""The conformance suite, run on this mover's transports."""

from __future__ import annotations

import pytest

from mover.transports import TransportConfig, open_transports
from worldline.errors import BadRequest, Precondition
from worldline.move import new_token
from worldline.testing.coded import CodedConformance
from worldline.transport import Terms, Transport

pytestmark = pytest.mark.usefixtures("no_leaks")


class TestTcp(CodedConformance):
    def open_transport(self) -> Transport:
        return open_transports(["tcp"], TransportConfig())["tcp"]


class TestLocal(CodedConformance):
    def open_transport(self) -> Transport:
        return open_transports(["local"], TransportConfig())["local"]


def test_local_refuses_an_endpoint_of_another_data_plane() -> None:
    transport = open_transports(["local"], TransportConfig())["local"]
    terms = Terms("5b2c8e0e-6f0f-4a0e-9c53-0d2b9a6f1a11", new_token(), 1, 1.0)
    with pytest.raises(Precondition, match="use 'tcp'"):
        transport.connect(memoryview(b""), (), terms, "local:00", 0)


def test_an_unknown_transport_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="'pigeon'"):
        open_transports(["pigeon"], TransportConfig())
