"""The words of the bench: cells, and what its numbers rest on."""

from __future__ import annotations

from app.panels.bench import view
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.wire.measurements import Bench, Benched
from tests.app.panels.bench.rows import ROWS

REQUEST = Bench(tuple((name, PRESETS[name].spec) for name in ("dynamic", "int8", "static")), (128, 512), 32)


def test_cells_stand_under_their_headings() -> None:
    heads = [head.text for head in view.heads((3, True))]
    assert heads[:5] == ["cache", "tokens", "batch", "tok/s ↓", "±"]
    cells = dict(zip(heads, view.cells(ROWS[4], PRESETS["int8"].spec, "int8 128 4"), strict=True))
    assert {name: cell.text for name, cell in cells.items()} == {
        "cache": "INT8", "tokens": "128", "batch": "4", "tok/s ↓": "60.0", "±": "2.5", "ratio": "1.50×",
        "first": "5.00 ms", "KV": "1.0 KiB", "overhead": "25.0 %",
    }  # fmt: skip
    assert cells["cache"].role == "selected"
    refused = view.cells(ROWS[3], PRESETS["static"].spec, "")
    assert [cell.text for cell in refused[:3]] == ["Static", "2,048", "1"]
    assert refused[3].is_wide
    assert "exceed" in refused[3].text


def test_what_it_rests_on_and_where_it_was_stopped() -> None:
    first = Benched(REQUEST, ROWS[0], False)
    assert view.rests_on((first,)) == "32 steps, 8 turns, float32 on cpu"
    assert view.source_words((first,), True) == "measured · 32 steps, 8 turns, float32 on cpu"
    assert view.source_words((first,), False).endswith("stopped after 1 of 6")
    assert view.row_words(ROWS[4], PRESETS["int8"].spec) == "INT8 · 128 tokens × 4 · 60.0 ± 2.5 tok/s · 1.50× dynamic"
    assert view.row_words(ROWS[3], CacheSpec()) == ""
