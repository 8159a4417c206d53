"""Whether waiting can make a refused decision pass: what a schedule comes back to, and what it gives up."""

from __future__ import annotations

from admission.decision import Decider, Decision
from worldline.verdict import Kind


def may_pass(decider: Decider, decision: Decision) -> bool:
    """Whether a decision passes, or may do so later: it is deferred, or only somebody's absence is in its way.

    Who is away may come back (after a restart of admission everybody is), and what else is wrong is only known then. A
    host that is fenced, and a destination that drains, are no longer waited for.
    """
    if decision.verdict.kind is not Kind.REJECT:
        return True
    source, destination = decision.source, decision.destination
    if source.fenced or destination.fenced or destination.status.draining:
        return False
    fleet, silent_s = decider.fleet, decider.settings.silent_s
    now_s = fleet.now_s()
    movers = [fleet.mover(host.facts.mover_id) for host in (source, destination)]
    return any(host.silent_s(now_s) > silent_s for host in (source, destination)) or any(
        mover is None or now_s - mover.heard_at_s > silent_s for mover in movers
    )
