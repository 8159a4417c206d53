"""Servers and channels: health, reflection, our errors as statuses, traces, TLS. Synchronous on a bounded thread pool.

Synchronous because it measured faster than asyncio here, and because a handler that blocks stalls nobody else.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from worldline import telemetry
from worldline.errors import BadRequest, Internal, Precondition, WorldlineError
from worldline.replicas import AioReplicaChannel, ReplicaChannel
from worldline.settings import ServiceSettings
from worldline.status import from_rpc, to_status

MAX_MESSAGE_BYTES = 16 << 20
DATAPATH = "datapath"

# Calls that come every second and mean nothing to a person: no spans.
_QUIET = ("Check", "Watch", "HeartbeatEngineHost", "HeartbeatMover", "GetStatus", "ServerReflectionInfo")

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without a word, or was stopped, is found by pings: nothing waits for it for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The bound that counts where it is the longer one; a minute unless set.
    ("grpc.http2.ping_timeout_ms", 5_000),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels to the same address must not share a broken connection's backoff.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of one process; peers must be signed by `ca` (mTLS)."""

    certificate: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and CA. Raises BadRequest naming the file that cannot be read."""
        found = []
        for name in ("certificate", "key", "ca"):
            path: Path = getattr(self, name)
            try:
                found.append(path.read_bytes())
            except OSError as error:
                what = f"{path} cannot be read: {error.strerror}"
                raise BadRequest(f"tls_{name}: {what}", reason="TLS_FILE", violations={f"tls_{name}": what}) from None
        certificate, key, ca = found
        return certificate, key, ca


def _spoken() -> Callable[[Any], bool]:
    """Filter of the calls that make spans."""
    from opentelemetry.instrumentation.grpc import filters

    return filters.negate(filters.any_of(*(filters.method_name(name) for name in _QUIET)))


def tls_of(settings: ServiceSettings) -> Tls | None:
    """The TLS files of a service's settings; None where TLS is off."""
    if settings.tls_certificate is None or settings.tls_key is None or settings.tls_ca is None:
        return None
    return Tls(settings.tls_certificate, Path(settings.tls_key.get_secret_value()), settings.tls_ca)


