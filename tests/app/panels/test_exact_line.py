"""A hairline on Head and on the wall where the rows begin that a codec such as KIVI leaves exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QWidget

from app.panels.head import HeadView
from app.panels.wall.view import WallView
from tests.app import samples
from tests.app.panels.recorded import TOKENS, give_pictures, recorded_models

LINE = "line: exact from here on"


def pixels(widget: QWidget) -> np.ndarray:
    QApplication.processEvents()
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    return np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), image.width()).copy()


def changed_columns(before: np.ndarray, after: np.ndarray) -> list[int]:
    return np.flatnonzero((before != after).any(axis=0)).tolist()


def test_on_head(qapp: QApplication, show: Callable[..., Any]) -> None:
    models = recorded_models()
    view = show(HeadView(models))
    give_pictures(models)
    piece = models.pictures.head
    assert piece is not None
    assert LINE not in view.detail.text()
    before = pixels(view.map)
    models.pictures.put(replace(piece, exact_from=TOKENS // 2))
    assert LINE in view.detail.text()
    assert len(changed_columns(before, pixels(view.map))) == 1
    for whole in (0, TOKENS):
        models.pictures.put(replace(piece, exact_from=whole))
        assert LINE not in view.detail.text()
        assert changed_columns(before, pixels(view.map)) == []


def test_on_the_wall_in_the_layers_that_have_both(qapp: QApplication, show: Callable[..., Any]) -> None:
    models = recorded_models()
    view = show(WallView(models))
    give_pictures(models)
    piece = models.pictures.wall
    assert piece is not None
    assert LINE not in view.detail.text()
    before = pixels(view.canvas)
    half = TOKENS // 2
    models.pictures.put(replace(piece, exact_from=(half, TOKENS, *(0 for _ in range(samples.LAYERS - 2)))))
    assert LINE in view.detail.text()
    assert len(changed_columns(before, pixels(view.canvas))) == samples.KV_HEADS, "one line in each head"
    rows = np.flatnonzero((before != pixels(view.canvas)).any(axis=1))
    small = view.canvas.layout_now.picture_of(0, 0)
    assert set(rows.tolist()) <= set(range(small.y, small.y + small.height)), "within the row of the first layer"
