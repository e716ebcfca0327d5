"""The bytes of the cache: every line at its label, over the steps, and adding up in each mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetricsF
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.format import byte_size
from app.kit.theme import font_text
from app.models import Models
from app.panels.bytes import LAYERS, BytesView, LayerBars, ledger_lines
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from tests.app import samples
from tests.app.mouse import move_mouse
from tests.app.painted import shapes
from tests.app.panels.desk import Desk
from tests.app.panels.recorded import STEPS, recorded_models
from tests.engine.predict.formulas import sum_of


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec("static", max_length=128),
        CacheSpec("paged"),
        CacheSpec(codec=uniform("int8")),
        CacheSpec(codec=uniform("kivi-4", residual=32)),
        CacheSpec(retention=RetentionSpec("h2o", budget=12)),
    ],
    ids=["static", "paged", "int8", "kivi", "h2o"],
)
def test_every_row_of_the_ledger_adds_up(desk: Desk, spec: CacheSpec) -> None:
    desk.run(spec, steps=20)
    view = desk.window.bytes
    view.choose("sum")
    desk.wait_until_idle()
    assert "without a name" not in view.facts.text()
    check_formula(view)
    view.choose(LAYERS)
    heads = [head.text for head in view.table.cells.heads]
    for row in view.table.cells.rows:
        numbers = {head: cell.text.replace(",", "") for head, cell in zip(heads, row, strict=True)}
        room = sum(int(text[1:]) for text in numbers.values() if text.startswith("+"))
        assert int(numbers["stored"]) + room == int(numbers["reserved"])
    view.grab()


def check_formula(view: BytesView) -> None:
    """The formula that the panel writes, multiplied out, is the number beside it."""
    first, *others = view.state.lines
    terms = others[: next(index for index, line in enumerate(others) if line.label.startswith("stored"))]
    number = int(first.text.replace(",", ""))
    assert sum_of(re.split("[ =]+", line.label)[-1] for line in terms) == number
    if len(terms) == 1:
        assert first.label == "formula 2·L·H_kv·D·S·b"
    else:
        assert first.label == f"formula, sum of {len(terms)}"
        assert sum(int(line.text.replace(",", "")) for line in terms) == number
    assert all("H_kv kv heads" in line.tip for line in terms)


def test_memory_over_the_steps_follows_the_mouse_and_a_click(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    view = show(BytesView(models))
    view.choose("steps")
    QApplication.processEvents()
    assert view.plot.words.text().startswith(f"step {STEPS} · stored ")
    frame, surface = view.plot.canvas.frame, view.plot.canvas.viewport()
    place = QPoint(round(frame.x_of(7)), 60)
    move_mouse(surface, place)
    record = models.timeline.records[7]
    assert view.plot.words.text().startswith(f"step 7 · stored {byte_size(record.num_bytes.stored)}")
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=place)
    assert models.selection.now.step == 7


def test_the_ledger_lists_every_line(models: Models, show: Callable[..., Any]) -> None:
    last = models.timeline.latest
    assert last is not None
    first, *others = last.num_bytes.layers
    held = replace(last.num_bytes, layers=(replace(first, predicted=first.predicted - 512), *others))
    models.timeline.append([replace(last, step=STEPS + 1, num_bytes=held)])
    view = show(BytesView(models))
    lines = {line.label: line.text for line in view.state.lines}
    assert len({held.predicted, held.stored, held.reserved, held.looking, held.process}) == 5, (
        "each number at its own label"
    )
    assert lines["formula 2·L·H_kv·D·S·b"] == f"{held.predicted:,}"
    assert lines["stored beyond the formula"] == "512"
    assert lines["stored in tensors"] == f"{held.stored:,}"
    assert lines["room to grow"] == f"+{held.reserved - held.stored:,}"
    assert lines["reserved in storage"] == f"{held.reserved:,}"
    assert lines["kept by KV Loupe"] == f"{held.looking:,}"
    assert lines["held by the allocator"] == "cannot be asked here"
    assert lines["process, resident"] == f"{held.process:,}"
    told = dict((*line.strip().split("\t"), "")[:2] for line in view.facts.accessibleDescription().split("\n"))
    assert told == lines, "a screen reader has the same numbers at the same labels"


def test_memory_that_nobody_measured_is_no_zero() -> None:
    held = replace(samples.cache_bytes(4), process=0)
    lines = {fact.label: fact.text for fact in ledger_lines(held, is_shared=False)}
    assert lines["process, resident"] == "not recorded"
    told = {fact.label: fact.text for fact in ledger_lines(samples.cache_bytes(4), is_shared=False)}
    assert told["process, resident"] != "not recorded"


def test_the_top_bar_says_what_share_of_exact_is_held(desk: Desk) -> None:
    """By the definition of INT8: a byte a number and two a row and head, against four a number."""
    desk.run(cache_preset("int8").spec, steps=5)
    geometry = samples.model_info().geometry
    share = (geometry.head_dim + 2) / (4 * geometry.head_dim)
    desk.until(lambda: desk.window.top.size_of_cache.text.endswith(f"{100 * share:.1f} % of exact"))
    held = desk.models.timeline.num_bytes(None)
    assert held is not None
    assert held.stored == round(share * (held.exact or 0))
    assert desk.window.top.size_of_cache.text.startswith(byte_size(held.stored))
    desk.look_at(2)
    then = desk.models.timeline.num_bytes(2)
    assert then is not None
    assert then.stored < held.stored
    wanted = byte_size(then.stored)
    desk.until(lambda: desk.window.top.size_of_cache.text.startswith(wanted))
    desk.look_at(None)
    desk.choose(CacheSpec())
    desk.until(lambda: "exact" not in desk.window.top.size_of_cache.text)


def test_beside_the_bars_the_ledger_has_room_for_its_labels(models: Models, show: Callable[..., Any]) -> None:
    """As wide as the panel is in a window of 1600 pixels."""
    view = show(BytesView(models))
    view.resize(448, 170)
    QApplication.processEvents()
    words = {shape.text for shape in shapes(view.facts)}
    (bars,) = view.findChildren(LayerBars)
    assert bars.x() > view.facts.geometry().right(), "they are beside it"
    assert {line.label for line in view.state.lines[:5]} <= words
    title = QFontMetricsF(font_text(11)).horizontalAdvance("stored / reserved")
    assert bars.width() >= title
