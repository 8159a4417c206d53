"""The process of one engine host: its parts put together, started in order, and ended cleanly."""

from __future__ import annotations

import json
import os
import time

import torch

from enginehost.cold_proof import prove
from enginehost.cpu import Cpu
from enginehost.device import Device
from enginehost.driving import Driving
from enginehost.host import Host, allow_many_files
from enginehost.incarnation import Incarnation
from enginehost.lifecycle import Lifecycle
from enginehost.prewarm import prewarm
from enginehost.registration import Registration
from enginehost.server import EngineHostServicer
from enginehost.settings import EngineHostSettings
from worldline import engine as engines
from worldline import rpc, telemetry
from worldline.engine import DeviceEngine, Engine
from worldline.errors import BadRequest, StaleFence, WorldlineError
from worldline.process import keep_what_is_here
from worldline.settings import shown
from worldline.v1 import engine_host_service_pb2
from worldline.v1.engine_host_service_pb2_grpc import add_EngineHostServiceServicer_to_server

SERVICE = engine_host_service_pb2.DESCRIPTOR.services_by_name["EngineHostService"].full_name
STOP_GRACE_S = 1.0
TELL_S = 0.5
DRAIN_TICK_S = 0.05


def serve(settings: EngineHostSettings) -> None:
    """Serve until SIGTERM, SIGINT or the order to stop. Prints one JSON line when ready."""
    log = telemetry.log("enginehost")
    allow_many_files()
    torch.set_num_threads(settings.torch_threads)
    device = _device(settings.device)
    served = _engines(settings.engines, device)
    incarnation = Incarnation(settings.state_dir, settings.host_id)
    host = Host(settings, served, incarnation.number, device, incarnation.state_id)
    channels = rpc.Channels(settings)
    lifecycle = Lifecycle(host)
    server = rpc.Server(settings, [SERVICE])
    try:
        prewarm(host)
        prove(host)
        host.regions.start()
        host.scheduler.start()
        host.warm_slots.start()
        lifecycle.start()
        servicer = EngineHostServicer(host, lifecycle, Driving(host, channels))
        add_EngineHostServiceServicer_to_server(servicer, server.grpc)
        address = server.start()
        server.set_serving(rpc.DATAPATH, True)
        cluster_address = settings.cluster_address or address
        public_address = settings.public_address or address
        servicer.cluster_address = cluster_address

        refusals: list[WorldlineError] = []

        def refused(why: WorldlineError) -> None:
            refusals.append(why)
            host.end_all("FENCED")
            server.ask_to_stop()

        registration = (
            Registration(host, channels, cluster_address, public_address, refused) if settings.admission else None
        )
        if registration is not None:
            registration.start()
        log.info("started", incarnation=incarnation.number, engines=sorted(served), settings=shown(settings))
        ready = {
            "ready": True,
            "service": "enginehost",
            "id": settings.host_id,
            "address": address,
            "public_address": public_address,
            "incarnation": incarnation.number,
            "pid": os.getpid(),
        }
        keep_what_is_here()
        print(json.dumps(ready), flush=True)
        server.wait()
        host.draining = True
        if registration is not None:
            registration.tell(TELL_S)
        if not host.ended:
            _drain(host, server)
        if registration is not None:
            registration.stop()
        for refusal in refusals:
            if not isinstance(refusal, StaleFence):
                raise refusal
    finally:
        host.end_all("DRAINING")
        lifecycle.stop()
        server.stop(STOP_GRACE_S)
        host.ahead.close()
        host.warm_slots.stop()
        host.regions.close()
        host.staging.close()
        host.suspended.close()
        channels.close()
        incarnation.close()


def _drain(host: Host, server: rpc.Server) -> None:
    """Let sessions be moved away for `drain_s`, or until told to stop once more."""
    log = telemetry.log("enginehost")
    until_s = time.monotonic() + host.settings.drain_s
    while (count := host.sessions.count()) and (left_s := until_s - time.monotonic()) > 0:
        if server.wait(min(DRAIN_TICK_S, left_s)):
            break
    if count:
        log.warning("ends with sessions that were not moved away", count=count)


def _device(name: str) -> Device:
    """The device that sessions live on. Raises Unsupported."""
    if name == "cpu":
        return Cpu()
    # Only here: a host on the CPU needs none of CUDA.
    from enginehost.cuda.device import CudaDevice

    return CudaDevice(int(name.partition(":")[2]))


def _engines(wanted: str, device: Device) -> dict[str, Engine]:
    found = engines.installed()
    names = [name.strip() for name in wanted.split(",") if name.strip()] or sorted(found)
    missing = [name for name in names if name not in found]
    if missing:
        raise BadRequest(
            f"engines {', '.join(missing)} are not installed; installed are {', '.join(sorted(found)) or 'none'}",
            violations={"engines": f"{', '.join(missing)} not installed"},
        )
    if device.device_id:
        unable = [name for name in names if not isinstance(found[name], DeviceEngine)]
        if unable and wanted:
            raise BadRequest(
                f"engines {', '.join(unable)} serve on the CPU only: they have no use_device",
                violations={"engines": f"{', '.join(unable)} cannot serve on {device.torch_device}"},
            )
        names = [name for name in names if name not in unable]
    served = {name: found[name] for name in names}
    for engine in served.values():
        if isinstance(engine, DeviceEngine):
            engine.use_device(device.torch_device)
    return served
