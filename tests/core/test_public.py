from __future__ import annotations

import subprocess
import sys

import worldline
from worldline import errors


def test_exported_names() -> None:
    assert worldline.__all__ == ["AsyncClient", "Client", "WorldlineError", "__version__"]
    assert worldline.Client.__name__ == "Client"
    assert worldline.AsyncClient.__name__ == "AsyncClient"


def test_every_error_is_drawn_in_the_tree() -> None:
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.WorldlineError) and value is not errors.WorldlineError
    ]
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in kinds if kind.__name__ not in errors.__doc__] == []


def test_light_parts_import_no_torch() -> None:
    code = "import sys, worldline.client, worldline.fleet, worldline.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
