"""The wall in a real widget: thumbnails of its own size, what is painted anew, clicks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QObject, QPoint, Qt
from PySide6.QtGui import QColor, QImage, QPaintEvent, QRegion
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.kit.theme import current_theme
from app.models import Models
from app.panels.wall.draw import WallRow, magnitude_words
from app.panels.wall.view import WallView
from engine.wire.pictures import WallRequest
from tests.app import samples
from tests.app.painted import shapes
from tests.app.panels.recorded import STEPS, TOKENS, give_pictures, recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


class Regions(QObject):
    """What is painted of a widget."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self._found = QRegion()
        QApplication.processEvents()
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QPaintEvent):
            self._found += event.region()
        return False

    def take(self) -> QRegion:
        """All since the last time."""
        QApplication.processEvents()
        found, self._found = self._found, QRegion()
        return found


def test_the_wall_asks_for_thumbnails_of_its_own_size_and_draws_them(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    layout = wall.canvas.layout_now
    assert models.viewport.now.wall_size is not None
    assert models.viewport.now.wall_size[0] <= layout.picture_width
    assert models.viewport.now.wall_size[1] == layout.picture_height
    give_pictures(models)
    image = wall.canvas.image
    assert (image.width(), image.height()) == (layout.width, layout.height)
    small = layout.picture_of(2, 1)
    colors = {image.pixel(small.x + 3 * i, small.y + 2) for i in range(20)}
    assert len(colors) > 5


def test_what_is_painted_anew_of_a_wall_is_all_that_another_picture_changes(
    models: Models, show: Callable[..., Any]
) -> None:
    wall = show(WallView(models))
    canvas = wall.canvas
    give_pictures(models)
    picture = models.pictures.wall
    frame = QRegion(canvas.rect())

    def paint(image: QImage, region: QRegion) -> QImage:
        there = region.translated(canvas.mapTo(wall, QPoint()))
        wall.render(image, there.boundingRect().topLeft(), there)
        return image

    for values in (-picture.low, np.where(picture.low > 0, np.float32(np.nan), picture.low)):
        image = paint(QImage(wall.size(), QImage.Format.Format_RGB32), frame)
        before = image.copy()
        models.pictures.put(replace(picture, low=values, high=values))
        paint(image, canvas.pictures_region)
        assert image != before
        assert image == paint(before.copy(), frame)
    assert not canvas.pictures_region.contains(QPoint(2, canvas.height() // 2)), "labels stand outside"


def test_another_word_beside_the_wall_paints_all_of_it(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    canvas = wall.canvas
    give_pictures(models)
    painted = Regions(canvas)
    picture, far = models.pictures.wall, samples.magnitudes()
    models.pictures.put(replace(picture, low=-picture.high))
    assert painted.take() == canvas.pictures_region
    far.largest[2] = 41.0
    models.pictures.put(replace(picture, magnitudes=far))
    assert painted.take() == QRegion(canvas.rect())


def test_a_picture_of_the_branch_before_stays_and_says_so_until_the_next_is_there(
    models: Models, show: Callable[..., Any]
) -> None:
    wall = show(WallView(models))
    give_pictures(models)
    before, picture = wall.canvas.grab().toImage(), models.pictures.wall
    assert wall.provenance_label.kind == "live cache"
    models.pictures.clear()  # as where another branch is viewed
    assert wall.canvas.grab().toImage() == before
    assert (wall.provenance_label.text, wall.provenance_label.kind) == ("former picture", "past")
    models.pictures.put(replace(picture, low=-picture.high))
    assert wall.canvas.grab().toImage() != before
    assert wall.provenance_label.kind == "live cache"


def test_a_wall_whose_rows_come_back_has_its_picture_again(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    give_pictures(models)
    assert not wall.canvas.image.isNull()
    rows = wall.canvas.rows
    wall.canvas.set_rows(
        tuple(WallRow(row.layer, row.num_heads, "the model is on its way") for row in rows)
    )  # as while a model is on its way
    assert wall.canvas.rows == rows
    assert not wall.canvas.image.isNull()


def test_a_picture_that_is_there_before_the_wall_was_laid_out_fills_it(
    models: Models, show: Callable[..., Any]
) -> None:
    wall = show(WallView(first := Models()), 300, 200)
    first.status.set(models.status.now)
    wall.resize(900, 400)
    QApplication.processEvents()
    first.pictures.put(samples.wall_picture(WallRequest(0, TOKENS, TOKENS - 1, "keys", False, 160, 30)))
    assert wall.empty_text
    first.timeline.append(samples.story(STEPS))
    first.timeline.announce()
    image, layout = wall.canvas.image, wall.canvas.layout_now
    assert (image.width(), image.height()) == (layout.width, layout.height)


def test_a_click_on_the_wall_opens_the_head_at_its_token(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    wall = show(WallView(models))
    give_pictures(models)
    small = wall.canvas.layout_now.picture_of(5, 2)
    pos = QPoint(small.x + small.width - 1, small.y + 3)
    qtbot.mouseClick(wall.canvas, Qt.MouseButton.LeftButton, pos=pos)
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position) == (5, 2, TOKENS - 1)


def test_the_segments_choose_tensor_and_change(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    wall.choose("dV")
    assert (models.selection.now.lens, models.selection.now.change) == ("values", True)
    assert wall.segments.choice == "dV"  # nothing is drawn yet that could be something else
    give_pictures(models)
    models.selection.update(lens="keys", change=False)
    assert wall.segments.choice == "dV"  # still drawn
    give_pictures(models)
    assert wall.segments.choice == "K"


def words_of(canvas: QWidget) -> list[str]:
    return [shape.text for shape in shapes(canvas) if shape.text]


def test_heads_of_queries_are_not_called_kv_heads(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    wall = show(WallView(models), 900, 300)
    give_pictures(models)
    canvas = wall.canvas
    assert "kv head 0" in words_of(canvas)
    models.selection.update(lens="attention")
    give_pictures(models)
    assert "kv head 0" not in words_of(canvas)
    assert "head 0" in words_of(canvas)
    models.selection.update(lens="keys-norm")
    give_pictures(models)
    assert "kv head 0" in words_of(canvas)


def test_magnitudes_are_drawn_from_zero_up(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    models.selection.update(lens="keys-norm")
    give_pictures(models)
    picture = models.pictures.wall
    nothing = np.zeros_like(picture.low[..., :1])
    models.pictures.put(replace(picture, low=nothing, high=nothing))
    small = wall.canvas.layout_now.picture_of(2, 1)
    ground = wall.canvas.image.pixel(small.x + 3, small.y + 3)
    assert ground == QColor(current_theme().signed_middle).rgba()
    assert "range 0–" in magnitude_words(picture, 2)
    models.selection.update(lens="keys")
    give_pictures(models)
    assert "range ±" in magnitude_words(models.pictures.wall, 2)


def test_names_of_layers_and_heads_have_tooltips(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    wall = show(WallView(models), 900, 300)
    give_pictures(models)
    canvas, layout = wall.canvas, wall.canvas.layout_now
    label = next(each for each in layout.labels if each.layer == 3)
    qtbot.mouseMove(canvas, QPoint(label.x + 2, label.y + label.height // 2))
    assert "Layer 3" in canvas.toolTip()
    assert "its largest value as a multiple of its colour range" in canvas.toolTip()
    _, x, width = layout.header[1]
    qtbot.mouseMove(canvas, QPoint(x + width // 2, 5))
    assert "Kv head 1" in canvas.toolTip()
    assert "query heads 2 to 3" in canvas.toolTip()


def test_a_wall_taller_than_its_panel_scrolls_to_the_selected_layer(models: Models, show: Callable[..., Any]) -> None:
    shape = samples.geometry(layers=126, kv_heads=8)
    models.status.set(samples.status(STEPS, num_tokens=TOKENS, model=samples.model_info(shape=shape)))
    wall = show(WallView(models), 320, 160)
    assert wall.canvas.height() > wall.scroller.viewport().height()
    before = wall.canvas.selected_rect()
    assert wall.scroller.verticalScrollBar().value() == 0
    models.selection.update(layer=30, kv_head=0)  # before there is a picture, too
    assert wall.scroller.verticalScrollBar().value() > 0
    after = wall.canvas.selected_rect()
    assert after.top() > before.top()
    visible = wall.canvas.visibleRegion().boundingRect()
    assert visible.contains(after.center().toPoint())
