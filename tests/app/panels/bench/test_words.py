"""The words of the bench: cells, and what its numbers rest on."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.bench import BenchView
from engine.spec.cache import PRESETS
from engine.wire.events import Failed
from engine.wire.measurements import Bench
from tests.app.panels.bench.rows import ROWS, bench_of

REQUEST = Bench(tuple((name, PRESETS[name].spec) for name in ("dynamic", "int8", "static")), (128, 512), 32, id=7)


@pytest.fixture
def view(qtbot: QtBot, qapp: QApplication, models: Models) -> BenchView:
    return bench_of(qtbot, models, REQUEST, ROWS, width=900)


def test_cells_stand_under_their_headings(view: BenchView) -> None:
    view.table.horizontalHeader().sectionClicked.emit(3)
    heads = [head.text for head in view.table.cells.heads]
    assert heads[:5] == ["cache", "tokens", "batch", "tok/s ↓", "±"]
    line = view.sorted_rows().index(ROWS[4])
    view.table.chosen.emit(view.key_of(ROWS[4]))
    cells = dict(zip(heads, view.table.cells.rows[line], strict=True))
    assert {name: cell.text for name, cell in cells.items()} == {
        "cache": "INT8", "tokens": "128", "batch": "4", "tok/s ↓": "60.0", "±": "2.5", "ratio": "1.50×",
        "first": "5.00 ms", "KV": "1.0 KiB", "outside forward": "25.0 %",
    }  # fmt: skip
    assert cells["cache"].role == "selected"
    assert view.plot.words.text() == "INT8 · 128 tokens × 4 · 60.0 ± 2.5 tok/s · 1.50× dynamic"
    line = view.sorted_rows().index(ROWS[3])
    view.table.chosen.emit(view.key_of(ROWS[3]))
    refused = view.table.cells.rows[line]
    assert [cell.text for cell in refused[:3]] == ["Static", "2,048", "1"]
    assert refused[3].is_wide
    assert "exceed" in refused[3].text
    assert view.plot.words.text() == ""


def test_what_it_rests_on_and_where_it_was_stopped(view: BenchView) -> None:
    rests_on = "measured · 32 steps, 8 turns, float32 on cpu"
    assert view.provenance_label.whole == rests_on
    view.measurement.refuse(Failed("", reply_to=7))
    assert view.provenance_label.whole == f"{rests_on} · stopped after {len(ROWS)} of 6"
