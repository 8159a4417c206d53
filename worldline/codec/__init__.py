"""The codec itself: pieces of a region split into byte planes, each plane coded by itself.

Movers code and decode with it (`mover.codec`), engine hosts estimate with it what it would leave of a session. What
needs numpy and zstandard (`planes`, `zstd`, `sample`) is imported only where somebody does one or the other.
"""

from __future__ import annotations
