"""Start a mover: `worldline-mover --mover-id mover-a --regions-dir /run/worldline`."""

from __future__ import annotations

import json

from mover.server import Mover
from mover.settings import MoverSettings
from mover.transports import lack_of
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.process import exit_with_parent, keep_what_is_here, parser_for
from worldline.settings import load_or_exit, shown


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = parser_for(MoverSettings, "worldline-mover", "Carries regions between engine hosts.")
    arguments = vars(parser.parse_args())
    if arguments.pop("exit_with_parent"):
        exit_with_parent()
    settings = load_or_exit(MoverSettings, **arguments)
    telemetry.configure("mover", settings.mover_id, endpoint=settings.otlp_endpoint, level=settings.log_level)
    telemetry.log("mover").info("starting", settings=shown(settings))
    if "rdma" not in settings.transport_names and (lack := lack_of("rdma", settings.transport_config)):
        telemetry.log("mover").info("rdma_not_offered", reason=lack.reason, message=lack.message)
    mover = Mover(settings)
    try:
        try:
            address = mover.start()
        except WorldlineError as error:
            raise SystemExit(f"worldline-mover: {error}") from None
        keep_what_is_here()
        print(json.dumps({"ready": True, "service": "mover", "id": settings.mover_id, "address": address}), flush=True)
        mover.wait()
    finally:
        mover.stop()
        telemetry.shutdown()


if __name__ == "__main__":
    main()
