"""The table model of sequences: it reports changed rows from first to last column, and no others."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.panels.sequences.view import BUTTONS, SequenceModel, SequenceRow
from engine.wire.status import SequenceInfo


def test_a_changed_row_is_reported_from_its_first_column_to_its_last(qapp: QApplication) -> None:
    model = SequenceModel()
    infos = [SequenceInfo(seq_id, "decode", 9, 4, 11, None) for seq_id in range(3)]
    rows = [SequenceRow(info, is_paged=True) for info in infos]
    model.set_rows(tuple(rows))
    told: list[tuple[int, int, int, int]] = []
    model.dataChanged.connect(lambda a, b, *_: told.append((a.row(), a.column(), b.row(), b.column())))
    rows[1] = SequenceRow(replace(infos[1], num_preemptions=1), is_paged=True)
    model.set_rows(tuple(rows))
    assert told == [(1, 0, 1, BUTTONS)]
