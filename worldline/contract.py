"""What a session asks of its host: contract class, horizon, determinism tier (paper §5)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from worldline.errors import BadRequest


class ContractClass(enum.IntEnum):
    """Contract class; values are those of the wire."""

    C1 = 1
    C2A = 2
    C2B = 3
    C3 = 4
    C4 = 5
    C5 = 6

    @property
    def has_deadline(self) -> bool:
        """Whether the class implies a horizon: C1, C2A and C2B do."""
        return self in (ContractClass.C1, ContractClass.C2A, ContractClass.C2B)


class Tier(enum.IntEnum):
    """Determinism tier; values are those of the wire."""

    T0 = 1
    T1 = 2
    T2 = 3


MAX_HORIZON_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Contract:
    """A coherent contract.

    Raises:
        BadRequest: a deadline class without a horizon, another class with one, or replay (C4) below T0.
    """

    contract_class: ContractClass
    horizon_s: float
    tier: Tier

    def __post_init__(self) -> None:
        violations: dict[str, str] = {}
        if not math.isfinite(self.horizon_s) or not 0 <= self.horizon_s <= MAX_HORIZON_S:
            violations["contract.horizon_s"] = f"{self.horizon_s} is not between 0 and {MAX_HORIZON_S:.0f} s"
        elif self.contract_class.has_deadline and self.horizon_s == 0:
            violations["contract.horizon_s"] = f"{self.contract_class.name} needs a horizon above 0 s"
        elif not self.contract_class.has_deadline and self.horizon_s > 0:
            violations["contract.horizon_s"] = f"{self.contract_class.name} has no deadline, so its horizon must be 0"
        if self.contract_class is ContractClass.C4 and self.tier is not Tier.T0:
            violations["contract.tier"] = f"C4 is bit-exact replay: it needs T0, not {self.tier.name}"
        if violations:
            raise BadRequest("incoherent contract: " + "; ".join(violations.values()), violations=violations)

    @property
    def has_deadline(self) -> bool:
        """Whether a move of this session has to be over within `horizon_s`."""
        return self.contract_class.has_deadline
