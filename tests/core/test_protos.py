from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_committed_stubs_match_the_protos(tmp_path: Path) -> None:
    plugins = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, ROOT / "tools" / "protos.py", tmp_path], check=True, capture_output=True, env=plugins
    )
    made = {path.name: path.read_bytes() for path in (tmp_path / "worldline" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "worldline" / "v1").iterdir() if path.is_file()}
    assert made.keys() == committed.keys(), "run `make proto`"
    assert [name for name in made if made[name] != committed[name]] == [], "run `make proto`"


def test_protos_are_clean() -> None:
    buf = Path(sys.executable).with_name("buf")
    found = subprocess.run([buf, "lint", ROOT / "protos"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
