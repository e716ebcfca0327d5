"""How many rows a rule keeps and protects, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from engine.spec.retention import RetentionSpec

H2O = RetentionSpec("h2o", budget=12, sinks=1)
SNAPKV = RetentionSpec("snapkv", budget=100)
WINDOW = RetentionSpec("sinks+window", sinks=4, window=10)


@pytest.mark.parametrize(
    ("spec", "seen", "kept"),
    [
        (RetentionSpec(), 37, 37),
        (WINDOW, 37, 14),
        (WINDOW, 9, 9),
        (H2O, 37, 12),
        (H2O, 11, 11),
        (RetentionSpec("tova", ratio=0.5), 37, 18),
        (RetentionSpec("tova", ratio=0.25), 37, 27),
        (RetentionSpec("tova", ratio=0.9, sinks=4), 37, 5),  # the sinks and the newest always fit
        (RetentionSpec("tova", ratio=0.99), 37, 1),
        (RetentionSpec("tova", ratio=0.9, sinks=4), 3, 3),
    ],
)
def test_how_many_rows_are_kept(spec: RetentionSpec, seen: int, kept: int) -> None:
    assert spec.num_kept(seen) == kept


@pytest.mark.parametrize(
    ("spec", "kept", "recent"),
    [
        (H2O, 12, 6),  # half of what stays
        (H2O, 9, 4),
        (RetentionSpec("h2o", budget=12, sinks=8), 12, 4),  # what the sinks leave
        (RetentionSpec("h2o", budget=12, window=3), 12, 3),
        (SNAPKV, 100, 32),  # the observation window
        (SNAPKV, 20, 10),  # and no more than half
        (RetentionSpec("tova", budget=12), 12, 1),
        (RetentionSpec("knorm", budget=12), 12, 0),
        (RetentionSpec("keydiff", budget=12), 12, 0),
        (RetentionSpec("random", budget=12), 12, 0),
        (WINDOW, 14, 10),
    ],
)
def test_how_many_of_the_latest_are_protected(spec: RetentionSpec, kept: int, recent: int) -> None:
    assert spec.recent(kept) == recent


@pytest.mark.parametrize(
    ("spec", "seen", "pages"),
    [
        (RetentionSpec(), 33, 3),
        (WINDOW, 33, 3),  # sinks in the first, a window over two
        (WINDOW, 80, 2),  # the window fills the last page's end alone
        (H2O, 80, 2),  # that of the sink and the last
        (H2O, 81, 3),  # the latest six reach back into the page before
        (RetentionSpec("tova", ratio=0.5), 80, 2),  # 32 rows were kept when the fifth page was begun
        (RetentionSpec("tova", ratio=0.5), 16, 1),
    ],
)
def test_how_many_pages_are_kept(spec: RetentionSpec, seen: int, pages: int) -> None:
    assert spec.num_kept_pages(seen, 16) == pages


def test_a_pyramid_gives_the_first_layer_most_and_the_last_a_twentieth_of_the_mean() -> None:
    spec = RetentionSpec("h2o", budget=100, window=0, schedule="pyramid")
    budgets = [spec.at(layer, 5).budget for layer in range(5)]
    assert budgets == [195, 148, 100, 53, 5]
    assert [spec.at(0, 1).budget] == [100]


@pytest.mark.parametrize(
    ("prompt", "budgets"),
    [
        (1000, [165, 133, 100, 68, 35]),  # long enough for the share of the first layer
        (136, [136, 118, 100, 82, 64]),  # twice what is chosen: the first layer takes all, the others what is left over
        (135, [100] * 5),  # one fewer: spread evenly
    ],
)
def test_a_prompt_too_short_for_the_first_layers_leaves_more_to_the_others(prompt: int, budgets: list[int]) -> None:
    spec = RetentionSpec("snapkv", budget=100, schedule="pyramid")  # of which the latest 32 stay everywhere
    assert [spec.at(layer, 5, prompt).budget for layer in range(5)] == budgets
