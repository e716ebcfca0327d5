"""FlexAttention without compilation, for tests of kernels that read pages in place."""

from __future__ import annotations

import pytest
from torch.nn.attention import flex_attention as torch_flex


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention computes operation by operation: torch traces and compiles nothing."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
