"""How the command shows things: tables, moves and frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from google.protobuf import json_format, message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from worldline.playing import Block
from worldline.v1 import contract_pb2, engine_host_service_pb2, move_pb2

STAGES = ("reserve", "freeze", "wire", "verify", "release", "commit")


def console() -> Console:
    """Where people read. Into a pipe lines are long rather than folded, so that ids stay whole."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=200)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2))


def as_dict(value: message.Message) -> dict[str, object]:
    """A message as JSON with its own field names, every scalar present."""
    out: dict[str, object] = json_format.MessageToDict(
        value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return out


def state_name(state: int) -> str:
    """MOVED for MOVE_STATE_MOVED, and so on."""
    return move_pb2.MoveState.Name(state).removeprefix("MOVE_STATE_")  # type: ignore[arg-type]


def verdict_name(kind: int) -> str:
    """ADMIT for VERDICT_KIND_ADMIT, and so on."""
    return move_pb2.VerdictKind.Name(kind).removeprefix("VERDICT_KIND_")  # type: ignore[arg-type]


def session_state(state: int) -> str:
    """LIVE for SESSION_STATE_LIVE, and so on."""
    return engine_host_service_pb2.SessionState.Name(state).removeprefix("SESSION_STATE_")  # type: ignore[arg-type]


def class_name(kind: int) -> str:
    """C1 for CONTRACT_CLASS_C1, and so on."""
    return contract_pb2.ContractClass.Name(kind).removeprefix("CONTRACT_CLASS_")  # type: ignore[arg-type]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table."""
    made = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        made.add_row(*row)
    return made


def human_bytes(value: int) -> str:
    """12.3 MB; powers of ten, as links are rated."""
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def stages(move: move_pb2.Move) -> dict[str, float]:
    """Stage -> seconds."""
    return {name: round(getattr(move.stages, f"{name}_s"), 6) for name in STAGES}


def wire_gap(move: move_pb2.Move) -> str:
    """How long after its decision a move's bytes were on the wire; empty before that."""
    return f"{(move.wire_at_s - move.decided_at_s) * 1e3:.1f} ms" if move.wire_at_s and move.decided_at_s else ""


def receipts_equal(move: move_pb2.Move) -> bool:
    """Whether both receipts are there and vouch for the same bytes."""
    source, destination = move.source_receipt, move.destination_receipt
    fields = ("move_id", "epoch", "layout_digest", "manifest_digest", "plan_digest", "size_bytes", "state_crc")
    return (
        source.size_bytes > 0
        and list(source.chunk_crcs) == list(destination.chunk_crcs)
        and all(getattr(source, name) == getattr(destination, name) for name in fields)
    )


def verdict_lines(verdict: move_pb2.Verdict) -> list[str]:
    """One line a clause."""
    head = verdict_name(verdict.kind)
    if verdict.retry_after_s:
        head += f", ask again in {verdict.retry_after_s:.2f} s"
    lines = [head]
    for clause in verdict.clauses:
        mark = {"ADMIT": "passes", "REJECT": "fails", "DEFER": "waits"}[verdict_name(clause.verdict)]
        lines.append(f"  {clause.name} {mark}: {clause.arithmetic}")
    return lines


def move_lines(move: move_pb2.Move) -> list[str]:
    """A closed move for people."""
    lines = [
        f"move {move.move_id} of {move.session_id}: {move.source_host_id} -> {move.destination_host_id or '-'}: "
        f"{state_name(move.state)}"
    ]
    if move.reason:
        lines.append(f"  {move.reason}: {move.message}")
    if move.source_receipt.size_bytes:
        for receipt, side in ((move.source_receipt, "source"), (move.destination_receipt, "destination")):
            if receipt.size_bytes:
                lines.append(
                    f"  {side} receipt by {receipt.host_id}: {human_bytes(receipt.size_bytes)} in "
                    f"{len(receipt.chunk_crcs)} chunks, state CRC {receipt.state_crc:08x}"
                )
    lines.append("  " + ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in stages(move).items()))
    if move.stages.downtime_s:
        lines.append(f"  freeze to playable {move.stages.downtime_s * 1e3:.1f} ms")
    if wire_gap(move):
        lines.append(f"  decision to wire {wire_gap(move)}")
    if move.trace_id:
        lines.append(f"  trace {move.trace_id}")
    return lines


def picture(block: Block, *, rows: int = 16) -> Text:
    """The last frame of a block as coloured half blocks, at most `rows` pixels high."""
    size = block.height * block.width * block.channels
    frame = block.readout[(block.frames - 1) * size : block.frames * size]
    step = max(1, -(-block.height // rows))
    text = Text()
    for y in range(0, block.height - step, 2 * step):
        for x in range(0, block.width, step):
            upper, lower = (_colour(frame, block, x, row) for row in (y, y + step))
            text.append("\u2580", style=f"{upper} on {lower}")
        text.append("\n")
    return text


def _colour(frame: bytes, block: Block, x: int, y: int) -> str:
    at = (y * block.width + x) * block.channels
    pixel = frame[at : at + block.channels]
    red, green, blue = pixel[:3] if block.channels >= 3 else (pixel[0],) * 3
    return f"rgb({red},{green},{blue})"
