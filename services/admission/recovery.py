"""After a start: every move that is open in the journal goes on from where it was journaled."""

from __future__ import annotations

from admission.active import death
from admission.coordinator import Coordinator
from admission.fleet import Fleet
from admission.journal import Journal
from admission.machine import Event, EventKind
from worldline import telemetry


def recover(journal: Journal, fleet: Fleet, coordinator: Coordinator) -> list[str]:
    """Start the open moves again; what died while admission was away is told to them first. Returns their ids."""
    recovered = []
    for record in journal.open_moves():
        news = [
            Event(
                EventKind.RESTARTED,
                "ADMISSION_RESTARTED",
                "admission was restarted before both receipts were there; the source plays on",
            )
        ]
        for host, kind, noted in (
            (record.source, EventKind.SOURCE_DIED, record.state.source_dead),
            (record.destination, EventKind.DESTINATION_DIED, record.state.destination_dead),
        ):
            if not noted and fleet.dead(host.host_id, host.incarnation):
                news.append(death(kind, host.host_id, host.incarnation))
        coordinator.start(record, None, tuple(news))
        recovered.append(record.move_id)
    if recovered:
        telemetry.log("recovery").info("moves go on", count=len(recovered))
    return recovered
