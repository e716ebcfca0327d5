"""What was done between two moments, in words: who was forked from whom, and how many tokens of what."""

from __future__ import annotations

import pytest

from app.kit.words import change_words
from engine.spec.cache import cache_named
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
    TokensForced,
)

WARM = SamplingParams(temperature=0.5, seed=7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (EditMade(Zero(0, Rows(4, 5))), f"edit: {Zero(0, Rows(4, 5)).describe()}"),
        (ModeChanged(cache_named("kivi-2")), "cache: KIVI-2"),
        (TokensForced(1, (7,)), "1 token forced on sequence 1"),
        (TokensForced(1, (7, 8)), "2 tokens forced on sequence 1"),
        (SamplingChanged(1, SamplingParams()), "sampling of sequence 1: greedy"),
        (SamplingChanged(1, WARM), "sampling of sequence 1: temperature 0.5, seed 7"),
        (SequenceAdded(1, (7, 8, 9), WARM), "prompt of 3 tokens as sequence 1"),
        (SequenceForked(3, 2, 5), "sequence 3 forked from 2 after step 5"),
        (SequenceForked(3, 2, None), "sequence 3 forked from 2"),
        (SequenceForked(3, 2, None, 40), "sequence 3 goes on from 2: 40 tokens kept"),
        (SequenceAdded(1, (7,), WARM), "prompt of 1 token as sequence 1"),
        (SequenceForked(3, 2, None, 1), "sequence 3 goes on from 2: 1 token kept"),
        (PromptAppended(1, (7,), WARM), "1 token more of the prompt of sequence 1"),
        (PromptAppended(1, (7, 8), WARM), "2 tokens more of the prompt of sequence 1"),
        (SequenceRemoved(1), "sequence 1 removed"),
        (SequenceStopped(1), "sequence 1 stopped"),
    ],
)
def test_what_was_done(change: Change, words: str) -> None:
    assert change_words(change) == words
