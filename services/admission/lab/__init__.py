"""The lab: a discrete-event fabric in which admission's own rules are one of several controllers."""

from __future__ import annotations
