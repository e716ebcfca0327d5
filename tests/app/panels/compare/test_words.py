"""The words of a comparison about where two branches part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.panels.compare.view import parts_at
from engine.wire.comparison import OtherStep
from tests.app import samples


@pytest.mark.parametrize(
    ("mine", "other", "have_parted"), [(10, 9, True), (9, 10, True), (8, 10, False), (10, 8, False)]
)
def test_two_branches_part_where_both_have_tokens_of_their_own(mine: int, other: int, have_parted: bool) -> None:
    """Eight tokens are shared. A branch that ends there has gone on with none."""
    compared, step = samples.comparison_started(against=OtherStep(5)), SimpleNamespace(num_tokens=8)
    live = SimpleNamespace(record=lambda at: None, num_tokens=lambda seq_id: mine)
    record = SimpleNamespace(of=lambda seq_id: SimpleNamespace(num_tokens=other))
    models = SimpleNamespace(
        comparison=SimpleNamespace(steps=(step,)),
        timeline=SimpleNamespace(live_path=live),
        history=SimpleNamespace(record=lambda at: record),
    )
    assert parts_at(cast(Any, models), compared) == (step if have_parted else None)
