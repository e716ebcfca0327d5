"""The newest row in a real widget: weights, colours, masses, marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.draw.matrix import matrix_of
from app.kit.map_view import LensMenu
from app.models import Models
from app.panels.attention import LINEAR, LOG, PER_HEAD, AttentionView, attention_indices
from tests.app import samples
from tests.app.panels.recorded import TOKENS, give_pictures, recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


def test_another_token_moves_the_mark_in_the_newest_row(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    assert view.map.marks.selected == (13, 14)
    models.selection.update(position=4)  # no new slice comes for that
    assert view.map.marks.selected == (4, 5)


def test_weights_reach_the_image_and_hover_tells_them(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    assert view.map.image.image.shape == (samples.HEADS, TOKENS)
    view.map.hover_at(QPointF(4.5, 6.5))
    assert str(np.float32(picture.weights[6, 4])) in view.readout.text()
    plot = view.map.plot_rect
    pos = QPoint(int(plot.left() + 4.5 / TOKENS * plot.width()), int(plot.top() + 6.5 / samples.HEADS * plot.height()))
    qtbot.mouseClick(view.map, Qt.MouseButton.LeftButton, pos=pos)
    assert (models.selection.now.position, models.selection.now.kv_head) == (4, 3)


def test_a_model_with_attention_of_its_own_is_shown_where_it_hands_its_weights_out(
    models: Models, show: Callable[..., Any]
) -> None:
    now = models.status.now
    assert now is not None
    assert now.model is not None
    models.status.set(replace(now, model=replace(now.model, captures_attention=False)))
    view = show(AttentionView(models))
    give_pictures(models)
    assert view.state is not None
    assert view.state.picture is models.pictures.attention


def test_rows_that_were_evicted_are_said_to_be_hatched(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    assert view.state is not None
    assert "hatched" not in view.state.words
    models.pictures.put(replace(picture, absent=np.zeros(picture.weights.shape, np.int32)))
    assert "hatched: evicted before" in view.state.words


def test_the_colour_scale_is_a_choice(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    for scale in (LOG, PER_HEAD, LINEAR):
        view.choose(scale)
        assert view.segments.choice == scale
        assert (view.map.image.image == attention_indices(picture, scale)).all()


def test_masses_stand_beside_their_heads(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    record = models.timeline.latest
    assert record is not None
    assert record.sequences[0].attention is not None
    assert [m.first for m in view.masses.masses] == pytest.approx(record.sequences[0].attention.first_mass[3].tolist())


def test_the_attention_map_tells_queries_and_a_click_keeps_the_head(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    models.viewport.update(attention_lens="attention-map")
    request = replace(picture.request, lens="attention-map", head=5, max_rows=8)
    queries = np.tril(np.linspace(0.1, 1, 8 * TOKENS, dtype=np.float32).reshape(8, TOKENS), 2)
    rows = {"weights": queries, "entropy": None, "top_positions": None, "top_weights": None, "absent": None}
    models.pictures.put(replace(picture, request=request, first_query=2, queries_per_row=1, **rows))
    view.tell(QPointF(4.5, 3.5))
    said = view.findChild(QLabel, "readout").text()
    assert said.startswith("query 5")
    assert str(queries[3, 4]) in said
    view.pick(QPointF(4.5, 3.5))
    assert (models.selection.now.position, models.selection.now.kv_head, models.viewport.now.query_head) == (4, 2, 5)
    assert view.title_label.text() == "Attention · L3 head 5"
    view.map.setToolTip("of the cell before")
    view.tell(QPointF(6.5, 3.5))
    assert view.findChild(QLabel, "readout").text().endswith("not read: behind the query")
    assert not view.map.toolTip()
    assert (matrix_of(models.pictures.attention).is_gone == (queries == 0)).all(), (
        "it is hatched, as no weight was given"
    )
    models.pictures.put(replace(models.pictures.attention, is_causal=False))
    view.tell(QPointF(6.5, 3.5))
    assert view.findChild(QLabel, "readout").text().endswith("0.0  (0.0 %)"), "every query reads all of a source"


def test_how_widely_a_query_looked_is_told_with_its_unit(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    models.viewport.update(attention_lens="attention-entropy")
    request = replace(picture.request, lens="attention-entropy")
    models.pictures.put(replace(picture, request=request, entropy=None, top_positions=None, top_weights=None))
    assert view.readout.text() == "point at a cell for its exact value"
    view.tell(QPointF(4.5, 3.5))
    assert view.readout.text().endswith(f"{picture.weights[3, 4]!s} nats")


def test_the_menu_has_how_many_queries_a_sum_is_over(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    menu = view.findChild(LensMenu)
    of = {action.text(): action for action in menu.menu().actions()}
    assert not of["The latest 16 queries"].isEnabled(), "the newest token is one query"
    models.viewport.update(attention_lens="attention-received")
    picture = models.pictures.attention
    assert picture is not None
    models.pictures.put(replace(picture, request=replace(picture.request, lens="attention-received")))
    of["The latest 16 queries"].trigger()
    assert models.viewport.now.attention_latest == 16
    models.pictures.put(replace(picture, request=replace(picture.request, lens="attention-received", latest=16)))
    assert menu.text() == "attention received · 16 ▾"
    assert "of the latest 16 queries" in menu.toolTip()
    assert of["The latest 16 queries"].isEnabled()
    assert [text for text, action in of.items() if action.isChecked()][1:] == ["The latest 16 queries"]
    of["All queries"].trigger()
    assert models.viewport.now.attention_latest == 0


def test_sums_are_told_as_sums_and_not_as_shares(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    sums = picture.weights * 7
    models.pictures.put(replace(picture, request=replace(picture.request, lens="attention-received"), weights=sums))
    view.tell(QPointF(4.5, 6.5))
    said = view.findChild(QLabel, "readout").text()
    assert str(np.float32(sums[6, 4])) in said
    assert "%" not in said
