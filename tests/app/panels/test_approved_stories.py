"""What a person does in a panel, one thing after the other, and what it shows and asks for then, as it was approved
(`approved/stories/PANEL.txt`). What happens anyway in any panel (every button, every key) is in `test_approved.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.branches.view import BranchesView
from app.panels.breakpoints import BreakpointsView
from app.panels.compare.view import CompareView
from app.panels.damage import DamageView
from app.panels.edits import EditsView
from app.panels.evicted import EvictedView
from app.panels.next_token import NextTokenView
from app.panels.tokens import TokensPanel
from app.panels.what_if import WhatIfView
from tests.app.panels.stories_of_answers import compare, damage, evicted, what_if
from tests.app.panels.stories_of_runs import Steps, branches, edits, next_token, stops, tokens
from tests.app.panels.witness import APPROVED, Witness
from tests.app.rich import give_pictures, rich_models
from tests.app.rich_answers import measured_models
from tests.app.rich_compared import compared_models, give_compared
from tests.app.robot import asdict_of, signals_of
from tests.app.shown import value_words
from tests.approve import approve, short

pytestmark = pytest.mark.usefixtures("dark_theme")

FILES = "{folder}"


class Teller(Witness):
    """Notes down what is shown after each thing that is done, what was asked for, and what is selected now."""

    def __init__(self, view: Any, models: Models, folder: Path) -> None:
        answer = give_compared if models.comparison.now is not None else give_pictures
        super().__init__(view, models, lambda: answer(models))
        self.folder = folder
        self._asked: list[str] = []
        for name in signals_of(view):
            getattr(view, name).connect(lambda *found, name=name: self._asked.append(f"{name}{value_words(found)}"))

    def tell(self, steps: Steps) -> None:
        self.back()  # what it shows at first, `PANEL.txt` has
        for what, do in steps:
            before = asdict_of(self.models)
            do()
            self.look(what)
            now = asdict_of(self.models)
            asked = [f"{key} → {value_words(value)}" for key, value in now.items() if before[key] != value]
            self.lines += [short(f"> {line}".replace(str(self.folder), FILES)) for line in (*asked, *self._asked)]
            self._asked.clear()


STORIES: dict[str, tuple[Callable[[Models], Any], Callable[..., Steps], Callable[[], Models], tuple[int, int]]] = {
    "branches": (BranchesView, branches, rich_models, (640, 260)),
    "tokens": (TokensPanel, tokens, rich_models, (420, 160)),
    "breakpoints": (BreakpointsView, stops, rich_models, (640, 260)),
    "edits": (EditsView, edits, rich_models, (640, 260)),
    "next_token": (NextTokenView, next_token, rich_models, (420, 360)),
    "what_if": (WhatIfView, what_if, measured_models, (640, 340)),
    "evicted": (EvictedView, evicted, measured_models, (700, 420)),
    "damage": (DamageView, damage, measured_models, (760, 480)),
    "compare": (CompareView, compare, compared_models, (900, 420)),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_a_person_does_in_a_panel_is_answered_as_approved(
    qtbot: QtBot, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, story, begin, size = STORIES[name]
    file = str(tmp_path / "edits.json")
    for ask in ("getSaveFileName", "getOpenFileName"):
        monkeypatch.setattr(QFileDialog, ask, lambda *_: (file, ""))
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(tmp_path))
    monkeypatch.setattr("app.panels.compare.view.BLINK_MS", 3_600_000)
    models = begin()
    view = build(models)
    qtbot.addWidget(view)
    view.resize(*size)
    teller = Teller(view, models, tmp_path)
    teller.tell(story(view, models, tmp_path))
    approve(APPROVED / "stories" / f"{name}.txt", teller.lines[1:])
