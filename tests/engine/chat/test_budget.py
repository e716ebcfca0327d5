"""What a chat template may spend: items of lists count as often as they are deep."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from engine.chat import sandbox
from engine.chat.sandbox import RenderBudget, TemplateTooExpensive
from engine.chat.template import ChatTemplate, TemplateFailed
from engine.spec.sampling import Chat, Turn


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
    monkeypatch.setattr(sandbox, "MAX_NESTED", num_items)
    assert RenderBudget().total_size(value) == num_chars
    if num_items:
        monkeypatch.setattr(sandbox, "MAX_NESTED", num_items - 1)
        with pytest.raises(TemplateTooExpensive, match="more than"):
            RenderBudget().total_size(value)


@pytest.mark.parametrize(
    ("source", "owner", "limit", "most"),
    [
        ("{{ 'ab' * 5 }}", sandbox, "MAX_VALUE", 10),
        ("{{ 'abc' + 'de' }}", sandbox, "MAX_VALUE", 5),
        ("{{ 'abc' ~ 'de' }}", sandbox, "MAX_VALUE", 5),
        ("{{ ['ab', 'c', 'de']|join('--') }}", sandbox, "MAX_VALUE", 11),
        ("{{ '--'.join(['ab', 'c', 'de']) }}", sandbox, "MAX_VALUE", 11),
        ("{{ ['a', 'b'] * 3 }}", sandbox, "MAX_ITEMS", 6),
        ("{{ ('a', 'b') * 3 }}", sandbox, "MAX_ITEMS", 6),
        ("{{ 'a'.ljust(7) }}", sandbox, "MAX_ITEMS", 7),
        ("{{ 'abc'|truncate(9) }}", sandbox, "MAX_ITEMS", 9),
        ("{{ (255 * 255) > 1 }}", sandbox, "MAX_BITS", 16),
        ("{{ (3 ** 8) > 1 }}", sandbox, "MAX_BITS", 16),
        ("{{ [1]|tojson(indent=3) }}", sandbox, "MAX_INDENT", 3),
    ],
)
def test_as_much_as_a_limit_says_is_rendered_and_no_more(
    source: str, owner: ModuleType, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat((Turn("user", "x"),))
    monkeypatch.setattr(owner, limit, most)
    ChatTemplate(source).render(chat, {})
    monkeypatch.setattr(owner, limit, most - 1)
    with pytest.raises(TemplateFailed):
        ChatTemplate(source).render(chat, {})


@pytest.mark.parametrize(("taken", "refused"), [("1.5|round(100)", "1.5|round(101)"), ("N|int", "(N ~ '1')|int")])
def test_a_number_of_so_many_digits_is_made_and_no_longer_one(taken: str, refused: str) -> None:
    chat, number = Chat((Turn("user", "x"),)), "('1' * 1000)"
    ChatTemplate(f"{{{{ {taken.replace('N', number)} }}}}").render(chat, {})
    with pytest.raises(TemplateFailed):
        ChatTemplate(f"{{{{ {refused.replace('N', number)} }}}}").render(chat, {})
