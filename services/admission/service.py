"""The whole admission process: what works under one term, and the process that leads or stands by."""

from __future__ import annotations

import threading
from pathlib import Path

from admission.active import Means
from admission.alarm import Alarm
from admission.coordinator import Coordinator
from admission.decision import Decider
from admission.effects import Effects
from admission.estimators import PathEstimate
from admission.fleet import Fleet
from admission.gate import Gate
from admission.journal import Journal
from admission.journal_upkeep import Upkeep
from admission.leadership import Candidate, not_leader
from admission.opening import Opener
from admission.placement import Placer
from admission.planning import Planner
from admission.probing import Prober
from admission.profile import Profile
from admission.recovery import recover
from admission.schedule_run import RunMeans
from admission.schedules import Schedules
from admission.server import AdmissionService, Parts
from admission.settings import AdmissionSettings
from admission.turns import Turns
from admission.watch import Feed
from worldline import rpc, telemetry
from worldline.errors import Internal, WorldlineError
from worldline.v1 import admission_service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["AdmissionService"].full_name

# Seconds in which a process that leads, or stands by, on a server must have let go.
_STOP_S = 10.0


class Leader:
    """What works under one term: put together, started and stopped in order."""

    def __init__(self, journal: Journal, settings: AdmissionSettings) -> None:
        self.journal = journal
        self._channels = rpc.Channels(settings)
        self._alarm = Alarm()
        self._feed = Feed(settings.max_watchers)
        self._fleet = Fleet(journal, settings.forget_s, settings.silent_s)
        self._upkeep = Upkeep(journal)
        prior = PathEstimate.prior(settings.bandwidth_Bps, settings.setup_s)
        profile = Profile(prior, journal.estimates(), settings.confidence_s)
        effects = Effects(self._channels, journal.term, settings.call_timeout_s, self._public_address)
        means = Means(journal, effects, self._alarm, profile, settings, self._feed.changed)
        self._coordinator = Coordinator(means, self._fleet)
        decider = Decider(journal, self._fleet, profile, settings, self._coordinator.records)
        opener = Opener(journal, decider, self._coordinator, Turns())
        placer = Placer(journal, self._fleet, profile, settings, self._channels)
        run_means = RunMeans(journal, opener, self._coordinator, Planner(decider), placer.arrivals, self._feed)
        self._schedules = Schedules(run_means, self._fleet)
        self._prober = Prober(profile, journal, self._fleet, self._coordinator, settings, self._channels)
        self.service = AdmissionService(
            Parts(
                journal,
                self._fleet,
                opener,
                placer,
                self._coordinator,
                self._schedules,
                self._feed,
                settings,
            )
        )

    def _public_address(self, host_id: str) -> str:
        return self._fleet.host(host_id).facts.public_address

    def start(self) -> None:
        """Go on with the open moves."""
        recover(self.journal, self._fleet, self._coordinator)
        self._schedules.recover()
        self._prober.start()
        self._upkeep.start()

    def rest(self) -> None:
        """Let nothing more follow; open moves stay open in the journal."""
        self._feed.stop()
        self._prober.stop()
        self._schedules.stop()
        self._coordinator.stop()
        self._upkeep.stop()

    def close(self) -> None:
        """After `rest`: let the journal go, and with it the seat."""
        self._alarm.stop()
        self._channels.close()
        self.journal.close()


class Admission:
    """One admission process. It leads from the start where its journal is a file; else it stands for the seat."""

    def __init__(self, settings: AdmissionSettings) -> None:
        """Opens a journal file. Raises Unavailable if another process holds it."""
        self._settings = settings
        self._server = rpc.Server(settings, [SERVICE])
        self._gate = Gate(lambda: self._candidate.leader if self._candidate else "", settings.lease_s)
        self._gate.serve_on(self._server.grpc)
        self._candidate: Candidate | None = None
        self._leader: Leader | None = None
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._failed: WorldlineError | None = None
        self._contest = threading.Thread(target=self._compete, name="contest", daemon=True)
        if isinstance(settings.journal, Path):
            self._leader = Leader(Journal(settings.journal, settings.keep_moves), settings)

    @property
    def journal(self) -> Journal:
        """The journal of the term that this process leads in. Raises Unavailable: NOT_LEADER."""
        leader = self._leader
        if leader is None:
            raise not_leader(self._candidate.leader if self._candidate else "", self._settings.lease_s)
        return leader.journal

    @property
    def term(self) -> int:
        """The term that this process leads in; 0 while it stands by."""
        leader = self._leader
        return leader.journal.term if leader else 0

    def start(self) -> str:
        """Serve: as the leader, or as one that stands by. Returns host:port.

        Raises:
            Precondition, BadRequest: it cannot listen, or JOURNAL_NEWER. Unavailable: JOURNAL_FAILED.
        """
        journal = self._settings.journal
        if self._leader is not None:
            self._leader.start()
            self._gate.open(self._leader.service, self._leader.journal.tenure.require)
            return self._server.start()
        if isinstance(journal, Path):
            raise Internal("a stopped admission cannot be started again")
        address = self._server.start(serving=False)
        self._candidate = Candidate(journal, self._settings.lease_s, self._settings.address or address)
        self._contest.start()
        self._settled.wait()
        if self._failed is not None:
            raise self._failed
        return address

    def _compete(self) -> None:
        """Stand for the seat, lead while it is ours, and stand again."""
        while not self._stopping.is_set():
            try:
                self._stand_and_lead()
            except Exception as error:
                # Whatever it is, a process that stands by goes on doing so: the others may need it.
                failed = error if isinstance(error, WorldlineError) else Internal(f"{type(error).__name__}: {error}")
                telemetry.log("leadership").error("cannot lead", error=failed.message, reason=failed.reason)
                if not self._settled.is_set():
                    self._failed = failed
                    self._settled.set()
                    return
                self._stopping.wait(self._settings.lease_s / 2)

    def _stand_and_lead(self) -> None:
        candidate = self._candidate
        tenure = candidate.stand(self._stopping, self._settled.set) if candidate else None
        if tenure is None:
            return
        journal = Journal(tenure, self._settings.keep_moves)
        try:
            leader = Leader(journal, self._settings)
        except BaseException:
            journal.close()
            raise
        try:
            leader.start()
            self._leader = leader
            self._gate.open(leader.service, tenure.require)
            self._server.set_serving(SERVICE, True)
            self._settled.set()
            tenure.over.wait()
        finally:
            self._server.set_serving(SERVICE, False)
            self._gate.close()
            self._leader = None
            leader.rest()
            leader.close()

    def wait(self) -> None:
        """Until SIGTERM or SIGINT."""
        self._server.wait()

    def stop(self) -> None:
        """Stop serving; open moves stay open in the journal."""
        self._stopping.set()
        leader = self._leader
        if self._contest.is_alive():
            if leader is not None:
                leader.journal.tenure.over.set()
            self._contest.join(_STOP_S)
        elif leader is not None:
            leader.rest()
        self._server.stop(0.5)
        if leader is not None and isinstance(self._settings.journal, Path):
            leader.close()
