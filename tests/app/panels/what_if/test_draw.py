"""What-if pairs from plain numbers."""

from __future__ import annotations

import pytest

from app.panels.what_if.draw import pairs, winners
from app.panels.what_if.view import shift_table
from engine.spec.cache import CacheSpec
from engine.wire.measurements import Shift, WhatIf, WhatIfAnswer


def answer(*shifts: Shift) -> WhatIfAnswer:
    return WhatIfAnswer(WhatIf(0, CacheSpec()), 3, 0.1, 1.0, True, (), (), 0.5, 2048, 512, 1.0, "", shifts)


SHIFTS = (
    Shift(5, " a", 0.5, 0.2, 0, 1),
    Shift(6, "\u202e", 0.3, 0.0001, 1, 40),
    Shift(7, " b", 0.1, 0.1, 2, 2),
    Shift(9, " new", 0.0002, 0.6, 30, 0),
)


def test_pairs_keep_the_new_winner_and_the_order_before() -> None:
    shown = pairs(answer(*SHIFTS), 3)
    assert [p.token_id for p in shown] == [5, 6, 9]
    assert [p.rank for p in shown] == ["1 → 2", "2 → 41", "31 → 1"]
    assert shown[2].moved == 30
    assert shown[1].text == "\\u202e"
    assert (shown[1].number_before, shown[1].number_after) == ("30.0 %", "<0.1 %")
    assert winners(answer(*SHIFTS)) == ("·a", "·new")
    assert pairs(answer(), 5) == ()
    assert winners(answer()) == ("", "")


@pytest.mark.parametrize(("tried", "head"), [("KIVI-2", "after · KIVI-2"), ("", "after")])
def test_what_was_tried_is_named_above_its_numbers(tried: str, head: str) -> None:
    assert shift_table(answer(*SHIFTS), tried, 5, is_faded=False).heads[2] == head
