"""Coded moves: pieces of the source's region are coded ahead of the wire and decoded into the slot behind it.

Nothing above sees it: checksums and receipts are over the bytes of the regions, at both ends.
"""

from __future__ import annotations
