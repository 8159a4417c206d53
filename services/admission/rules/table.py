"""The rules in the order of their clauses."""

from __future__ import annotations

from admission.rules.codec import codec
from admission.rules.crc_capacity import crc_capacity
from admission.rules.deadline_gate import deadline_gate
from admission.rules.duplex import duplex
from admission.rules.fingerprint import fingerprint
from admission.rules.flux import flux
from admission.rules.host_link import host_link
from admission.rules.hysteresis import hysteresis
from admission.rules.motion import motion
from admission.rules.overlap import overlap
from admission.rules.port_budget import port_budget
from admission.rules.precopy import precopy
from admission.rules.prewarm import prewarm
from admission.rules.question import Rule
from admission.rules.reachable import reachable
from admission.rules.receiver import receiver
from admission.rules.response_time import response_time
from admission.rules.retransmit_timer import retransmit_timer
from admission.rules.sender import sender
from admission.rules.session_id import session_id
from admission.rules.slot_memory import slot_memory
from admission.rules.verified_rate import verified_rate

# Those that look at the plan are asked again for each plan; the others once.
PLAN_RULES: tuple[Rule, ...] = (
    deadline_gate,
    flux,
    precopy,
    verified_rate,
    crc_capacity,
    retransmit_timer,
    overlap,
    codec,
    port_budget,
    response_time,
    reachable,
    hysteresis,
)
MOVE_RULES: tuple[Rule, ...] = (
    receiver,
    sender,
    duplex,
    host_link,
    slot_memory,
    prewarm,
    fingerprint,
    session_id,
    motion,
)
RULES: tuple[Rule, ...] = (*PLAN_RULES, *MOVE_RULES)
