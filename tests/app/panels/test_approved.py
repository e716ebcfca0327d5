"""Every panel in a run in which everything differs, moment by moment: all that it shows, as a file that was read and
approved (`approved/PANEL.txt`); of every later moment the lines that came and went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.kit.theme import DARK, apply_theme, load_fonts
from app.models import Models
from app.panels.attention.view import AttentionView
from app.panels.bench.view import BenchView
from app.panels.branches.view import BranchesView
from app.panels.bytes.view import BytesView
from app.panels.damage.view import DamageView
from app.panels.edits.view import EditsView
from app.panels.evicted.view import EvictedView
from app.panels.head.view import HeadView
from app.panels.inspector.view import InspectorView
from app.panels.next_token.view import NextTokenView
from app.panels.notes.view import NotesView
from app.panels.parity.view import ParityView
from app.panels.prompt.view import PromptPanel
from app.panels.sequences.view import SequencesView
from app.panels.stops.view import StopsView
from app.panels.sweep.view import SweepView
from app.panels.timeline.view import TimelineBar
from app.panels.timings.view import TimingsView
from app.panels.tokens.view import TokensPanel
from app.panels.wall.view import WallView
from app.panels.what_if.view import WhatIfView
from engine.wire.events import Failed
from engine.wire.status import Work
from tests.app.rich import feed, rich_models
from tests.app.rich_answers import measured_models
from tests.app.robot import Robot
from tests.app.shown import approve, changes, shown

APPROVED = Path(__file__).parent / "approved"

PANELS: dict[str, tuple[Callable[[Models], QWidget], tuple[int, int]]] = {
    "attention": (AttentionView, (900, 320)),
    "branches": (BranchesView, (640, 260)),
    "bytes": (BytesView, (700, 420)),
    "edits": (EditsView, (640, 260)),
    "head": (HeadView, (760, 360)),
    "inspector": (InspectorView, (420, 760)),
    "next_token": (NextTokenView, (420, 360)),
    "notes": (NotesView, (640, 260)),
    "prompt": (PromptPanel, (420, 420)),
    "sequences": (SequencesView, (760, 220)),
    "stops": (StopsView, (640, 260)),
    "timeline": (TimelineBar, (900, 60)),
    "timings": (TimingsView, (700, 320)),
    "tokens": (TokensPanel, (420, 260)),
    "wall": (WallView, (700, 520)),
}  # fmt: skip

MOMENTS: dict[str, dict[str, Any]] = {
    "another layer and head": {"layer": 1, "kv_head": 2},
    "a dropped token": {"position": 5},
    "the first step of the other branch": {"step": 4},
    "step 8": {"step": 8},
    "the other sequence": {"seq_id": 1, "position": 11},
    "V": {"tensor": "values"},
    "what changed": {"change": True},
    "no token, a channel": {"position": None, "channel": 3},
}


MEASURED: dict[str, tuple[Callable[[Models], QWidget], tuple[int, int]]] = {
    "what_if": (WhatIfView, (640, 340)),
    "evicted": (EvictedView, (700, 420)),
    "damage": (DamageView, (760, 480)),
    "parity": (ParityView, (760, 360)),
    "sweep": (SweepView, (900, 420)),
    "bench": (BenchView, (900, 420)),
}

OTHERS: dict[str, dict[str, Any]] = {
    "another layer and head": {"layer": 1, "kv_head": 2},
    "a dropped token": {"position": 5},
    "step 8": {"step": 8},
    "the other sequence": {"seq_id": 1, "position": 11},
}


class Witness:
    """Notes down what a panel shows, moment by moment, and what can be done to it."""

    def __init__(self, view: Any, models: Models) -> None:
        self.view, self.models, self.start = view, models, models.selection.now
        self.lines: list[str] = []
        self._seen: list[str] = []
        view.show()

    def look(self, moment: str) -> None:
        self._settle()
        found = shown(self.view)
        self.lines += ["", f"== {moment}", *(changes(self._seen, found) if self._seen else found)]
        self._seen = found

    def select(self, moments: dict[str, dict[str, Any]]) -> None:
        for moment, change in moments.items():
            self.models.selection.update(**change)
            self.look(moment)
            self.back()

    def choose(self) -> None:
        """Every segment of the strip."""
        choices = [choice for choice, *_ in getattr(self.view, "choices", ())]
        for choice in choices[1:]:
            self.view.choose(choice)
            self.look(f"segment {choice}")
            self.models.selection.update(layer=1, kv_head=2, position=4)
            self.look(f"segment {choice}, elsewhere")
            self.back()
        if choices:
            self.view.choose(choices[0])
        self.back()

    def act(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            self.lines += ["", "== what can be done", *Robot(self.view, self.models, patched).lines()]
        self.back()

    def back(self) -> None:
        self.models.selection.update(**vars(self.start))
        self._settle()
        self._seen = shown(self.view)

    def _settle(self) -> None:
        for _ in range(2):
            QApplication.processEvents()
            feed(self.models)
        QApplication.processEvents()


@pytest.fixture(autouse=True)
def _theme(qapp: QApplication) -> Iterator[None]:
    """The dark theme with its shapes, whatever the tests before left."""
    load_fonts()
    before = qapp.styleSheet()
    apply_theme(qapp, DARK)
    yield
    qapp.setStyleSheet(before)


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_shows_what_was_approved(qtbot: QtBot, name: str) -> None:
    build, size = PANELS[name]
    models = rich_models()
    view = build(models)
    qtbot.addWidget(view)
    view.resize(*size)
    witness = Witness(view, models)
    witness.look("now")
    witness.select(MOMENTS)
    witness.choose()
    witness.act()
    status = models.status.now
    assert status is not None
    models.status.set(replace(status, running=True))
    witness.look("while it runs")
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


@pytest.mark.parametrize("name", MEASURED)
def test_a_measurement_is_shown_as_approved(qtbot: QtBot, name: str) -> None:
    build, size = MEASURED[name]
    models = measured_models()
    view = build(models)
    qtbot.addWidget(view)
    view.resize(*size)
    witness = Witness(view, models)
    witness.look("answered")
    witness.choose()
    witness.select(OTHERS)
    witness.act()
    measurement = getattr(models.measurements, {"evicted": "regret"}.get(name, name))
    measurement.ask(replace(measurement.question, id=70), 10)
    measurement.follow(Work("measuring", 3, 8, reply_to=70))
    witness.look("asked again")
    measurement.refuse(Failed("It cannot be: choose another.", can_rebuild=True, reply_to=70))
    witness.look("refused")
    measurement.outdate()
    witness.look("out of date")
    approve(APPROVED / f"{name}.txt", witness.lines[1:])
