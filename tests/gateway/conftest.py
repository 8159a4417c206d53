"""Makes `import gateway` find the example, which is a file to copy and no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gateway"))
