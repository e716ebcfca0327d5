"""On a screen of twice as many pixels every panel is painted at the same places."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.models import Models
from tests.app.painted import Shape, paints_itself, shapes
from tests.app.panels.shown_panels import IN_PAGES, MEASURED, PANELS
from tests.app.panels.witness import PanelOfSize, witness_of
from tests.app.rich import give_pictures, rich_models
from tests.app.rich_answers import measured_models
from tests.app.rich_pages import PagedRun

pytestmark = pytest.mark.usefixtures("dark_theme")

Run = tuple[Models, Callable[[], None]]


def rich() -> Run:
    models = rich_models()
    return models, lambda: give_pictures(models)


def paged() -> Run:
    run = PagedRun()
    return run.models, run.give_pictures


def measured() -> Run:
    models = measured_models()
    return models, lambda: give_pictures(models)


RUNS: dict[str, tuple[PanelOfSize, Callable[[], Run]]] = {
    **{
        name: (PANELS[name], rich)
        for name in ("wall", "head", "bytes", "timings", "tokens", "timeline", "sequences", "inspector")
    },
    "pages": (IN_PAGES["pages"], paged),
    "damage": (MEASURED["damage"], measured),
}  # fmt: skip


def pictures(qtbot: QtBot, name: str) -> list[Shape]:
    """What the widgets of a panel paint by hand."""
    panel, begin = RUNS[name]
    witness = witness_of(qtbot, panel, *begin())
    witness.look("now")
    widgets = [widget for widget in (witness.view, *witness.view.findChildren(QWidget)) if paints_itself(widget)]
    found = [shape for widget in widgets if widget.isVisible() for shape in shapes(widget)]
    witness.view.hide()
    return found


@pytest.mark.parametrize("name", RUNS)
def test_pictures_lie_where_they_do_on_coarse_pixels(qtbot: QtBot, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = pictures(qtbot, name)
    monkeypatch.setattr(QWidget, "devicePixelRatioF", lambda _: 2.0)
    fine = pictures(qtbot, name)
    assert [shape.style for shape in fine] == [shape.style for shape in coarse]
    away = [np.abs(np.subtract(one.place, other.place)).max() for one, other in zip(coarse, fine, strict=True)]
    assert max(away) <= 3, "pixels"
