"""Transport "rdma": opens the device, lets streams in, connects them."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from mover.transports.rdma import exchange
from mover.transports.rdma.config import RdmaConfig
from mover.transports.rdma.control import Control
from mover.transports.rdma.device import Device
from mover.transports.rdma.link import Link
from mover.transports.rdma.queue_pair import Census, QueuePair
from mover.transports.rdma.receiver import Landing, Places, Receiver
from mover.transports.rdma.regions import Regions
from mover.transports.rdma.sender import Sender, Source
from mover.transports.rdma.staging import PLACES
from mover.transports.tcp_port import DataPort, MoveListener, greet
from worldline.errors import BadRequest, Cancelled, Internal, TimedOut, Unavailable, WorldlineError
from worldline.plan import Chunk
from worldline.transport import Terms

# Immediates that may wait at a receiver; beyond them its peer is told to wait by the device.
_MAX_RECEIVES = 512
_ACCEPT_S = 3_600.0
# A sender says four times within the other side's patience that its bytes move.
_BEATS = 4


class _Listener:
    """One move at the port: a thread exchanges with each stream that has presented the token."""

    def __init__(self, home: Rdma, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> None:
        self.endpoint = home.port.endpoint
        self._home = home
        self._chunks = chunks
        self._terms = terms
        self._changed = threading.Condition()
        self._ready: deque[Receiver | WorldlineError] = deque()
        self._exchanging: socket.socket | None = None
        self._closed = False
        self._landing = Landing(home.device, home.regions, region, len(chunks))
        try:
            self._arrivals: MoveListener = home.port.expect(terms)
        except BaseException:
            self._landing.let_go()
            raise
        self._thread = threading.Thread(target=self._let_in, name="rdma-accept", daemon=True)
        self._thread.start()

    def accept(self) -> Receiver:
        patience_s = self._terms.no_progress_s
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed, patience_s)
            if self._closed:
                raise Cancelled("the listener was closed", reason="LINK_CLOSED")
            if not self._ready:
                raise TimedOut(
                    f"not all of {self._terms.streams} streams came within {patience_s} s",
                    reason="NO_PROGRESS",
                    numbers={"streams": self._terms.streams, "no_progress_s": patience_s},
                )
            first = self._ready.popleft()
        if isinstance(first, WorldlineError):
            raise first
        return first

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            if self._exchanging is not None:
                with suppress(OSError):  # the peer was first
                    self._exchanging.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        self._arrivals.close()
        self._thread.join()
        for item in self._ready:
            if isinstance(item, Receiver):
                item.close()
        self._landing.let_go()

    def _let_in(self) -> None:
        while True:
            try:
                connected, traceparent = self._arrivals.accept(_ACCEPT_S)
            except TimedOut:
                continue
            except Cancelled:
                return
            with self._changed:
                self._exchanging = connected
                closed = self._closed
            if closed:
                connected.close()
                return
            result = self._exchange(connected, traceparent)
            with self._changed:
                self._exchanging = None
                self._ready.append(result)
                self._changed.notify_all()

    def _exchange(self, connected: socket.socket, traceparent: str) -> Receiver | WorldlineError:
        deadline = time.monotonic() + min(exchange.EXCHANGE_S, self._terms.no_progress_s)
        try:
            peer = exchange.receive_end(connected, deadline)
            return self._offer(connected, peer, traceparent)
        except OSError as error:
            connected.close()
            return Unavailable(f"a stream broke before it was open: {error}", reason="PEER_GONE")
        except WorldlineError as error:
            with suppress(OSError):  # the peer is gone as well
                exchange.send_refusal(connected, error.message)
            connected.close()
            return error

    def _offer(self, connected: socket.socket, peer: exchange.End, traceparent: str) -> Receiver:
        home, landing, terms = self._home, self._landing, self._terms
        receives = min(2 * len(self._chunks) + 4, _MAX_RECEIVES) + (PLACES if terms.coded else 0)
        places: Places | None = None

        def let_go() -> None:
            if places is not None:
                places.let_go()
            landing.let_go()

        landing.hold()
        try:
            places = Places(landing) if terms.coded else None
            queue_pair = QueuePair(home.device, home.census, receives, let_go, landing.domain)
        except BaseException:
            let_go()
            raise
        try:
            queue_pair.connect(peer)
            keys = queue_pair.let_in(landing.region)
            (records_key,) = queue_pair.let_in(landing.records_registered)
            (staging_key,) = queue_pair.let_in(places.registered) if places else (0,)
            control = Control(connected, len(self._chunks), terms.no_progress_s)
            link = Link(home.device, queue_pair, control, terms.no_progress_s)
            receiver = Receiver(link, landing, self._chunks, traceparent, places.staging if places else None)
            receiver.expect(receives)
            region, records = landing.region, landing.records_registered.segments[0]
            staging = places.registered if places else None
            exchange.send_offer(
                connected,
                exchange.Offer(
                    queue_pair.end,
                    region.segments[0].address,
                    region.size_bytes,
                    region.segments[0].size_bytes,
                    keys,
                    records.address,
                    records_key,
                    len(self._chunks) + 1,
                    staging.segments[0].address if staging else 0,
                    staging_key,
                    PLACES if staging else 0,
                ),
            )
        except BaseException:
            queue_pair.close()
            raise
        return receiver


class Rdma:
    """Moves over one port of one verbs device. Raises what `Device` raises."""

    name = "rdma"

    def __init__(self, config: RdmaConfig, data_listen: str, data_host: str = "") -> None:
        """Greetings arrive where `config.listen` says, else on a free port of the host of `data_listen`."""
        self.census = Census()
        self.device = Device(config)
        self.retransmit_floor_s = self.device.retransmit_floor_s
        self.regions = Regions(
            self.device.verbs, self.device.segment_bytes, config.cache_bytes, windows=config.access == "window"
        )
        try:
            listen = config.listen or f"{data_listen.rpartition(':')[0]}:0"
            self.port = DataPort(listen, config.host or data_host, "")
        except BaseException:
            self.regions.close()
            self.device.close()
            raise

    def listen(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> _Listener:
        """See `worldline.transport.Transport`."""
        return _Listener(self, region, chunks, terms)

    def connect(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str, stream: int) -> Sender:
        """See `worldline.transport.Transport`."""
        connected = greet(endpoint, terms, stream, "")
        try:
            source = Source(self.regions, region, len(chunks), coded=terms.coded)
            try:
                queue_pair = QueuePair(self.device, self.census, 1, source.close)
            except BaseException:
                source.close()
                raise
            try:
                return self._connect(connected, queue_pair, source, chunks, terms)
            except BaseException:
                queue_pair.close()
                raise
        except OSError as error:
            connected.close()
            raise Unavailable(f"the receiver is gone: {error}", reason="PEER_GONE", retry_after_s=1.0) from None
        except BaseException:
            connected.close()
            raise

    def _connect(
        self, connected: socket.socket, queue_pair: QueuePair, source: Source, chunks: Sequence[Chunk], terms: Terms
    ) -> Sender:
        exchange.send_end(connected, queue_pair.end)
        deadline = time.monotonic() + min(exchange.EXCHANGE_S, terms.no_progress_s)
        offer = exchange.receive_offer(connected, deadline)
        if offer.size_bytes != source.size_bytes or offer.records != len(chunks) + 1:
            raise BadRequest(
                f"the receiver offers {offer.size_bytes} bytes and {offer.records - 1} chunks for "
                f"{source.size_bytes} bytes and {len(chunks)} chunks",
                reason="WRONG_PEER",
            )
        if offer.places != (PLACES if terms.coded else 0):
            raise BadRequest(
                f"the receiver offers {offer.places} places for coded pieces, the plan needs "
                f"{PLACES if terms.coded else 0}",
                reason="WRONG_PEER",
            )
        queue_pair.connect(offer.end)
        control = Control(connected, len(chunks), terms.no_progress_s)
        link = Link(self.device, queue_pair, control, terms.no_progress_s)
        config = self.device.config
        return Sender(
            link,
            source,
            offer,
            chunks,
            config.depth,
            self.device.max_message_bytes,
            terms.no_progress_s / _BEATS,
        )

    def close(self) -> None:
        """See `worldline.transport.Transport`. Raises Internal if a move still holds something."""
        self.port.close()
        if self.census.queue_pairs or self.census.windows:
            raise Internal(
                f"{self.census.queue_pairs} queue pairs and {self.census.windows} memory windows are still open",
                reason="REGION_IN_USE",
            )
        self.regions.close()
        self.device.close()
