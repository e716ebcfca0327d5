"""What a chat template may spend: items of lists count as often as they are deep."""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat import budget
from engine.chat.budget import RenderBudget, TemplateSpends


@pytest.mark.parametrize(
    ("value", "num_items", "num_chars"),
    [
        ("word", 0, 4),
        ([1, 2, "abc"], 3, 3),
        ([["a", "b", "c"]], 1 + 2 * 3, 3),
        ([[["a", "b", "c"]]], 1 + 2 + 3 * 3, 3),
        ({"key": ["x", "y"]}, 1 + 2 * 2, 3 + 2),
        (range(99), 0, 0),
    ],
)
def test_an_item_counts_as_often_as_it_is_deep(
    monkeypatch: pytest.MonkeyPatch, value: Any, num_items: int, num_chars: int
) -> None:
    monkeypatch.setattr(budget, "MAX_NESTED", num_items)
    assert RenderBudget().weight(value) == num_chars
    if num_items:
        monkeypatch.setattr(budget, "MAX_NESTED", num_items - 1)
        with pytest.raises(TemplateSpends, match="more than"):
            RenderBudget().weight(value)
