from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import wire
from worldline.errors import BadRequest, DataLoss
from worldline.plan import Chunk
from worldline.receipt import Receipt, Side, require_match, whole_crc

CHUNKS = tuple(Chunk(index, index * 100, 100) for index in range(5))
CRCS = (11, 22, 33, 44, 55)
SOURCE = Receipt(
    Side.SOURCE,
    str(uuid.UUID(int=1)),
    3,
    b"l" * 32,
    b"m" * 32,
    b"p" * 32,
    500,
    CRCS,
    whole_crc(CHUNKS, CRCS),
    "host-a",
    7,
)
DESTINATION = replace(SOURCE, side=Side.DESTINATION, host_id="host-b", incarnation=9)


def test_equal_receipts_allow_a_commit() -> None:
    require_match(SOURCE, DESTINATION, CHUNKS)


@given(index=st.integers(0, 4), crc=st.integers(0, 2**32 - 1))
def test_any_other_chunk_crc_is_named(index: int, crc: int) -> None:
    if crc == CRCS[index]:
        return
    crcs = (*CRCS[:index], crc, *CRCS[index + 1 :])
    with pytest.raises(DataLoss) as caught:
        require_match(SOURCE, replace(DESTINATION, chunk_crcs=crcs), CHUNKS)
    assert caught.value.numbers["chunk"] == index
    assert caught.value.numbers["offset"] == index * 100


@pytest.mark.parametrize(
    "change",
    [
        {"move_id": str(uuid.UUID(int=2))},
        {"epoch": 4},
        {"layout_digest": b"x" * 32},
        {"manifest_digest": b"x" * 32},
        {"plan_digest": b"x" * 32},
        {"size_bytes": 501},
        {"state_crc": 1},
        {"chunk_crcs": CRCS[:4]},
        {"side": Side.SOURCE},
    ],
)
def test_any_other_field_refuses(change: dict[str, object]) -> None:
    with pytest.raises(DataLoss):
        require_match(SOURCE, replace(DESTINATION, **change), CHUNKS)  # type: ignore[arg-type]


def test_receipts_that_agree_on_a_wrong_whole_refuse() -> None:
    with pytest.raises(DataLoss, match="make up"):
        require_match(replace(SOURCE, state_crc=5), replace(DESTINATION, state_crc=5), CHUNKS)


def test_over_the_wire_and_back() -> None:
    assert wire.receipt_from(wire.receipt_to(SOURCE)) == SOURCE


def test_short_digest_is_refused() -> None:
    message = wire.receipt_to(SOURCE)
    message.plan_digest = b"short"
    with pytest.raises(BadRequest, match="plan_digest"):
        wire.receipt_from(message)
