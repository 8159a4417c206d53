"""Starts one engine host: `python -m enginehost --host-id ...` or `worldline-enginehost`."""

from __future__ import annotations

import sys

from enginehost.settings import EngineHostSettings
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.process import exit_with_parent, parser_for
from worldline.settings import load_or_exit


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = parser_for(EngineHostSettings, "worldline-enginehost", "Owns and plays the sessions of a device.")
    values = vars(parser.parse_args())
    if values.pop("exit_with_parent"):
        exit_with_parent()
    settings = load_or_exit(EngineHostSettings, **values)
    telemetry.configure("enginehost", settings.host_id, endpoint=settings.otlp_endpoint, level=settings.log_level)
    # Imported late: torch takes seconds, and a wrong setting is told at once.
    from enginehost.process import serve

    try:
        serve(settings)
    except WorldlineError as error:
        print(f"worldline-enginehost: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
