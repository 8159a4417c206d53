from __future__ import annotations

from pathlib import Path

import pytest

from worldline import settings
from worldline.errors import BadRequest, Precondition
from worldline.rpc import Server
from worldline.settings import ServiceSettings


def test_values_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_LISTEN", "127.0.0.1:1")
    assert settings.load(ServiceSettings).listen == "127.0.0.1:1"
    assert settings.load(ServiceSettings, listen="127.0.0.1:2").listen == "127.0.0.1:2"
    assert settings.load(ServiceSettings, listen=None).listen == "127.0.0.1:1"


def test_unknown_variables_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_LISTN", "127.0.0.1:1")
    with pytest.raises(BadRequest, match="WORLDLINE_LISTN"):
        settings.load(ServiceSettings)


def test_incoherent_values_refuse() -> None:
    with pytest.raises(BadRequest, match="go together"):
        settings.load(ServiceSettings, tls_ca=Path("ca.pem"))
    with pytest.raises(BadRequest, match="rpc_threads"):
        settings.load(ServiceSettings, rpc_threads=1)


def test_secrets_are_not_shown() -> None:
    made = settings.load(ServiceSettings, tls_key="secret.pem", tls_ca="ca.pem", tls_certificate="cert.pem")
    assert "secret.pem" not in str(settings.shown(made))


def test_a_process_is_told_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.load_or_exit(ServiceSettings, log_level="LOUD")
    assert caught.value.code == 2
    assert "log_level" in capsys.readouterr().err


@pytest.mark.parametrize(
    "listen", ["nonsense", ":1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:x", ""]
)
def test_an_address_that_is_none(listen: str) -> None:
    with pytest.raises(BadRequest, match="host:port"):
        settings.load(ServiceSettings, listen=listen)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    first = Server(settings.load(ServiceSettings), ())
    address = first.start()
    with pytest.raises(Precondition, match=address):
        Server(settings.load(ServiceSettings, listen=address), ()).start()
    first.stop(0)
    missing = str(tmp_path / "no.pem")
    made = settings.load(ServiceSettings, tls_key=missing, tls_ca=missing, tls_certificate=missing)
    with pytest.raises(BadRequest, match=r"no\.pem"):
        Server(made, ()).start()
