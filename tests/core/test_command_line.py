"""Wrong usage of the command line: one line that says so and the right status, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldline.cli.main import main


@pytest.mark.parametrize("limit", ["-1", "0", "x", "1.5"])
def test_a_limit_that_is_none(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["moves", "--limit", limit])
    assert caught.value.code == 2
    assert "--limit" in capsys.readouterr().err


def test_tls_files_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "no.pem")
    files = [word for name in ("certificate", "key", "ca") for word in (f"--tls-{name}", missing)]
    assert main(["hosts", *files]) == 3
    assert "no.pem" in capsys.readouterr().err
