"""Constants of the paper, by name. Rules take them as priors where a deployment has measured nothing, never inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIGABIT_Bps = 1e9 / 8

# The movable set of Matrix-Game 2 (§3.1), what its engine rewrites (§3.3) and its block period (§2).
MG2_STATE_BYTES = 1_670_124_960
MG2_DIRTY_Bps = 0.93e9
MG2_DIRTY_10HZ_Bps = 13.5e9
MG2_HORIZON_S = 0.4
MG2_COLD_FRACTION = 0.194

# The mover with verification off on a 100 Gb fabric (§6.4).
WIRE_CEILING_Bps = 97.95 * GIGABIT_Bps

# The 32-thread checksum engine (§6.5, Appendix E) and the exposed checksum of one last chunk (§6.4).
CRC_THREADS = 32
CRC_Bps = 52.6e9
LAST_CHUNK_256MB_S = 0.0217
LAST_CHUNK_64MB_S = 0.0082
# Verification of the Python mover: its whole cost in sequence (Appendix E) and what overlap leaves exposed (§6.5).
CRC_PYTHON_S = 0.110
OVERLAP_EXPOSED_S = 0.055

# Checksums on the receive path slow the wire of a lone move by 12 % (Appendix A).
IN_PATH_WIRE_FRACTION = 0.88

# The GPU entropy coder on the real cache (§6.4): coded share of the bytes, and its two rates.
CODEC_RATIO = 0.644
CODEC_ENCODE_Bps = 230e9
CODEC_DECODE_Bps = 252e9

# One host link under two planes (Appendix H): what foreground generation is slowed by.
LINK_CHECKSUM_SLOWDOWN = 0.130
LINK_SUSPEND_SLOWDOWN = 0.755

# First touch of a cold engine, and the coldest warm install (Table 2, §6.3).
FIRST_TOUCH_S = 11.974
WARM_INSTALL_S = 0.124

# Pre-copy (Appendix H): chunks of 4 MB, and the two readings that give its 11 and 20 rounds and D* = 3.85 GB/s.
PRECOPY_CHUNKS = 399
PRECOPY_STOP_CHUNKS = 16
PRECOPY_ROUNDS = 40
PRECOPY_CALIBRATED_Bps = 3.775e9

# The worst readout of a session that went on across architectures, as PSNR (Appendix G).
READOUT_WORST_DB = 43.0


@dataclass(frozen=True, slots=True)
class Idiom:
    """How a mover is built, and the fixed seconds that costs each move."""

    name: str
    setup_s: float
    source: str


IDIOMS: Mapping[str, Idiom] = MappingProxyType(
    {
        item.name: item
        for item in (
            Idiom("python", 0.057, "intercept of the size ladder, §4.1"),
            Idiom("native", 0.0188, "install floor, §6.2 and §6.5"),
            Idiom("rust", 0.0166, "critical path of the Rust mover, §6.2"),
        )
    }
)
