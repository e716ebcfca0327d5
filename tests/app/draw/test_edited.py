"""Which rows are marked as edited, after edits that take one another back or compute rows anew."""

from __future__ import annotations

from app.draw.edited import edited_rows, runs
from engine.spec.edit import Drop, Edit, Mask, Pin, ReplaceTokens, Rows, Scale, Zero


def spans(*edits: Edit) -> list[tuple[type, int, int]]:
    found = edited_rows(enumerate(edits))
    return [(type(one.edit), one.rows.start, one.rows.stop) for one in found]


def test_rows_that_were_computed_anew_have_no_mark_any_more() -> None:
    before = (Zero(0, Rows(2, 8)), Mask(0, Rows(6, 9)), Scale(0, Rows(1, 2), 2.0))
    again = ReplaceTokens(0, 5, (1, 2, 3), "re-prefill", 1)
    assert spans(*before, again) == [(Zero, 2, 5), (Scale, 1, 2), (ReplaceTokens, 5, 8)]


def test_overwritten_rows_lose_the_mark_of_their_old_numbers_and_stay_hidden() -> None:
    before = (Zero(0, Rows(2, 8)), Mask(0, Rows(4, 7)))
    assert spans(*before, ReplaceTokens(0, 5, (1,), "overwrite")) == [
        (Zero, 2, 5), (Zero, 6, 8), (Mask, 4, 7), (ReplaceTokens, 5, 6),
    ]  # fmt: skip


def test_a_row_is_shown_again_in_the_heads_that_are_named_and_by_masks_alone() -> None:
    masked, pinned = Mask(0, Rows(2, 8, (1,), (0,))), Pin(0, Rows(2, 8))
    assert spans(masked, pinned, Mask(0, Rows(4, 5), hidden=False)) == [(Mask, 2, 4), (Mask, 5, 8), (Pin, 2, 8)]
    assert spans(masked, Mask(0, Rows(2, 8, (3,)), hidden=False)) == [(Mask, 2, 8)]


def test_runs_are_without_gaps() -> None:
    assert runs((5, 6, 7, 9, 3)) == [(3, 4), (5, 8), (9, 10)]


def test_rows_that_were_overwritten_stay_hidden_pinned_or_dropped_until_all_is_computed_anew() -> None:
    before = (Mask(0, Rows(4, 7)), Pin(0, Rows(4, 7)), Drop(0, Rows(4, 7)))
    marks = [(Mask, 4, 7), (Pin, 4, 7), (Drop, 4, 7)]
    assert spans(*before, ReplaceTokens(0, 5, (1,), "overwrite")) == [*marks, (ReplaceTokens, 5, 6)]
    assert spans(*before, ReplaceTokens(0, 5, (1,), "re-prefill", 1)) == [
        *((kind, 4, 5) for kind, *_ in marks), (ReplaceTokens, 5, 6),
    ]  # fmt: skip
