"""The call that a move is in, and how another thread breaks it off."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc


class Interrupted(Exception):
    """The ask was broken off because something else happened to the move, or because admission stops."""


class Line:
    """The call a move is in, so that another thread can break it off. `meanwhile` is run while one is under way."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._call: grpc.Call | grpc.Future[object] | None = None
        self._broken = False

    def arm(self) -> None:
        """Let calls through again."""
        with self._lock:
            self._broken = False

    def break_off(self) -> None:
        """Cancel the call in flight, and each one that is begun before `arm`."""
        with self._lock:
            self._broken = True
            call = self._call
        if call is not None:
            call.cancel()

    def hold(self, call: grpc.Call | grpc.Future[object]) -> None:
        """This is the call in flight now."""
        with self._lock:
            self._call = call
            broken = self._broken
        if broken:
            call.cancel()
        self._meanwhile()

    def settle(self) -> None:
        """The call in flight brought its answer."""
        with self._lock:
            self._call = None

    def end(self) -> None:
        """The call in flight brought none. Raises Interrupted if it was broken off."""
        with self._lock:
            self._call = None
            if self._broken:
                raise Interrupted
