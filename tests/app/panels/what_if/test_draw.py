"""What-if pairs from plain numbers."""

from __future__ import annotations

import pytest

from app.panels.what_if import shift_table, winners
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
    shown = shift_table(answer(*SHIFTS), "", 3, is_faded=False).rows
    assert [row.tip.split("\n")[0].split(" id ")[1] for row in shown] == ["5", "6", "9"]
    assert [row.end for row in shown] == ["1 → 2", "2 → 41", "31 → 1"]
    assert [row.end_role for row in shown] == ["text", "text", "selected"]
    assert shown[1].name == "\\u202e"
    assert [bar.number for bar in shown[1].bars] == ["30.0 %", "<0.1 %"]
    assert winners(answer(*SHIFTS)) == ("·a", "·new")
    assert shift_table(answer(), "", 5, is_faded=False).rows == ()
    assert winners(answer()) == ("", "")


@pytest.mark.parametrize(("tried", "head"), [("KIVI-2", "after · KIVI-2"), ("", "after")])
def test_what_was_tried_is_named_above_its_numbers(tried: str, head: str) -> None:
    assert shift_table(answer(*SHIFTS), tried, 5, is_faded=False).heads[2] == head