class _Errors(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Turns our errors into statuses, and anything else into INTERNAL without telling the caller our insides."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(details)
        if handler is None:
            return None
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _unary(handler.unary_unary, details.method), handler.request_deserializer, handler.response_serializer
            )
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                _unary(handler.stream_unary, details.method), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _stream(handler.unary_stream, details.method), handler.request_deserializer, handler.response_serializer
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                _stream(handler.stream_stream, details.method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return handler


@contextmanager
def _statuses(context: grpc.ServicerContext, method: str) -> Iterator[None]:
    try:
        yield
    except WorldlineError as error:
        context.abort_with_status(rpc_status.to_status(to_status(error)))
    except grpc.RpcError:
        raise
    except Exception as error:
        telemetry.log("rpc").error("unexpected", method=method, exc_info=True)
        hidden = Internal(f"{method.rsplit('/', 1)[-1]} failed: {type(error).__name__}; the server's log says more")
        context.abort_with_status(rpc_status.to_status(to_status(hidden)))


def _unary(call: Callable[..., Any], method: str) -> Callable[..., Any]:
    def handle(request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - any message
        with _statuses(context, method):
            return call(request, context)

    return handle


def _stream(call: Callable[..., Any], method: str) -> Callable[..., Any]:
    def handle(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ANN401 - any message
        with _statuses(context, method):
            yield from call(request, context)

    return handle


class Server:
    """A gRPC server with health and reflection. `address` is where it listens, once started."""

    def __init__(self, settings: ServiceSettings, services: Sequence[str]) -> None:
        """`services`: full names of what will be served, for health and reflection."""
        interceptors: list[grpc.ServerInterceptor[Any, Any]] = [_Errors()]
        if settings.otlp_endpoint:
            from opentelemetry.instrumentation.grpc import server_interceptor

            interceptors.insert(0, server_interceptor(filter_=_spoken()))  # type: ignore[no-untyped-call]
        self._settings = settings
        self._services = tuple(services)
        self._pool = ThreadPoolExecutor(settings.rpc_threads, thread_name_prefix="rpc")
        self.grpc = grpc.server(self._pool, interceptors=interceptors, options=_SERVER_OPTIONS)
        self._health = health.HealthServicer(experimental_non_blocking=True)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if settings.reflection:
            names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.grpc)
        self.address = ""
        # A signal's handler runs between any two instructions of `wait` itself: it may take no lock that `wait` holds.
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self, *, serving: bool = True) -> str:
        """Listen and answer; `serving` is what health says of the services from the first moment. Returns host:port.

        Raises:
            BadRequest: a TLS file cannot be read. Precondition: the address cannot be listened on.
        """
        host, _, port = self._settings.listen.rpartition(":")
        tls = tls_of(self._settings)
        credentials = None
        if tls is not None:
            certificate, key, ca = tls.read()
            credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        try:
            if credentials is None:
                bound = self.grpc.add_insecure_port(f"{host}:{port}")
            else:
                bound = self.grpc.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError as error:
            raise Precondition(
                f"cannot listen on {self._settings.listen}: {error}; is the address this machine's, and its port free?",
                reason="CANNOT_LISTEN",
            ) from None
        self.address = f"{host}:{bound}"
        self.set_serving("", True)
        for name in self._services:
            self.set_serving(name, serving)
        self.grpc.start()
        return self.address

    def set_serving(self, service: str, serving: bool) -> None:
        """Say on the health service whether `service` is served; "" is the whole process, `DATAPATH` its data path."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        self._health.set(service, status)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return on SIGTERM or SIGINT, or once asked to stop; False if neither came in time. Only in the main thread.

        Each signal or request is reported once.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._asked.put(None))
        try:
            self._asked.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True

    def ask_to_stop(self) -> None:
        """Make `wait` return."""
        self._asked.put(None)

    def stop(self, grace_s: float = 2.0) -> None:
        """NOT_SERVING first, then no new calls, then `grace_s` for those in flight."""
        self._health.enter_graceful_shutdown()
        self.grpc.stop(grace_s).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._asked.put(None)


def channel(address: str, tls: Tls | None = None, *, traced: bool = False) -> grpc.Channel:
    """A channel to `address`. `traced`: calls carry the current trace.

    `address`: host:port; or several with commas, of which the one that leads is called.
    """
    if "," in address:
        return ReplicaChannel(address, lambda one: channel(one, tls, traced=traced))
    if tls is None:
        opened = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    else:
        credentials = _channel_credentials(tls)
        opened = grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
    if traced:
        from worldline.traced import traced as with_trace

        opened = with_trace(opened, _spoken())
    return opened


def aio_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """A channel of the running asyncio loop, as `channel`. The current trace is sent by the caller as metadata."""
    if "," in address:
        return cast("grpc.aio.Channel", AioReplicaChannel(address, lambda one: aio_channel(one, tls)))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, _channel_credentials(tls), options=_CHANNEL_OPTIONS)


def _channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    certificate, key, ca = tls.read()
    return grpc.ssl_channel_credentials(ca, key, certificate)


class Channels:
    """Channels by address, opened once and closed together."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._tls = tls_of(settings)
        self._traced = bool(settings.otlp_endpoint)
        self._open: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def to(self, address: str) -> grpc.Channel:
        """The channel to `address`."""
        with self._lock:
            if address not in self._open:
                self._open[address] = channel(address, self._tls, traced=self._traced)
            return self._open[address]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            for opened in self._open.values():
                opened.close()
            self._open.clear()


@contextmanager
def calling(peer: str) -> Iterator[None]:
    """Raise our errors, not gRPC's, from calls to `peer`."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc(error, peer) from None


def remaining_s(context: grpc.ServicerContext, limit_s: float) -> float:
    """Seconds left for a handler: the smaller of its caller's deadline and `limit_s`."""
    left = context.time_remaining()
    return limit_s if left is None else min(limit_s, left)
