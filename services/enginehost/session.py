"""One session on this host: what it is, where it stands, and how it plays.

`cond` guards every field and is held for moments only. `verbs` is held by whatever changes what the session is (a verb
of a move, closing), also while that copies or computes. The engine's session is used by the serving thread while
`busy`, and by the holder of `verbs` once the session stands still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginehost import tree
from enginehost.device import Attached
from enginehost.loading import Loaded
from enginehost.ownership import Ownership, State
from enginehost.slots import Flattened, Slot
from enginehost.staging import Buffer
from enginehost.stream import Stream
from worldline import telemetry
from worldline.crc import crc32
from worldline.engine import Engine, EngineSession, Preset, Readout
from worldline.errors import BadRequest, Internal, Mismatch, NotFound, TimedOut, Unmovable, WrongState
from worldline.filling import Filling
from worldline.made import Made
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.plan import Plan
from worldline.receipt import Receipt
from worldline.v1 import engine_host_service_pb2 as pb

if TYPE_CHECKING:
    from enginehost.sampling import Sample

_SMOOTHING = 0.25
_log = telemetry.log("session")


@dataclass(frozen=True, slots=True)
class Copy:
    """What is held of a session: its slot, whose it is, and what of it a move may make instead of sending it."""

    descriptor: Descriptor
    engine: Engine
    preset: Preset
    fingerprint: Fingerprint
    slot: Slot
    made: tuple[Made, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The state of a suspended session, in host memory only: the CRC-32 of each piece as it lay in its slot."""

    buffer: Buffer
    crcs: tuple[int, ...]
    copy_s: float
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """A frozen state, the grant its manifest promises, and what making it took."""

    manifest: Manifest
    grant: bytes
    boundary_s: float
    flattened_bytes: int
    flatten_s: float
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Landing:
    """What was attested of a staged copy, and once it was taken, what that took in seconds."""

    manifest: Manifest
    plan: Plan
    receipt: Receipt | None
    verify_s: float = 0.0
    swap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a session went from here, by which move, and the grant that gave it."""

    move_id: str
    grant: bytes
    host_id: str
    public_address: str
    epoch: int
    freed_bytes: int


class Session:
    """One session, or what is remembered of it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.cond = threading.Condition()
        self.verbs = threading.Lock()
        self.users = 0  # guarded by the registry
        self.ownership = Ownership()
        self.copy: Copy | None = None
        self.runner: EngineSession | None = None
        self.host_copy: HostCopy | None = None  # where the state is while `copy` has no slot memory
        self.descriptor: Descriptor | None = None
        self.next_block = 0
        self.acked = -1
        self.block_s = 0.0
        self.flattened_bytes = 0
        self.dirty_bytes_per_block = 0
        self.cold_bytes = 0
        self.sample: Sample | None = None  # what a codec would leave of it, when its host looked last
        self.freeze: Freeze | None = None
        self.freeze_timer: threading.Timer | None = None
        self.landings: dict[str, Landing] = {}  # by move
        self.attached: Attached | None = None  # the source's region, for the staged copy's move
        self.pulled: dict[int, int] = {}  # CRC-32 of each chunk that was pulled from it, as it lay in the slot
        self.staging: tuple[str, Buffer] | None = None  # the move that its bytes go through host memory for, and where
        self.landing: tuple[str, Filling] | None = None  # the move whose bytes still land in it, and how far they have
        self.prepared: Loaded | None = None  # what was attested of the staged copy, loaded ahead of its commit
        self.moved: Moved | None = None
        self.stream: Stream | None = None
        self.registered: tuple[str, float] | None = None  # the move that came last, and when (monotonic)
        self.staged_at_s = 0.0  # when the move of the staged copy was last heard of (monotonic)
        self.away_since_s = time.monotonic()
        self._last: pb.PlayBlock | None = None
        self._quantum: int | None = None
        self._busy = False
        self._halted = False
        self._pause_at: int | None = None
        self._spent_s = 0.0

    # --- what is held

    def require_copy(self) -> Copy:
        """What is held. Raises NotFound or WrongState if nothing is."""
        copy = self.copy
        if copy is not None:
            return copy
        if self.moved is not None and self.ownership.state is State.GONE:
            raise WrongState(
                f"session {self.session_id} has moved to {self.moved.public_address}",
                reason="SESSION_GONE",
                numbers={"moved_to": self.moved.public_address},
            )
        if self.ownership.closed:
            raise NotFound(
                f"session {self.session_id} was closed",
                reason="SESSION_CLOSED",
                resource=("session", self.session_id),
            )
        raise NotFound(
            f"session {self.session_id} is not on this host",
            reason="UNKNOWN_SESSION",
            resource=("session", self.session_id),
        )

    def install(self, copy: Copy, loaded: Loaded, next_block: int) -> None:
        """The session lives in `copy` from now on. Holder of `verbs`."""
        with self.cond:
            self.copy, self.runner, self.descriptor = copy, loaded.runner, copy.descriptor
            self.prepared = None
            self.next_block = next_block
            self.acked = next_block - 2 if next_block else -1
            self.dirty_bytes_per_block, self.cold_bytes = loaded.dirty_bytes_per_block, loaded.cold_bytes

    def let_go(self) -> int:
        """Hold nothing any more. Returns the bytes freed. Holder of `verbs`, with the session standing still."""
        with self.cond:
            copy, self.copy, self.runner, self._last = self.copy, None, None, None
            host_copy, self.host_copy = self.host_copy, None
            self.freeze = self.prepared = None
            self._quantum = None
            self.cond.notify_all()
        self.detach()
        self.unstage()
        if host_copy is not None:
            host_copy.buffer.give_back(unmapped=True)
        return copy.slot.close() if copy is not None else 0

    def detach(self) -> None:
        """Unmap the source's region, if it is mapped: nothing is pulled into the slot from now on."""
        with self.cond:
            attached, self.attached = self.attached, None
            self.pulled = {}
        if attached is not None:
            attached.close()

    def stage_through(self, move_id: str, buffer: Buffer) -> None:
        """The move's bytes go through `buffer`; one of an earlier move is given back."""
        with self.cond:
            before, self.staging = self.staging, (move_id, buffer)
        if before is not None:
            before[1].give_back(unmapped=False)

    def staged_through(self, move_id: str) -> Buffer:
        """The buffer of a move. Raises WrongState if it has none (any more)."""
        staging = self.staging
        if staging is None or staging[0] != move_id:
            raise WrongState(
                f"move {move_id} has no host memory here: it was not staged, or is over", reason="NOT_STAGED"
            )
        return staging[1]

    def unstage(self, move_id: str = "", *, unmapped: bool = False) -> None:
        """Give the buffer back, if there is one and it is this move's (any move's if none is named)."""
        with self.cond:
            staging = self.staging
            if staging is None or (move_id and staging[0] != move_id):
                return
            self.staging = None
        staging[1].give_back(unmapped=unmapped)

    @contextmanager
    def expecting(self, move_id: str, landing: Filling | None) -> Iterator[None]:
        """Whoever waits inside for bytes of the move that still land is woken by `expect_no_more`."""
        with self.cond:
            self.landing = None if landing is None else (move_id, landing)
        try:
            yield
        finally:
            with self.cond:
                self.landing = None

    def expect_no_more(self, move_id: str) -> None:
        """Bytes of this move that have not landed will not."""
        with self.cond:
            landing = self.landing
        if landing is not None and landing[0] == move_id:
            landing[1].stop()

    def in_a_move(self, within_s: float) -> bool:
        """Whether a move has registered that is not over here, and that may still freeze. Holder of `cond`."""
        if self.registered is None:
            return False
        move_id, at_s = self.registered
        return time.monotonic() - at_s < within_s and not self.ownership.over_here(move_id)

    # --- standing still

    def halt(self, timeout_s: float) -> float:
        """Play no further than the next block boundary, and wait for it. Returns the seconds waited.

        Raises:
            TimedOut: the boundary did not come in time; the session plays on.
            NotFound: the session ended while waiting.
        """
        started_s = time.monotonic()
        with self.cond:
            self._halted = True
            try:
                if not self.cond.wait_for(self._still, timeout_s):
                    raise TimedOut(
                        f"block {self.next_block} did not end within {timeout_s:.3f} s; the session plays on",
                        reason="NO_BLOCK_BOUNDARY",
                        numbers={"block": self.next_block, "waited_s": timeout_s},
                    )
                self.require_copy()
            except BaseException:
                self._halted = False
                raise
        return time.monotonic() - started_s

    def go(self) -> None:
        """Undo `halt`."""
        with self.cond:
            self._halted = False

    def pause_at(self, block: int | None) -> None:
        """Do not begin block `block` or a later one before this is called again; None: the player decides alone."""
        with self.cond:
            self._pause_at = block

    def _still(self) -> bool:
        return self.copy is None or (self._quantum is None and not self._busy)

    @property
    def at_boundary(self) -> bool:
        """Whether no block is being played."""
        with self.cond:
            return self._still()

    def flatten(self) -> Flattened:
        """Bring the slot's bytes up to date with the engine's session, which stands still.

        Raises:
            Mismatch: LAYOUT_DRIFT; nothing has changed.
            Unmovable: a leaf has become one that cannot be moved; nothing has changed.
        """
        copy, runner = self.require_copy(), self.runner
        if runner is None:
            raise WrongState(f"session {self.session_id} is staged, not live")
        state = runner.state_tree()
        written = copy.slot.flatten_values(state)
        if written is not None:
            return written
        captured = tree.capture(state, copy.slot.device.torch_device)
        tree.require_same(copy.slot.layout, captured.layout)
        flattened = copy.slot.flatten(captured)
        if flattened.displaced:
            # Leaves that had changed places in the arena now see each other's bytes: live in the arena afresh.
            try:
                runner = copy.engine.load(copy.preset.name, copy.slot.rehydrate())
            except BaseException:
                flattened.undo()
                raise
            with self.cond:
                self.runner = runner
        return flattened

    # --- playing, by the serving thread

    def turn(self) -> bool:
        """Do one quantum, or one readout asked again. Returns whether more may be done at once."""
        with self.cond:
            runner, copy = self.runner, self.copy
            if runner is None or copy is None or not self._may_run():
                return False
            stream = self.stream
            action = None
            if self._quantum is None:
                if stream is None:
                    return False
                if stream.replay_wanted:
                    stream.replay_wanted = False
                elif self.next_block in stream.actions and self.acked >= self.next_block - 1:
                    action = stream.actions.pop(self.next_block)
                else:
                    return False
            quantum = self._quantum
            self._busy = True
        try:
            self._work(runner, copy, stream, quantum, action)
        finally:
            with self.cond:
                self._busy = False
                self.cond.notify_all()
        return True

    def _may_run(self) -> bool:
        """Inside a block always (its end is the boundary); at one only if live and not halted."""
        if self._quantum is not None:
            return True
        paused = self._pause_at is not None and self.next_block >= self._pause_at
        return self.ownership.state is State.LIVE and not self._halted and not paused

    def _work(
        self, runner: EngineSession, copy: Copy, stream: Stream | None, quantum: int | None, action: bytes | None
    ) -> None:
        if quantum is None and action is None:
            if stream is not None and self.next_block:
                stream.push(pb.PlayResponse(block=self._again(runner)))
            return
        started_s = time.monotonic()
        if quantum is None:
            try:
                runner.begin_block(action or b"")
            except BadRequest as error:
                if stream is not None:
                    stream.finish(error=error)
                return
            quantum, self._spent_s = 0, 0.0
        runner.step(quantum)
        self._spent_s += time.monotonic() - started_s
        if quantum + 1 < copy.preset.quanta_per_block:
            with self.cond:
                self._quantum = quantum + 1
            return
        runner.end_block()
        self._end_block(runner, copy)

    def _end_block(self, runner: EngineSession, copy: Copy) -> None:
        block = _block(self.next_block, self.ownership.epoch, runner.readout())
        copy.slot.device.settle()
        stream = self.stream
        refused = None
        if stream is not None and stream.with_state_crc:
            try:
                self.flatten()
                block.state_crc = copy.slot.crc()
            except (Mismatch, Unmovable) as error:
                refused = error
        with self.cond:
            self.next_block += 1
            self._quantum = None
            self._last = block
            self.block_s += (self._spent_s - self.block_s) * (_SMOOTHING if self.block_s else 1.0)
            if self.stream is not None:
                # What was asked again is what is sent now.
                self.stream.replay_wanted = False
                self.stream.push(pb.PlayResponse(block=block))
        if refused is not None and stream is not None:
            # The session can be played, but not moved and not checked: whoever asked for its CRC is told.
            stream.finish(error=refused)

    def _again(self, runner: EngineSession) -> pb.PlayBlock:
        if self._last is None:
            # Played on another host: the readout is a function of the state.
            self._last = _block(self.next_block - 1, self.ownership.epoch, runner.readout())
        again = pb.PlayBlock()
        again.CopyFrom(self._last)
        again.replayed = True
        return again

    def broken(self, error: Exception) -> None:
        """The engine failed inside a block: the state is at no boundary and is let go."""
        _log.error("the engine failed", session_id=self.session_id, block=self.next_block, exc_info=error)
        with self.cond:
            stream, self.stream = self.stream, None
            self.ownership = self.ownership.fail()
        self.let_go()
        if stream is not None:
            stream.finish(
                error=Internal(
                    f"the engine failed in block {self.next_block} ({type(error).__name__}); the session has ended",
                    reason="ENGINE_FAILED",
                )
            )


def _block(index: int, epoch: int, readout: Readout) -> pb.PlayBlock:
    return pb.PlayBlock(
        block_index=index,
        epoch=epoch,
        frames=readout.frames,
        height=readout.height,
        width=readout.width,
        channels=readout.channels,
        readout=readout.data,
        readout_crc=crc32(readout.data),
    )
