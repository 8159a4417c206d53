"""What `worldline inspect` finds out of checksums and samples: the report, and the same for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from worldline.instruments import coupon, dirty
from worldline.instruments.leaf_class import class_name
from worldline.instruments.pieces import Pieces
from worldline.instruments.snapshot import Boundary, Coded, Subject


@dataclass(frozen=True, slots=True)
class LeafFound:
    """One leaf, or all leaves of a class: `dirty_share` of its bytes a block on average and `dirty_most` at most.

    `wire_share` and `planes` are what the codec leaves of it and of each byte plane, None and empty without a sample.
    """

    name: str
    leaves: int
    size_bytes: int
    dirty_share: float
    dirty_most: float
    cold_bytes: int
    written_cold: tuple[str, ...]
    wire_share: float | None
    planes: tuple[float, ...]

    @property
    def written(self) -> bool:
        """Whether any block changed it."""
        return self.dirty_most > 0


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found. `still_s` are the seconds that each snapshot held the session up."""

    subject: Subject
    pieces: Pieces
    dirty: dirty.Dirty
    fit: coupon.Fit
    leaves: tuple[LeafFound, ...]
    classes: tuple[LeafFound, ...]
    still_s: tuple[float, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes of all leaves, those that share memory counted once."""
        return sum(self.pieces.stands_for)

    @property
    def dirty_bytes_per_block(self) -> float:
        """Measured, the mean."""
        blocks = sum(step.blocks for step in self.dirty.steps)
        return sum(step.dirty_bytes for step in self.dirty.steps) / blocks

    @property
    def written_cold(self) -> tuple[str, ...]:
        """Leaves that are declared cold, and were written."""
        return tuple(leaf.name for leaf in self.leaves if leaf.written_cold)

    @property
    def wire_share(self) -> float | None:
        """What the codec leaves of the whole state; None without a sample."""
        if any(leaf.wire_share is None and leaf.size_bytes for leaf in self.leaves):
            return None
        total = sum(leaf.size_bytes for leaf in self.leaves)
        return sum((leaf.wire_share or 0.0) * leaf.size_bytes for leaf in self.leaves) / total if total else 0.0


def report(subject: Subject, pieces: Pieces, boundaries: Sequence[Boundary], coded: Iterable[Coded]) -> Report:
    """Work it out from two boundaries or more. Raises Mismatch if they do not fit the pieces."""
    changes = dirty.compare(pieces, boundaries)
    codes = {item.path: item for item in coded}
    leaves = tuple(
        _leaf(subject, path, size, changes.of_leaf(index), codes)
        for index, (path, size) in enumerate((leaf.path, leaf.size_bytes) for leaf in subject.layout.leaves)
    )
    groups: dict[str, list[LeafFound]] = {}
    for leaf in leaves:
        groups.setdefault(class_name(leaf.name) + (" (cold)" if leaf.cold_bytes else ""), []).append(leaf)
    return Report(
        subject=subject,
        pieces=pieces,
        dirty=changes,
        fit=coupon.fit(changes.windows(), sum(pieces.stands_for)),
        leaves=leaves,
        classes=tuple(_together(name, members) for name, members in groups.items()),
        still_s=tuple(boundary.still_s for boundary in boundaries),
    )


def _leaf(subject: Subject, path: str, size: int, written: Sequence[int], codes: Mapping[str, Coded]) -> LeafFound:
    cold = path in subject.cold_paths
    shares = [count / size for count in written] if size else [0.0]
    coded = codes.get(path)
    return LeafFound(
        name=path,
        leaves=1,
        size_bytes=size,
        dirty_share=sum(shares) / len(shares),
        dirty_most=max(shares),
        cold_bytes=size if cold else 0,
        written_cold=(path,) if cold and max(shares) > 0 else (),
        wire_share=coded.wire_bytes / coded.sampled_bytes if coded and coded.sampled_bytes else None,
        planes=_planes(coded) if coded else (),
    )


def _planes(coded: Coded) -> tuple[float, ...]:
    each = coded.sampled_bytes / len(coded.planes) if coded.planes else 0.0
    return tuple(size / each for size in coded.planes) if each else ()


def _together(name: str, members: Sequence[LeafFound]) -> LeafFound:
    size = sum(leaf.size_bytes for leaf in members)
    coded = [leaf for leaf in members if leaf.wire_share is not None]
    coded_bytes = sum(leaf.size_bytes for leaf in coded)
    widths = {len(leaf.planes) for leaf in coded}
    planes: tuple[float, ...] = ()
    if len(widths) == 1 and coded_bytes:
        columns = zip(*(leaf.planes for leaf in coded), strict=True)
        weights = [leaf.size_bytes / coded_bytes for leaf in coded]
        planes = tuple(sum(a * b for a, b in zip(column, weights, strict=True)) for column in columns)
    return LeafFound(
        name=name,
        leaves=len(members),
        size_bytes=size,
        dirty_share=sum(leaf.dirty_share * leaf.size_bytes for leaf in members) / size if size else 0.0,
        dirty_most=max(leaf.dirty_most for leaf in members),
        cold_bytes=sum(leaf.cold_bytes for leaf in members),
        written_cold=tuple(path for leaf in members for path in leaf.written_cold),
        wire_share=sum((leaf.wire_share or 0.0) * leaf.size_bytes for leaf in coded) / coded_bytes
        if coded_bytes
        else None,
        planes=planes,
    )


def as_dict(found: Report) -> dict[str, object]:
    """For JSON. Sizes in bytes, times in seconds, shares from 0 to 1."""
    subject = found.subject
    return {
        "session": subject.name,
        "engine": subject.engine,
        "preset": subject.preset,
        "state_bytes": found.state_bytes,
        "leaf_count": len(found.leaves),
        "piece_bytes": found.pieces.piece_bytes,
        "one_in": found.pieces.one_in,
        "block_s": subject.block_s,
        "still_s": list(found.still_s),
        "blocks": [asdict(step) for step in found.dirty.steps],
        "dirty_bytes_per_block": found.dirty_bytes_per_block,
        "dirty_share": found.dirty_bytes_per_block / found.state_bytes if found.state_bytes else 0.0,
        "declared_dirty_bytes_per_block": subject.dirty_bytes_per_block,
        "coupon": asdict(found.fit),
        "wire_share": found.wire_share,
        "cold": {
            "declared_bytes": sum(leaf.cold_bytes for leaf in found.leaves),
            "written": list(found.written_cold),
            "unwritten_undeclared": [
                leaf.name for leaf in found.leaves if leaf.size_bytes and not leaf.written and not leaf.cold_bytes
            ],
        },
        "leaves": [asdict(leaf) for leaf in found.leaves],
    }
