"""`python -m worldline.health HOST:PORT [SERVICE]`: exit status 0 if it is SERVING, 1 if not. For health checks."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0
_USAGE = "usage: python -m worldline.health HOST:PORT [SERVICE]"


def check(address: str, service: str = "") -> str:
    """What the health service at `address` (host:port) says of `service`: "SERVING", or why not.

    `service` "" is the whole process; "datapath" says whether bytes can move.
    """
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: list[str]) -> int:
    """Check once and print what was answered. Returns the exit status."""
    if not 1 <= len(arguments) <= 2:
        print(_USAGE, file=sys.stderr)
        return 1
    answer = check(*arguments)
    print(answer)
    return 0 if answer == "SERVING" else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
