"""The whole admission process: its parts put together, started and stopped in order."""

from __future__ import annotations

from admission.active import Means
from admission.alarm import Alarm
from admission.coordinator import Coordinator
from admission.decision import Decider
from admission.effects import Effects
from admission.fleet import Fleet
from admission.journal import Journal
from admission.placement import Placer
from admission.profile import Prior, Profile
from admission.recovery import recover
from admission.server import AdmissionService, Parts
from admission.settings import AdmissionSettings
from admission.watch import Feed
from worldline import rpc
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["AdmissionService"].full_name


class Admission:
    """One admission process."""

    def __init__(self, settings: AdmissionSettings) -> None:
        """Opens the journal. Raises Unavailable if another process holds it."""
        self.journal = Journal(settings.journal, settings.keep_moves)
        self._channels = rpc.Channels(settings)
        self._alarm = Alarm()
        self._feed = Feed(settings.max_watchers)
        self._fleet = Fleet(self.journal, settings.forget_s)
        profile = Profile(Prior(settings.bandwidth_Bps, settings.setup_s), self.journal.paths())
        effects = Effects(self._channels, self.journal.term, settings.call_timeout_s, self._public_address)
        means = Means(self.journal, effects, self._alarm, profile, settings, self._feed.changed)
        self._coordinator = Coordinator(means, self._fleet)
        self._server = rpc.Server(settings, [SERVICE])
        parts = Parts(
            self.journal,
            self._fleet,
            Decider(self.journal, self._fleet, profile, settings, self._coordinator.stalled),
            Placer(self.journal, self._fleet, settings, self._channels),
            self._coordinator,
            self._feed,
            settings,
        )
        pb_grpc.add_AdmissionServiceServicer_to_server(AdmissionService(parts), self._server.grpc)

    def _public_address(self, host_id: str) -> str:
        return self._fleet.host(host_id).facts.public_address

    def start(self) -> str:
        """Go on with the open moves and serve. Returns host:port."""
        recover(self.journal, self._fleet, self._coordinator)
        return self._server.start()

    def wait(self) -> None:
        """Until SIGTERM or SIGINT."""
        self._server.wait()

    def stop(self) -> None:
        """Stop serving; open moves stay open in the journal."""
        self._feed.stop()
        self._coordinator.stop()
        self._server.stop(0.5)
        self._alarm.stop()
        self._channels.close()
        self.journal.close()
