"""A fleet under mTLS: a session moves, and nobody without a certificate gets in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from e2e_tools import step

from worldline import errors, rpc
from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> rpc.Tls:
    """One CA, and one certificate for every member."""
    at = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=test CA", "-keyout", at / "ca.key", "-out", at / "ca.pem")  # fmt: skip
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=worldline",
            "-addext", names, "-keyout", at / "key.pem", "-out", at / "request.pem")  # fmt: skip
    (at / "names").write_text(names)
    openssl("x509", "-req", "-in", at / "request.pem", "-CA", at / "ca.pem", "-CAkey", at / "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", at / "names", "-out", at / "cert.pem")  # fmt: skip
    return rpc.Tls(at / "cert.pem", at / "key.pem", at / "ca.pem")


@pytest.mark.slow
def test_a_move_under_mtls(tls: rpc.Tls, tmp_path: Path) -> None:
    with Fleet(tmp_path / "fleet", TWO_NODES, tls=tls) as fleet:
        with Client(fleet.target, tls=tls) as client:
            session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
            with client.play(session) as play:
                step(play)
                move = client.move(session.session_id, "host-b", timeout_s=60)
                assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
                step(play)
                assert play.host_id == "host-b"
        for name in ("admission", "mover-a", "host-a"):
            with Client(fleet.members[name].address) as stranger, pytest.raises(errors.Unavailable):
                stranger.hosts()
        files = ("--tls-certificate", tls.certificate, "--tls-key", tls.key, "--tls-ca", tls.ca)
        command = [sys.executable, "-m", "worldline.cli.main", "hosts", "--target", fleet.target, *map(str, files)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "host-b" in listed.stdout
