"""Whether a preset is warm at a destination, as its host says, and what its first touch takes there."""

from __future__ import annotations

from admission.fleet import Host


def warmth_at(source: Host, destination: Host, preset: str) -> tuple[bool | None, float | None]:
    """Warm or cold, and the seconds of a first touch: measured there, or at the source, which runs on the same.

    None, None: it was not told, or is cold and nobody has measured that.
    """
    told = {entry.preset: entry for entry in destination.status.presets}.get(preset)
    if told is None:
        return None, None
    if told.warm:
        return True, None
    measured = [told, *(entry for entry in source.status.presets if entry.preset == preset)]
    first_touch_s = next((entry.first_touch_s for entry in measured if entry.first_touch_s > 0), None)
    return (None, None) if first_touch_s is None else (False, first_touch_s)
