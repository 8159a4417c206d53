"""What callers ask, checked before anything else looks at it."""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter

from admission.decision import Ask
from admission.holds import require_known
from admission.planning import Wish
from admission.rules import Mode
from worldline import wire
from worldline.contract import MAX_HORIZON_S
from worldline.errors import BadRequest, NotAllowed
from worldline.move import Fault, require_id, require_uuid
from worldline.plan import ALL_CODECS, DEVICE_CODECS, Placement
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import move_pb2

DEFAULT_PAGE, MAX_PAGE = 100, 1_000
DEFAULT_PATIENCE_S, MAX_PLANNED = 30.0, 1_000


def ask_from(request: pb.RequestMoveRequest | pb.EvaluateMoveRequest) -> Ask:
    """The move that is asked for. Raises BadRequest naming the field."""
    if request.mode not in (*Mode, move_pb2.MOVE_MODE_UNSPECIFIED):
        raise BadRequest(f"mode {request.mode} is unknown", violations={"mode": "FROZEN or LIVE is needed"})
    if not math.isfinite(request.patience_s) or not 0 <= request.patience_s <= MAX_HORIZON_S:
        what = f"a number of seconds from 0 to {MAX_HORIZON_S:.0f} is needed"
        raise BadRequest(f"patience_s {request.patience_s} is refused: {what}", violations={"patience_s": what})
    if len(request.transport) > 32:
        raise BadRequest("transport is no transport's name", violations={"transport": "at most 32 characters"})
    if request.placement not in (0, *Placement):
        what = f"one of {', '.join(item.name for item in Placement)} is needed"
        raise BadRequest(f"placement {request.placement} is unknown", violations={"placement": what})
    if request.codec not in ("", *ALL_CODECS):
        what = f"one of {', '.join(ALL_CODECS)} is needed"
        raise BadRequest(f"codec {request.codec[:32]!r} is not built in: {what}", violations={"codec": what})
    if request.codec in DEVICE_CODECS and request.placement not in (0, Placement.DEVICE):
        what = f"{request.codec} is at work on devices: placement DEVICE, or none, is needed"
        raise BadRequest(f"codec {what}", violations={"placement": what})
    return Ask(
        require_id(request.session_id, "session_id"),
        require_id(request.destination_host_id, "destination_host_id") if request.destination_host_id else "",
        Mode(request.mode or Mode.FROZEN),
        request.patience_s,
        request.transport,
        Placement(request.placement) if request.placement else None,
        request.codec,
    )


def schedule_patience_s(given: float) -> float:
    """How long a step of a schedule may wait, in seconds. Raises BadRequest."""
    if not math.isfinite(given) or not 0 <= given <= MAX_HORIZON_S:
        what = f"a number of seconds from 0 to {MAX_HORIZON_S:.0f} is needed"
        raise BadRequest(f"patience_s {given} is refused: {what}", violations={"patience_s": what})
    return given or DEFAULT_PATIENCE_S


def wishes_from(request: pb.PlanRequest) -> list[Wish]:
    """The moves that are asked for. Raises BadRequest naming the field."""
    if not 0 < len(request.moves) <= MAX_PLANNED:
        what = f"1 to {MAX_PLANNED} are needed"
        raise BadRequest(f"a plan of {len(request.moves)} moves is refused: {what}", violations={"moves": what})
    wishes = [
        Wish(
            require_id(move.session_id, f"moves[{index}].session_id"),
            require_id(move.destination_host_id, f"moves[{index}].destination_host_id")
            if move.destination_host_id
            else "",
        )
        for index, move in enumerate(request.moves)
    ]
    twice = [session_id for session_id, count in Counter(wish.session_id for wish in wishes).items() if count > 1]
    if twice:
        raise BadRequest(
            f"session {twice[0]} is planned twice: each move of a plan is of another session",
            violations={"moves": f"{twice[0]} comes twice"},
        )
    return wishes


def faults_from(request: pb.RequestMoveRequest, *, allowed: bool) -> tuple[Fault, ...]:
    """The faults to inject. Raises BadRequest, or NotAllowed where the server does not inject faults."""
    if request.faults and not allowed:
        raise NotAllowed(
            "faults are injected only where admission runs with its fault-injection setting",
            reason="FAULT_INJECTION_OFF",
        )
    faults = wire.faults_from(request.faults)
    require_known(faults)
    return faults


def check_placement(request: pb.PlaceSessionRequest) -> None:
    """Raises BadRequest naming the field."""
    require_uuid(request.request_id, "request_id")
    for name in ("engine", "preset"):
        if not 0 < len(getattr(request, name)) <= 128:
            raise BadRequest(f"{name} is empty or too long", violations={name: "1 to 128 characters"})
    if request.HasField("contract"):
        wire.contract_from(request.contract)
    if request.host_id:
        require_id(request.host_id, "host_id")


def page_size(asked: int) -> int:
    """Items of a page. Raises BadRequest."""
    if asked > MAX_PAGE:
        raise BadRequest(f"page_size {asked} is over {MAX_PAGE}", violations={"page_size": f"at most {MAX_PAGE}"})
    return asked or DEFAULT_PAGE


def token_from(token: str, kind: str) -> str:
    """Where the page begins, "" for the first one. Raises BadRequest if we did not make this token."""
    if not token:
        return ""
    try:
        made, _, place = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        made, place = "", ""
    if made != kind or not place or len(place) > 64:
        raise BadRequest("page_token is not one of ours", violations={"page_token": "use next_page_token as it came"})
    return place


def token_to(kind: str, place: str) -> str:
    """The opaque token of a page."""
    return base64.urlsafe_b64encode(f"{kind}:{place}".encode()).decode()
