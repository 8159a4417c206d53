"""What a codec did in one move at one end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coding:
    """Pieces by how they crossed the wire, the bytes that did, and what the codec's own threads took.

    `raw_pieces` did not pay, `late_pieces` would have had to wait for the codec while the wire was free, `zero_pieces`
    were all zeros. `busy_s` are the seconds of the codec's `threads`, added up, for `worked_bytes` of the region; where
    it has no threads of its own (0) those of the streams worked.
    """

    wire_bytes: int = 0
    coded_pieces: int = 0
    zero_pieces: int = 0
    raw_pieces: int = 0
    late_pieces: int = 0
    bad_pieces: int = 0
    worked_bytes: int = 0
    busy_s: float = 0.0
    late_bytes: int = 0
    threads: int = 0

    @property
    def rate_Bps(self) -> float:
        """Bytes of the region that one thread codes or decodes in a second; 0 if none did."""
        return self.worked_bytes / self.busy_s if self.busy_s > 0 else 0.0
