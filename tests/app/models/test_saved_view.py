"""A place that a file names is shown as far as it is there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.models import Models
from app.models.saved_view import SavedSelection, SavedView, show_place
from engine.wire.status import SequenceInfo
from tests.app import samples


@pytest.mark.parametrize(
    ("seq_id", "position", "shown"), [(3, 4, (3, 4)), (3, 20, (0, None)), (0, 20, (0, 20)), (9, 20, (0, 20))]
)
def test_a_position_is_one_of_the_sequence_that_is_named(
    models: Models, seq_id: int, position: int, shown: tuple[int, int | None]
) -> None:
    infos = tuple(SequenceInfo(seq, "decode", count, 5, 11, None) for seq, count in ((0, 30), (3, 9)))
    models.status.set(replace(samples.status(5), sequences=infos))
    show_place(SavedView(SavedSelection(seq_id=seq_id, position=position)), models)
    assert (models.selection.now.seq_id, models.selection.now.position) == shown
