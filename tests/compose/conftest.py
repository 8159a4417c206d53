"""Makes `import gateway` find the example, which the lane plays with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gateway"))
