"""FlexAttention without compilation, for tests of kernels that read pages in place; and all recordings of steps."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
from torch.nn.attention import flex_attention as torch_flex

from engine.model.runners import launch
from engine.model.runners.launch import Launch


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention computes operation by operation: torch traces and compiles nothing."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> WeakSet[Launch]:
    """All recordings that there are."""
    there = WeakSet[Launch]()

    class Noted(Launch):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            there.add(self)

    monkeypatch.setattr(launch, "Launch", Noted)
    return there
