"""The mover: carries regions between engine hosts, chunk by chunk, and has both ends vouch for them.

`server` and what it stands on speak gRPC; `dataplane` is the child process that touches the bytes.
"""

from __future__ import annotations
