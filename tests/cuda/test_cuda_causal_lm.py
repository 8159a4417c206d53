"""A causal language model's session between GPUs: token for token what it says where it stays."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from worldline.client import Client
from worldline.fleet import ONE_NODE, Fleet
from worldline.v1 import move_pb2

pytestmark = pytest.mark.cuda


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    last = torch.cuda.device_count() - 1
    options = {
        "host-a": {"device": "cuda:0"},
        "host-b": {"device": f"cuda:{last}"},
        "enginehost": {"budget_bytes": 1 << 30, "prewarm": "transformers/tiny-qwen2"},
    }
    with Fleet(tmp_path / "fleet", ONE_NODE, options=options) as fleet, Client(fleet.target) as opened:
        yield opened


def test_token_for_token(client: Client) -> None:
    moved, still = (client.place("transformers", "tiny-qwen2", 4, host_id="host-a") for _ in range(2))
    with client.play(moved, patience_s=60) as play, client.play(still, patience_s=60) as reference:
        for block in range(6):
            action = struct.pack("<2i", block + 1, 100 + block)
            assert play.step(action).readout == reference.step(action).readout
            move = client.move(moved.session_id, ("host-b", "host-a")[block % 2], timeout_s=60)
            assert move.state == move_pb2.MOVE_STATE_MOVED, move
