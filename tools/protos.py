"""Generate `worldline/v1` from `protos/`: messages, services and their type hints."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(out: Path) -> None:
    """Write the stubs of every file in `protos/` under `out`."""
    protos = ROOT / "protos"
    files = sorted(str(path) for path in (protos / "worldline" / "v1").glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{protos}",
            f"-I{well_known}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out={out}",
            f"--mypy_grpc_out={out}",
            *files,
        ]
    )
    if status:
        raise SystemExit(f"protoc failed with status {status}")
    note = '"""Generated from protos/: do not edit, run `make proto`."""\n'
    (out / "worldline" / "v1" / "__init__.py").write_text(note)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
