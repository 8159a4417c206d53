"""Hostile input to every call of every service, and to the data port: clean refusal, bounded memory."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from e2e_tools import Reference, shown, step
from google.protobuf import message
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.status import from_rpc
from worldline.v1 import admission_service_pb2, engine_host_service_pb2, mover_service_pb2

SERVICES: dict[str, ServiceDescriptor] = {
    "admission": admission_service_pb2.DESCRIPTOR.services_by_name["AdmissionService"],
    "mover-a": mover_service_pb2.DESCRIPTOR.services_by_name["MoverService"],
    "host-b": engine_host_service_pb2.DESCRIPTOR.services_by_name["EngineHostService"],
}
METHODS = [(member, method) for member, service in SERVICES.items() for method in service.methods]
# Registering a host that does not exist is right input; what it may do to a fleet is not this test's.
HARMLESS_ONLY = {"RegisterEngineHost", "RegisterMover", "FenceHost", "PlaceSession", "CreateSession"}
TRIES = 40
MEMORY_GROWTH_BYTES = 96 << 20


def fill(into: message.Message, rng: random.Random, depth: int = 0) -> message.Message:
    """Random fields with values that programs trip over."""
    for field in into.DESCRIPTOR.fields:
        if rng.random() < 0.35:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        repeated = field.is_repeated
        for _ in range(rng.choice([0, 1, 3]) if repeated else 1):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                if depth < 4:
                    child = getattr(into, field.name)
                    fill(child.add() if repeated else child, rng, depth + 1)
                    if not repeated:
                        child.SetInParent()
                continue
            value = scalar(field, rng)
            if repeated:
                getattr(into, field.name).append(value)
            else:
                setattr(into, field.name, value)
    return into


def scalar(field: FieldDescriptor, rng: random.Random) -> object:
    """A value of the field's type at its edges."""
    kinds: dict[int, Callable[[], object]] = {
        FieldDescriptor.TYPE_STRING: lambda: rng.choice(
            ["", "host-a", "../../etc/passwd", "x" * 5_000, "\u0000\u202e", "00000000-0000-0000-0000-000000000001"]
        ),
        FieldDescriptor.TYPE_BYTES: lambda: rng.choice([b"", b"\x00" * 32, rng.randbytes(70_000), b"\x80\x04K\x01."]),
        FieldDescriptor.TYPE_BOOL: lambda: rng.random() < 0.5,
        FieldDescriptor.TYPE_DOUBLE: lambda: rng.choice([0.0, -1.0, 1e308, float("nan"), float("inf"), 1e-300]),
        FieldDescriptor.TYPE_ENUM: lambda: rng.choice([0, 1, 2, 77, -1]),
        FieldDescriptor.TYPE_UINT64: lambda: rng.choice([0, 1, 2**63, 2**64 - 1]),
        FieldDescriptor.TYPE_UINT32: lambda: rng.choice([0, 1, 2**32 - 1]),
        FieldDescriptor.TYPE_FIXED32: lambda: rng.choice([0, 2**32 - 1]),
    }
    return kinds[field.type]()


def call(
    channel: grpc.Channel, service: ServiceDescriptor, method: MethodDescriptor, payload: bytes
) -> grpc.StatusCode:
    """Send bytes as a request; the status that came back. An unexpected exception of ours fails the test."""
    path = f"/{service.full_name}/{method.name}"

    def raw(data: bytes) -> bytes:
        return data

    try:
        if method.client_streaming:
            stream = channel.stream_stream(path, request_serializer=raw, response_deserializer=raw)
            list(stream(iter([payload]), timeout=3))
        elif method.server_streaming:
            list(channel.unary_stream(path, request_serializer=raw, response_deserializer=raw)(payload, timeout=3))
        else:
            channel.unary_unary(path, request_serializer=raw, response_deserializer=raw)(payload, timeout=10)
    except grpc.RpcError as error:
        return checked(error, method.name)
    return grpc.StatusCode.OK


def checked(error: grpc.RpcError, method: str) -> grpc.StatusCode:
    """The status of a refused call, which no unexpected exception of ours may be behind."""
    assert isinstance(error, grpc.Call)
    code = error.code()
    if code is grpc.StatusCode.INTERNAL:
        assert "deserializing" in (error.details() or ""), f"{method} tripped: {from_rpc(error, method).message}"
    assert code is not grpc.StatusCode.UNKNOWN, f"{method}: {error.details()}"
    return code


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One of this file's own: what is sent at random may drain its hosts."""
    with Fleet(tmp_path_factory.mktemp("hostile"), TWO_NODES, fault_injection=True) as running:
        yield running


@pytest.fixture
def channel_to(fleet: Fleet) -> Iterator[Callable[[str], grpc.Channel]]:
    opened: list[grpc.Channel] = []

    def to(member: str) -> grpc.Channel:
        opened.append(grpc.insecure_channel(fleet.members[member].address))
        return opened[-1]

    yield to
    for channel in opened:
        channel.close()


@pytest.mark.parametrize(("member", "method"), METHODS, ids=[method.name for _, method in METHODS])
def test_every_call(
    fleet: Fleet, channel_to: Callable[[str], grpc.Channel], member: str, method: MethodDescriptor
) -> None:
    rng = random.Random(method.name)
    channel, pid = channel_to(member), fleet.members[member].pid
    before = resident_bytes(pid)
    call(channel, SERVICES[member], method, b"")
    for _ in range(TRIES):
        call(channel, SERVICES[member], method, rng.randbytes(rng.randint(1, 300)))
    if method.name not in HARMLESS_ONLY:
        kind = GetMessageClass(method.input_type)
        for _ in range(TRIES):
            call(channel, SERVICES[member], method, fill(kind(), rng).SerializeToString())
    assert fleet.members[member].running
    assert resident_bytes(pid) - before < MEMORY_GROWTH_BYTES


def test_a_message_beyond_bounds_is_refused(fleet: Fleet, channel_to: Callable[[str], grpc.Channel]) -> None:
    method = SERVICES["host-b"].methods_by_name["Stage"]
    request = engine_host_service_pb2.StageRequest()
    request.layout.leaves.add(path="x" * 100)
    huge = request.SerializeToString() * 200_000
    assert len(huge) > 16 << 20
    assert call(channel_to("host-b"), SERVICES["host-b"], method, huge) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_data_port_takes_nothing_from_strangers(fleet: Fleet, client: Client) -> None:
    """Random bytes, a huge length, nothing at all: closed, and moves go on."""
    port = data_ports(fleet.members["mover-b"].pid)[0]
    rng = random.Random(1)
    for payload in (rng.randbytes(4096), b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"WLDP" + b"\xff" * 8_000, b""):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            stranger.settimeout(10)
            try:
                stranger.sendall(payload)
                if payload:
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
            except OSError:
                pass  # it was closed before all was said
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        client.move(session.session_id, "host-b", timeout_s=60)
        assert shown(step(play)) == reference[1]
        assert play.host_id == "host-b"
    client.close_session(session)
    reference.close()


def data_ports(mover_pid: int) -> list[int]:
    """Ports that a mover's data plane listens on."""
    return [
        conn.laddr.port
        for child in psutil.Process(mover_pid).children(recursive=True)
        for conn in child.net_connections("tcp")
        if conn.status == psutil.CONN_LISTEN
    ]
