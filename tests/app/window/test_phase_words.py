"""What a step is about to give_pictures, in words."""

from __future__ import annotations

import pytest

from app.window.phase_bar import scheduled_words, written_words
from engine.wire.status import ScheduledSequence, WrittenRows


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (ScheduledSequence(0, "decode", 12, (5,), (" cat",)), " is computed at position 12"),
        (ScheduledSequence(0, "decode", 12, (5,), ("a",), hit_tokens=8), "a is computed at position 12"),
        (
            ScheduledSequence(0, "prefill", 8, (5, 6, 7), ("a", "b", "c"), hit_tokens=8),
            "3 tokens are computed at positions 8 … 10 · 8 before them were found in pages",
        ),
        (ScheduledSequence(0, "prefill", 0, (5,), ("a",), (4,)), "a is computed at position 0 · into page 4"),
        (ScheduledSequence(0, "prefill", 0, (5,), ("a",), (4, 5)), "a is computed at position 0 · into pages 4, 5"),
        (
            ScheduledSequence(0, "prefill", 0, (5,), ("a",), (1, 2, 3, 4, 5)),
            "a is computed at position 0 · into pages 1, 2, 3, 4 …",
        ),
    ],
)
def test_the_words_name_each_sequence_and_the_tokens_that_it_is_computed(part: ScheduledSequence, words: str) -> None:
    """Tokens served from cached pages are named while the prompt is read, and not with every token after it."""
    assert scheduled_words(part).endswith(words)


def test_one_of_each_is_no_plural() -> None:
    one = "1 row written in 1 layer · 1 older one written anew · 1 evicted · 1 new page"
    assert written_words(WrittenRows(0, 1, 1, 1, 1, 1)) == one
    two = "2 rows written in 1 layer · 2 older ones written anew · 2 evicted · 2 new pages"
    assert written_words(WrittenRows(0, 2, 2, 2, 2, 1)) == two


@pytest.mark.parametrize(
    ("num_written", "num_layers", "in_each", "words"),
    [
        (6, 6, 1, "6 rows written, 1 in each of 6 layers"),
        (24, 6, 4, "24 rows written, 4 in each of 6 layers"),
        (36, 6, None, "36 rows written in 6 layers"),  # cross layers write the source, the others one token
        (4, 1, 4, "4 rows written in 1 layer"),
        (0, 0, None, "0 rows written in 0 layers"),
    ],
)
def test_rows_are_said_to_be_counted_layer_by_layer(
    num_written: int, num_layers: int, in_each: int | None, words: str
) -> None:
    assert written_words(WrittenRows(0, num_written, 0, 0, 0, num_layers, in_each)) == f"{words} · none evicted"
