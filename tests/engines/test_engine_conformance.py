"""The first engine under the public conformance suite."""

from __future__ import annotations

import pytest

from enginehost.engines.window_rewrite import WindowRewriteEngine
from worldline.engine import Engine
from worldline.testing.engines import EngineConformance


class TestTiny(EngineConformance):
    preset = "tiny"

    @classmethod
    def make_engine(cls) -> Engine:
        return WindowRewriteEngine()


@pytest.mark.slow
class TestSmall(EngineConformance):
    preset = "small"
    warm_up_blocks = 1
    flipped_leaves = 4

    @classmethod
    def make_engine(cls) -> Engine:
        return WindowRewriteEngine()
