"""Every admission rule, one file and one row each. Rules are pure: a question in, a clause out.

`evaluate` judges the plan that a question names; `choose` judges every plan that it offers and takes the best.
"""

from __future__ import annotations

from admission.rules.choice import Choice, choose, evaluate
from admission.rules.cost import Stages
from admission.rules.question import (
    Checksum,
    Codec,
    Episodes,
    Escapes,
    InFlight,
    Mode,
    Offers,
    Path,
    Peer,
    PortMove,
    Question,
    Resident,
    UpdateRule,
)
from admission.rules.table import RULES

__all__ = [
    "RULES",
    "Checksum",
    "Choice",
    "Codec",
    "Episodes",
    "Escapes",
    "InFlight",
    "Mode",
    "Offers",
    "Path",
    "Peer",
    "PortMove",
    "Question",
    "Resident",
    "Stages",
    "UpdateRule",
    "choose",
    "evaluate",
]
