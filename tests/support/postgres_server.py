"""A PostgreSQL server of the tests' own, from Debian's packages, on a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest
from e2e_tools import until

_INSTALL = "apt-get install -y --no-install-recommends postgresql"


class Server:
    """Runs as user postgres where the tests run as root, which the server refuses to be."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not found:
            pytest.fail(f"these tests need PostgreSQL's server: {_INSTALL}")
        self._binaries = found[-1].parent
        self._user = "postgres" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="worldline-postgres-"))
        if self._user:
            shutil.chown(self.folder, self._user, self._user)
        self._run(
            "initdb",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-sync",
            "-D",
            str(self.folder / "data"),
        )
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        done = subprocess.run(command, user=self._user, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            # Its processes are killed here, its machine is not: what was written stays written.
            "fsync": "off",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, user=self._user, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until("the server answers", self._answers, 60.0)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        command = [str(self._binaries / "pg_isready"), "-q", "-U", "postgres", "-h", str(self.folder)]
        return subprocess.run(command, check=False).returncode == 0

    def new_journal(self) -> str:
        """The URL of a new, empty journal: a schema of its own, as a database of its own has a thousand files."""
        name = f"journal_{uuid.uuid4().hex[:12]}"
        where = ("--host", str(self.folder), "--username=postgres", "--no-psqlrc", "--quiet")
        self._run("psql", *where, "--command", f"CREATE SCHEMA {name}")
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    def stop(self) -> None:
        """Kill all its processes at once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def remove(self) -> None:
        """Stop and leave nothing."""
        self.stop()
        shutil.rmtree(self.folder)
