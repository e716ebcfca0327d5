"""Candidates as bars: which was chosen, which the sampling left out, and what the rest has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.panels.next_token import draw as next_token
from tests.app import samples


def test_choices_mark_the_chosen_and_the_filtered() -> None:
    part = samples.step_record(3).sequences[0]
    first, second, *others = part.candidates
    part = replace(
        part, candidates=(replace(first, sampled_prob=1.0), replace(second, sampled_prob=0.0, text="\x00"), *others)
    )
    raw = next_token.candidate_bars(part, "raw")
    assert raw[0].is_chosen
    assert not raw[1].is_chosen
    assert raw[1].is_out
    assert raw[1].text == "\\x00"
    assert (raw[0].share, raw[0].other) == (first.prob, 1.0)
    assert next_token.candidate_bars(part, "sampled")[0].share == 1.0
    assert not any(bar.is_chosen for bar in next_token.candidate_bars(replace(part, stop="non-finite logits"), "raw"))
    assert next_token.rest(part, "raw") == pytest.approx(1 - sum(c.prob for c in part.candidates))
