"""A sample says what the codec leaves of a state: near the truth, rarely below it, in bounded work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.codec import sample
from worldline.codec.runs import Cutter, Run
from worldline.codec.sample import PIECE_BYTES, PIECES, sampled
from worldline.codec.zstd import Coder
from worldline.compressibility import Compressibility
from worldline.errors import BadRequest
from worldline.made import Made
from worldline.plan import Chunk

SIZE_BYTES = 8 << 20


def bf16(size_bytes: int) -> bytes:
    values = np.random.default_rng(3).standard_normal(size_bytes // 2 + 1, dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()[:size_bytes]


def noise(size_bytes: int) -> bytes:
    return np.random.default_rng(4).bytes(size_bytes)


def whole_share(content: bytes, runs: list[Run]) -> float:
    """What the codec leaves of all of it."""
    coder, left_bytes = Coder(), 0
    for offset, size, width in Cutter(runs).pieces(Chunk(0, 0, len(content))):
        left_bytes += coder.encode(memoryview(content)[offset : offset + size], offset, width)[0].wire_bytes
    return left_bytes / len(content)


@pytest.mark.parametrize(
    "content",
    [
        bf16(SIZE_BYTES),
        noise(SIZE_BYTES),
        bf16(SIZE_BYTES // 2) + bytes(SIZE_BYTES // 2),
        bf16(3 << 20) + noise(3 << 20) + bytes(2 << 20),
    ],
    ids=["bf16", "noise", "half zeros", "mixed"],
)
def test_a_sample_is_near_and_not_below_the_whole(content: bytes) -> None:
    runs = [Run(len(content), 2)]
    found, truth = sampled(memoryview(content), runs), whole_share(content, runs)
    assert truth <= found.ratio + 0.01
    assert found.ratio <= truth + 0.25  # two standard errors of 32 pieces that are zeros or not
    assert found.encode_Bps > 0 < found.decode_Bps


def test_what_a_move_does_not_send_is_not_looked_at() -> None:
    content = memoryview(noise(SIZE_BYTES // 2) + bytes(SIZE_BYTES // 2))
    cold = Made(SIZE_BYTES // 2, SIZE_BYTES // 2, b"\0")
    assert sampled(content, []).ratio < 0.8
    assert sampled(content, [], [cold]).ratio == 1.0
    assert sampled(content, [], [Made(0, SIZE_BYTES, b"\0")]).ratio == 0.01


def test_zeros_are_the_least_share_there_is() -> None:
    assert sampled(memoryview(bytes(SIZE_BYTES)), []).ratio == 0.01


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for any size of state."""
    looked: list[int] = []

    class Counting(Coder):
        def encode(self, data: memoryview, offset: int, width: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
            looked.append(len(data))
            return super().encode(data, offset, width)

    monkeypatch.setattr(sample, "Coder", Counting)
    for size_bytes in (SIZE_BYTES, 64 << 20):
        looked.clear()
        sampled(memoryview(bytearray(size_bytes)), [])
        assert len(looked) <= PIECES + 1
        assert max(looked) <= PIECE_BYTES


@settings(deadline=None, max_examples=40)
@given(
    st.binary(min_size=1, max_size=5000),
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 90_000), st.sampled_from((1, 2, 4))), max_size=4),
)
def test_any_state_has_a_sample(part: bytes, times: int, runs: list[tuple[int, int]]) -> None:
    content = part * times
    ends = np.cumsum([length for length, _ in runs]).tolist()
    found = sampled(memoryview(content), [Run(end, width) for end, (_, width) in zip(ends, runs, strict=True)])
    assert 0 < found.ratio <= 1


@pytest.mark.parametrize(("ratio", "rate"), [(0.0, 1.0), (1.5, 1.0), (float("nan"), 1.0), (0.5, 0.0), (0.5, -1.0)])
def test_numbers_that_cannot_be_are_refused(ratio: float, rate: float) -> None:
    with pytest.raises(BadRequest):
        Compressibility(ratio, rate, 1e9)
