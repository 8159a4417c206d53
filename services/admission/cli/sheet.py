"""A session and a fabric on paper, as a question for the rules: nothing is wrong but what the numbers say."""

from __future__ import annotations

from dataclasses import dataclass

from admission.rules import Checksum, Codec, InFlight, Mode, Offers, Question, paper
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import BadRequest
from worldline.manifest import Fingerprint
from worldline.plan import MAX_CHUNK_BYTES, PAGE_BYTES, Placement

_SAME = Fingerprint({"fabric": "on paper"})
_PRESET = "on-paper/session"
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is moved and how: S (bytes), D (bytes/s), fixed seconds of a move, checksums (bytes/s; None: not charged).

    `placement` None lets the rules choose between SEQUENTIAL and PIPELINED; `modes` and `codec` are offered. `others`
    moves come into the same receiver at the same time.
    """

    state_bytes: int
    dirty_rate_Bps: float
    contract_class: ContractClass
    tier: Tier
    setup_s: float
    modes: tuple[Mode, ...]
    crc_Bps: float | None
    chunk_bytes: int
    placement: Placement | None
    codec: Codec | None
    others: int

    def question(self, bandwidth_Bps: float, horizon_s: float) -> Question:
        """The move over a fabric of that bandwidth. Without a deadline, `horizon_s` is the longest freeze.

        Raises:
            BadRequest: an incoherent contract, or a chunk that no plan has.
        """
        if not PAGE_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise BadRequest(f"a chunk of {self.chunk_bytes} bytes is not from {PAGE_BYTES} to {MAX_CHUNK_BYTES}")
        deadline = self.contract_class.has_deadline
        others = tuple(InFlight(f"other-{number}", horizon_s) for number in range(1, self.others + 1))
        return Question(
            contract=Contract(self.contract_class, horizon_s if deadline else 0.0, self.tier),
            mode=self.modes[0],
            state_bytes=self.state_bytes,
            dirty_rate_Bps=self.dirty_rate_Bps,
            bandwidth_Bps=bandwidth_Bps,
            setup_s=self.setup_s,
            bound_s=_NEVER_S if deadline else horizon_s,
            preset=_PRESET,
            source_fingerprint=_SAME,
            destination_fingerprint=_SAME,
            destination_presets=frozenset({_PRESET}),
            destination_free_bytes=self.state_bytes,
            destination_has_id=False,
            host_moves=others,
            receiver_cap=1 + self.others,
            mover_moves=others,
            mover_cap=0,
            peers=(),
            transport="on paper",
            transport_refusal="",
            patience_s=0.0,
            silent_s=1.0,
            silent_grace_s=0.0,
            heartbeat_s=1.0,
            chunk_bytes=self.chunk_bytes,
            destination_crc=Checksum(self.crc_Bps) if self.crc_Bps else None,
            offers=Offers(
                modes=self.modes,
                placements=(self.placement,) if self.placement else (Placement.PIPELINED, Placement.SEQUENTIAL),
                codecs=(None, self.codec) if self.codec else (None,),
                tail=True,
            ),
        )


def gigabits(rate_Bps: float) -> float:
    """Gb/s, as people rate links."""
    return rate_Bps / paper.GIGABIT_Bps
