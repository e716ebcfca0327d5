"""Edits of a live cache in the window: the head shows the new numbers under the cursor, undo brings the old ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.draw.matrix import matrix_of
from app.window.bars import StepCounter
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.edit import BiasLogits, Drop, Mask, ReplaceTokens, Rows, Zero
from engine.wire.commands import UndoEdit
from tests.app.driver import Driver
from tests.app.mouse import move_mouse

LEFT = Qt.MouseButton.LeftButton
TEXT = "Once upon a time there was a little girl named Lily"


@pytest.fixture(params=["growing", "paged"])
def desk(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = started(qapp, cache_preset(request.param).spec)
    yield driver
    driver.close()


@pytest.fixture
def growing(qapp: QApplication) -> Iterator[Driver]:
    driver = started(qapp, CacheSpec())
    yield driver
    driver.close()


def started(qapp: QApplication, spec: CacheSpec) -> Driver:
    driver = Driver(qapp, spec)
    driver.window.resize(1600, 1000)
    driver.send(TEXT)
    driver.steps(3)
    driver.models.selection.update(layer=2, kv_head=1)
    driver.wait_until_idle(lambda: (piece := driver.models.pictures.head) is not None and piece.request.kv_head == 1)
    return driver


def num_edits(desk: Driver) -> int:
    return len(desk.models.edits.on_path())


def numbers(desk: Driver) -> np.ndarray:
    """What the head shows: `[channels, positions]`."""
    piece = desk.models.pictures.head
    assert piece is not None
    return matrix_of(piece).values.copy()


def place(desk: Driver, position: int, channel: int) -> QPointF:
    chart, values = desk.window.head.map, numbers(desk)
    plot = chart.plot_rect
    width, height = plot.width() / values.shape[1], plot.height() / values.shape[0]
    return QPointF(plot.left() + (position + 0.5) * width, plot.top() + (channel + 0.5) * height)


def drag_over(desk: Driver, start: QPointF, stop: QPointF) -> None:
    chart = desk.window.head.map
    QTest.mousePress(chart, LEFT, pos=start.toPoint())
    for at in ((start + stop) / 2, stop):
        move_mouse(chart, at, LEFT)
    QTest.mouseRelease(chart, LEFT, pos=stop.toPoint())


def test_zeroed_cells_are_zero_under_the_cursor_and_undo_brings_the_old_bits(desk: Driver) -> None:
    before = numbers(desk)
    assert np.abs(before[2:5, 3:6]).min() > 0
    drag_over(desk, place(desk, 3, 2), place(desk, 5, 4))
    QTest.keyClick(desk.window.head.map, Qt.Key.Key_Z)
    desk.wait_until_idle(lambda: num_edits(desk) == 1)
    after = numbers(desk)
    assert not after[2:5, 3:6].any()
    after[2:5, 3:6] = before[2:5, 3:6]
    assert np.array_equal(after, before), "nothing else was touched"
    move_mouse(desk.window.head.map, place(desk, 4, 3))
    readout = desk.window.head.readout.text()
    assert "[2, 1, 4, 3] = 0.0 " in readout
    assert "edited: zero at step" in readout
    assert desk.models.edits.kl(desk.models.edits.on_path()[0].step) > 0
    desk.window.actions_["edit.undo"].trigger()
    desk.wait_until_idle(lambda: num_edits(desk) == 0)
    assert np.array_equal(numbers(desk), before)
    desk.window.actions_["edit.redo"].trigger()
    desk.wait_until_idle(lambda: num_edits(desk) == 1)
    assert not numbers(desk)[2:5, 3:6].any()


def test_a_masked_token_gets_no_attention_and_looks_masked(growing: Driver) -> None:
    growing.intents.on_edited(Mask(0, Rows(4, 6)))
    growing.wait_until_idle(lambda: num_edits(growing) == 1)
    growing.steps(1)
    growing.wait_until_idle()
    weights = growing.models.pictures.attention.weights
    assert not np.nan_to_num(weights[:, 4:6]).any()
    assert weights[:, 3].any()
    assert [(box.start, box.stop, box.is_hidden) for box in growing.window.attention.state.edited] == [(4, 6, True)]


def test_what_is_impossible_is_said_and_nothing_is_changed(growing: Driver) -> None:
    before = numbers(growing)
    growing.intents.on_edited(Zero(0, Rows(4, 400)))
    assert "There are no positions 4 … 399 to edit" in growing.models.status.failure
    growing.models.status.fail("")
    growing.intents.send(UndoEdit())
    growing.until(lambda: growing.models.status.failure, may_fail=True)
    assert growing.models.status.failure
    growing.models.status.fail("")
    growing.intents.on_edited(Drop(0, Rows(0, growing.models.timeline.num_tokens(0))))
    assert growing.models.status.failure
    growing.models.status.fail("")
    growing.wait_until_idle()
    assert np.array_equal(numbers(growing), before)


def test_tokens_that_were_overwritten_stand_in_the_text_with_a_report_by_layer(growing: Driver) -> None:
    texts = [token.text for token in growing.models.timeline.tokens(0)]
    other = growing.models.timeline.tokens(0)[7]
    growing.intents.on_edited(ReplaceTokens(0, 3, (other.token_id,), "overwrite", 1))
    growing.wait_until_idle(lambda: num_edits(growing) == 1)
    now = [token.text for token in growing.models.timeline.tokens(0)]
    assert now == [*texts[:3], other.text, *texts[4:]]
    growing.window.docks.docks["edits"].raise_()
    growing.window.edits.choose("effect")
    growing.wait_until_idle()
    rows = growing.window.edits.kept.table.rows
    assert [row.name for row in rows][:2] == ["L0", "L1"]
    # rows of the first layer depend on their own token only: later rows are those of a re-prefill
    assert float(rows[0].bars[0].number) < 1e-3 < float(rows[-1].bars[0].number)


def test_a_banned_token_is_not_chosen(growing: Driver) -> None:
    part = growing.models.timeline.latest.sequences[0]
    best = part.candidates[0].token_id
    growing.intents.on_edited(BiasLogits(0, banned=(best,)))
    growing.wait_until_idle(lambda: num_edits(growing) == 1)
    growing.wait_until_idle()
    rows = growing.window.next_token.state.rows
    source = growing.window.next_token.provenance_label
    assert (source.text, source.kind) == ("after the edit", "recorded"), "it stays so where the engine is lost"
    assert {row.key: (row.bars[0].is_faded, row.is_bold) for row in rows}[best] == (True, False)
    chosen = next(row for row in rows if row.is_bold)
    pending = growing.window.tokens.canvas.chips.pending
    assert pending != part.sampled_text
    growing.window.actions_["run.step"].trigger()
    done = len(growing.models.timeline)
    growing.wait_until_idle(lambda: len(growing.models.timeline) > done)
    computed = growing.models.timeline.latest.sequences[0]
    assert computed.token_ids == (chosen.key,) != (best,)
    assert computed.texts == (pending,)
    assert growing.window.next_token.provenance_label.text != "after the edit"


def test_the_counter_and_the_newest_row_are_those_of_the_edit(desk: Driver) -> None:
    """An edit has a number of its own; after a re-prefill its attention is shown."""
    counter = desk.window.top.findChild(StepCounter)
    assert counter is not None
    step = desk.models.timeline.tip
    assert counter.accessibleName() == f"step {step}  / {step} live"
    desk.intents.on_edited(ReplaceTokens(0, 2, (40,), "re-prefill", 1))
    desk.wait_until_idle(lambda: num_edits(desk) == 1)
    edit = desk.models.timeline.tip
    assert edit == (step or 0) + 1
    assert counter.accessibleName() == f"step {edit}  / {edit} live · edited"
    piece = desk.models.pictures.attention
    assert piece is not None
    assert (piece.note, piece.query_position) == ("", desk.models.timeline.num_tokens(0) - 1)
    desk.look_at(step)
    assert counter.accessibleName().startswith(f"step {step}  / {edit}")
