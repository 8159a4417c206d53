"""Instruments that look at a session's state: what blocks write, what compresses, and what one flipped bit does.

`pieces`, `snapshot`, `wire`, `dirty`, `coupon`, `compress`, `inspection` are `worldline inspect`: an engine host takes
checksums and samples, everything else is worked out by whoever asked. `twin`, `region`, `geometry`, `bits`, `flips`,
`lossy`, `declared` and `battery` are `worldline battery`, which plays sessions of its own and needs torch;
`twin_inspection` inspects such a session. `cold` proves the cold leaves.
"""

from __future__ import annotations
