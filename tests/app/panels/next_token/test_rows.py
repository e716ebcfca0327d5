"""Candidates as bars: which was chosen, which the sampling left out, and what the rest has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.panels.next_token import candidate_rows, rest
from tests.app import samples


def test_choices_mark_the_chosen_and_the_filtered() -> None:
    part = samples.step_record(3).sequences[0]
    first, second, *others = part.candidates
    part = replace(
        part, candidates=(replace(first, sampled_prob=1.0), replace(second, sampled_prob=0.0, text="\x00"), *others)
    )
    first_row, second_row = candidate_rows(part, "raw", "click")[:2]
    assert first_row.is_bold
    assert first_row.name.startswith("▸ ")
    assert not second_row.is_bold
    assert second_row.bars[0].is_faded
    assert not second_row.is_marked
    assert second_row.name == "  \\x00"
    assert "removed by the sampler's filters" in second_row.tip
    assert (first_row.bars[0].share, first_row.bars[0].other) == (first.prob, 1.0)
    assert candidate_rows(part, "sampled", "")[0].bars[0].share == 1.0
    assert not any(row.is_bold for row in candidate_rows(replace(part, stop="non-finite logits"), "raw", ""))
    assert rest(part, "raw") == pytest.approx(1 - sum(c.prob for c in part.candidates))
