"""A whole fleet on this machine, as child processes: one admission, and nodes of one mover and some engine hosts each.

`worldline dev`, the demo, the tests and the benchmarks all start their fleets here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from worldline.client import Client
from worldline.errors import NotFound, Unavailable
from worldline.rpc import Tls

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


@dataclass
class Member:
    """One process of the fleet."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ready: dict[str, str | int | bool] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where it listens, host:port."""
        return str(self.ready["address"])

    @property
    def pid(self) -> int:
        """Its process id. Raises NotFound if it does not run."""
        if self.process is None:
            raise NotFound(f"{self.name} does not run")
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None


@dataclass(frozen=True, slots=True)
class Node:
    """A mover and the engine hosts beside it, by name."""

    mover: str
    hosts: tuple[str, ...]


TWO_NODES = (Node("mover-a", ("host-a",)), Node("mover-b", ("host-b",)))
ONE_NODE = (Node("mover-a", ("host-a", "host-b")),)


class Fleet:
    """Starts with `start` or `with`, in the order admission, movers, engine hosts; every process ends with this one.

    Args:
        directory: for journal, locks, sockets and logs; one fleet at a time may use it.
        nodes: what runs beside what.
        options: settings for all members of a kind ("admission", "mover", "enginehost") or for one by its name.
        port: admission's; 0 picks a free one.
        tls: every member uses these files, and takes calls only from peers that the same CA has signed.
        within: the command that a member's own is run by, for instance `ip netns exec NAME`.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[Node] = TWO_NODES,
        *,
        options: Mapping[str, Mapping[str, str | int | float | bool]] | None = None,
        port: int = 0,
        fault_injection: bool = False,
        otlp_endpoint: str = "",
        tls: Tls | None = None,
        within: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.directory = directory
        self._within = dict(within or {})
        self.nodes = tuple(nodes)
        self._options = dict(options or {})
        self._port = port
        self._common: dict[str, str | int | float | bool] = {"fault_injection": fault_injection}
        if otlp_endpoint:
            self._common["otlp_endpoint"] = otlp_endpoint
        self.tls = tls
        if tls is not None:
            self._common |= {"tls_certificate": str(tls.certificate), "tls_key": str(tls.key), "tls_ca": str(tls.ca)}
        self.members: dict[str, Member] = {}

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def target(self) -> str:
        """Admission's address, host:port."""
        return self.members["admission"].address

    def start(self) -> Self:
        """Start all and wait until they are ready. Raises Unavailable with the log's end if one does not come up."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._launch(
            "admission",
            "admission",
            {"listen": f"127.0.0.1:{self._port}", "journal": self.directory / "journal.sqlite"},
        )
        self._await("admission")
        for node in self.nodes:
            regions = self.directory / node.mover
            regions.mkdir(exist_ok=True)
            self._launch(
                node.mover, "mover", {"mover_id": node.mover, "regions_dir": regions, "admission": self.target}
            )
        for node in self.nodes:
            self._await(node.mover)
            for host in node.hosts:
                self._launch(
                    host,
                    "enginehost",
                    {
                        "host_id": host,
                        "state_dir": self.directory / "state",
                        "regions_dir": self.directory / node.mover,
                        "admission": self.target,
                        "mover_id": node.mover,
                        "mover_address": self.members[node.mover].address,
                    },
                )
        for node in self.nodes:
            for host in node.hosts:
                self._await(host)
        self._await_joined()
        return self

    def _await_joined(self) -> None:
        """Wait until admission takes every engine host for a destination."""
        expected = {host for node in self.nodes for host in node.hosts}
        deadline = time.monotonic() + START_TIMEOUT_S
        with Client(self.target, tls=self.tls) as client:
            while True:
                joined = {info.registration.host_id for info in client.hosts() if info.ready}
                if joined >= expected:
                    return
                if time.monotonic() > deadline:
                    raise Unavailable(f"{', '.join(sorted(expected - joined))} did not join within {START_TIMEOUT_S} s")
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop all, engine hosts first; kill what does not stop."""
        order = [name for name in reversed(self.members) if self.members[name].running]
        for name in order:
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for name in order:
            process = self.members[name].process
            if process is not None:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for member in self.members.values():
            if member.process is not None and member.process.stdout is not None:
                member.process.stdout.close()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one member that runs."""
        member = self.members[name]
        if member.running and member.process is not None:
            member.process.send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL one member and wait until it is gone."""
        self.signal(name, signal.SIGKILL)
        process = self.members[name].process
        if process is not None:
            process.wait()

    def restart(self, name: str) -> Member:
        """Start a member that has ended, at the address it had."""
        member = self.members[name]
        if member.running:
            raise Unavailable(f"{name} still runs")
        if member.process is not None and member.process.stdout is not None:
            member.process.stdout.close()
        at = member.command.index("--listen") + 1
        member.command[at] = member.address
        self._spawn(member)
        return self._await(name)

    def _launch(self, name: str, module: str, values: Mapping[str, object]) -> None:
        merged: dict[str, object] = {
            "listen": "127.0.0.1:0",
            **self._common,
            **values,
            **self._options.get(module, {}),
            **self._options.get(name, {}),
        }
        command = [*self._within.get(name, ()), sys.executable, "-m", module, "--exit-with-parent"]
        for key, value in merged.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        self.members[name] = Member(name, command, self.directory / f"{name}.log")
        self._spawn(self.members[name])

    def _spawn(self, member: Member) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WORLDLINE_")}
        with member.log.open("ab") as log:
            member.process = subprocess.Popen(
                member.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
            )

    def _await(self, name: str) -> Member:
        member = self.members[name]
        process = member.process
        if process is None or process.stdout is None:
            raise Unavailable(f"{name} was not started")
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if readable else b""
        if not line:
            end = member.log.read_text(errors="replace")[-2_000:]
            raise Unavailable(f"{name} did not come up within {START_TIMEOUT_S:.0f} s; its log ends:\n{end}")
        member.ready = json.loads(line)
        return member
