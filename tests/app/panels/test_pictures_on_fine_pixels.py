"""On a screen of twice as many pixels every panel is painted at the same places, and finds there what it found."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.models import Models
from tests.app.panels.shown_panels import IN_PAGES, MEASURED, PANELS
from tests.app.panels.witness import PanelOfSize, witness_of
from tests.app.rich import feed, rich_models
from tests.app.rich_answers import measured_models
from tests.app.rich_pages import PagedRun
from tests.app.robot import Robot
from tests.app.shown import is_same

pytestmark = pytest.mark.usefixtures("dark_theme")

Run = tuple[Models, Callable[[], None]]
_IMAGE = re.compile(r"(\s*)image [\d.]+ × [\d.]+ @([-\d]+,[-\d]+,[-\d]+,[-\d]+).*")


def rich() -> Run:
    models = rich_models()
    return models, lambda: feed(models)


def paged() -> Run:
    run = PagedRun()
    return run.models, run.feed


def measured() -> Run:
    models = measured_models()
    return models, lambda: feed(models)


RUNS: dict[str, tuple[PanelOfSize, Callable[[], Run]]] = {
    **{
        name: (PANELS[name], rich)
        for name in ("wall", "head", "bytes", "timings", "tokens", "timeline", "sequences", "inspector")
    },
    "pages": (IN_PAGES["pages"], paged),
    "damage": (MEASURED["damage"], measured),
}  # fmt: skip


def told(qtbot: QtBot, name: str) -> list[str]:
    panel, begin = RUNS[name]
    witness = witness_of(qtbot, panel, *begin())
    witness.look("now")
    with pytest.MonkeyPatch.context() as patched:
        lines = [*witness.lines, *Robot(witness.view, witness.models, patched).pictures()]
    witness.view.hide()
    # a picture has other pixels at the same place; a click, one token more or less
    return [_IMAGE.sub(r"\1image @\2", line) for line in lines if " clicked in the middle: " not in line]


@pytest.mark.parametrize("name", RUNS)
def test_pictures_lie_where_they_do_on_coarse_pixels(qtbot: QtBot, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = told(qtbot, name)
    monkeypatch.setattr(QWidget, "devicePixelRatioF", lambda _: 2.0)
    fine = told(qtbot, name)
    assert len(fine) == len(coarse)
    assert [pair for pair in zip(coarse, fine, strict=True) if not is_same(*pair)] == []
