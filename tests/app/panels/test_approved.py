"""Every panel in a run in which everything differs, moment by moment: all that it shows, as a file that was read and
approved (`approved/PANEL.txt`); of every later moment the lines that came and went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QWidget
from pytestqt.qtbot import QtBot

from app.kit.theme import DARK, LIGHT, apply_theme
from app.models import Models
from app.panels.attention.view import AttentionView
from app.panels.bench.view import BenchView
from app.panels.branches.view import BranchesView
from app.panels.bytes.view import BytesView
from app.panels.compare.steps_view import CompareStepsView
from app.panels.compare.view import DISPLAYS, CompareView
from app.panels.damage.view import DamageView
from app.panels.edits.view import EditsView
from app.panels.evicted.view import EvictedView
from app.panels.head.view import HeadView
from app.panels.inspector.view import InspectorView
from app.panels.next_token.view import NextTokenView
from app.panels.notes.view import NotesView
from app.panels.pages.view import PagesView
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
from engine.spec.bookmark import Bookmark, OnToken
from engine.spec.chat import Turn
from engine.wire.duel import TokenDivergence
from engine.wire.events import Failed, Previewed
from engine.wire.prefix_match import ContinuedFrom
from engine.wire.status import Work
from tests.app import samples
from tests.app.on_screen import assert_repainted
from tests.app.placed import placed
from tests.app.rich import edit_measured, feed, record, rich_models
from tests.app.rich_answers import measured_models
from tests.app.rich_compared import COMPARED, compared_models, feed_compared, next_compared
from tests.app.rich_pages import PagedRun
from tests.app.robot import Robot
from tests.app.shown import approve, changes, kind_of, role_of, shown

pytestmark = pytest.mark.usefixtures("dark_theme")

PanelOfSize = tuple[Callable[[Models], QWidget], tuple[int, int]]
APPROVED = Path(__file__).parent / "approved"

PANELS: dict[str, PanelOfSize] = {
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
    "a sequence that is not there": {"seq_id": 7, "position": None},
}


MEASURED: dict[str, PanelOfSize] = {
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

IN_PAGES: dict[str, PanelOfSize] = {
    "pages": (PagesView, (640, 300)),
    "pages_wide": (PagesView, (900, 220)),
    "sequences_in_pages": (SequencesView, (760, 220)),
    "inspector_in_pages": (InspectorView, (420, 760)),
}
SEQUENCES: dict[str, dict[str, Any]] = {
    "a sequence that shares": {"seq_id": 1, "position": 9},
    "a fork": {"seq_id": 2, "position": 3},
    "step 2": {"step": 2},
    "step 4": {"step": 4, "position": None},
    "a page": {"page": 6, "position": None},
    "a page of the other pool": {"pool": 1, "page": 2, "position": None},
    "a cached page": {"page": 8, "position": None},
}
BOTH: dict[str, PanelOfSize] = {
    "compare": (CompareView, (900, 420)),
    "compared_steps": (CompareStepsView, (1100, 300)),
}


class Witness:
    """Notes down what a panel shows, moment by moment, and what can be done to it."""

    def __init__(self, view: Any, models: Models, answer: Callable[[], None]) -> None:
        self.view, self.models, self.start, self._answer = view, models, models.selection.now, answer
        self.lines: list[str] = []
        self._seen: list[str] = []
        self._placed: list[str] = []
        view.show()

    def look(self, moment: str) -> None:
        self._wait_until_idle()
        assert_repainted(self.view, moment)
        found = shown(self.view)
        self.lines += ["", f"== {moment}", *(changes(self._seen, found) if self._seen else found)]
        self._seen = found

    def places(self) -> None:
        """Where everything lies now, or what of it lies otherwise than the last time."""
        found = list(placed(self.view))
        self.lines += ["-- where it lies", *(changes(self._placed, found) if self._placed else found)]
        self._placed = found

    def select(self, moments: dict[str, dict[str, Any]]) -> None:
        start = self._seen
        for moment, change in moments.items():
            self.models.selection.update(**change)
            self.look(moment)
            self.back(start)

    def choose(self) -> None:
        """Every segment of the strip."""
        choices = [choice for choice, *_ in getattr(self.view, "choices", ())]
        for choice in choices[1:]:
            self.view.choose(choice)
            self.look(f"segment {choice}")
            self.places()
            start = self._seen
            self.models.selection.update(layer=1, kv_head=2, position=4)
            self.look(f"segment {choice}, elsewhere")
            self.back(start)
            with pytest.MonkeyPatch.context() as patched:
                self.lines += Robot(self.view, self.models, patched).pictures()
            self.back()
        if choices:
            self.view.choose(choices[0])
        self.back()

    def act(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            self.lines += ["", "== what can be done", *Robot(self.view, self.models, patched).lines()]
        self.back()

    def focus(self) -> None:
        """Whatever is painted by hand takes the keyboard and gives it away, and shows where it is."""
        for widget in self.view.findChildren(QWidget):
            is_ours = type(widget).__module__.startswith("app.") and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
            if is_ours and widget.isVisible() and widget.isEnabled():
                for has_keys in (True, False):
                    widget.setFocus() if has_keys else widget.clearFocus()
                    assert widget.hasFocus() == has_keys
                    assert_repainted(self.view, f"{kind_of(widget)} {'has' if has_keys else 'lost'} the keyboard")

    def shrink(self) -> None:
        """What gives way where there is little room."""
        wide, high = self.view.width(), self.view.height()
        for moment, size in (("narrow", (wide // 2, high)), ("low", (wide, high // 2))):
            self.view.resize(*size)
            self.look(moment)
            self.places()
        self.view.resize(wide, high)
        self.back()

    def light(self) -> None:
        """In the light theme: the colours of the dark one that stayed are told by their numbers."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        apply_theme(app, LIGHT)
        self.look("light")
        apply_theme(app, DARK)
        self.back()
        assert_repainted(self.view, "dark again")

    def back(self, seen: list[str] | None = None) -> None:
        """Where it began, which shows what was `seen` there: what of it does not come back is told of the next moment.
        None: whatever it shows then is where the next moment begins."""
        self.models.selection.update(**structs.asdict(self.start))
        self._wait_until_idle()
        self._seen = shown(self.view) if seen is None else seen

    def _wait_until_idle(self) -> None:
        for _ in range(2):
            QApplication.processEvents()
            self._answer()
        QApplication.processEvents()


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_shows_what_was_approved(qtbot: QtBot, name: str) -> None:
    models = rich_models()
    witness = witness_of(qtbot, PANELS[name], models, lambda: feed(models))
    witness.look("now")
    witness.places()
    witness.select(MOMENTS)
    witness.choose()
    witness.act()
    witness.shrink()
    witness.light()
    witness.focus()
    status = models.status.now
    assert status is not None
    models.status.set(replace(status, running=True))
    witness.look("while it runs")
    one_more_step(models)
    witness.look("one more step while it runs")
    models.status.set(status)
    witness.look("at rest again")
    models.edits.take(replace(edit_measured(), kl=2.5))
    witness.look("an edit is measured once more")
    models.history.rename(6, "a later name")
    witness.look("a branch has a name")
    models.bookmarks.put(Bookmark(OnToken(10, 0, 12), "a later one"))
    witness.look("one more bookmark")
    begin_anew(models)
    witness.look("begun anew")
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


@pytest.mark.parametrize("name", MEASURED)
def test_a_measurement_is_shown_as_approved(qtbot: QtBot, name: str) -> None:
    models = measured_models()
    witness = witness_of(qtbot, MEASURED[name], models, lambda: feed(models))
    witness.look("answered")
    witness.places()
    witness.choose()
    witness.select(OTHERS)
    witness.act()
    witness.shrink()
    witness.light()
    witness.focus()
    status = models.status.now
    assert status is not None
    models.status.set(replace(status, running=True))
    one_more_step(models)
    witness.look("one more step while it runs")
    models.status.set(status)
    witness.look("at rest again")
    measurement = getattr(models.measurements, {"evicted": "regret"}.get(name, name))
    measurement.ask(replace(measurement.question, id=70), 10)
    measurement.follow(Work("measuring", 3, 8, reply_to=70))
    witness.look("asked again")
    measurement.refuse(Failed("It cannot be: choose another.", can_rebuild=True, reply_to=70))
    witness.look("refused")
    measurement.outdate()
    witness.look("out of date")
    begin_anew(models)
    measurement.forget()
    witness.look("begun anew")
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


@pytest.mark.parametrize("name", IN_PAGES)
def test_pages_are_shown_as_approved(qtbot: QtBot, name: str) -> None:
    run = PagedRun()
    witness = witness_of(qtbot, IN_PAGES[name], run.models, run.feed)
    witness.look("now")
    witness.places()
    witness.select(SEQUENCES)
    witness.choose()
    witness.act()
    witness.shrink()
    witness.light()
    witness.focus()
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


@pytest.mark.parametrize("name", BOTH)
def test_a_comparison_is_shown_as_approved(qtbot: QtBot, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.panels.compare.maps.BLINK_MS", 3_600_000)  # sides take turns when the test says so
    models = compared_models()
    witness = witness_of(qtbot, BOTH[name], models, lambda: feed_compared(models))
    witness.look("now")
    witness.places()
    witness.select(OTHERS | {"V": {"tensor": "values"}, "no token, no channel": {"position": None, "channel": None}})
    witness.choose()
    for _, display, _ in DISPLAYS[1:] if name == "compare" else ():
        witness.view.displays.choose(display)
        witness.look(display)
        witness.view.flip()
        witness.look(f"{display}, flipped")
    witness.act()
    witness.shrink()
    witness.light()
    witness.focus()
    status = models.status.now
    assert status is not None
    for running, count in ((True, 40), (True, 1), (False, 1)):
        models.status.set(replace(status, running=running))
        for _ in range(count):
            models.comparison.append(next_compared(models))
        models.timeline.announce(again=True)
        witness.look(f"{count} more while it {'runs' if running else 'rests'}")
    models.comparison.append(replace(next_compared(models), parting=TokenDivergence(5, (" one", " other"))))
    witness.look("fed other tokens")
    models.comparison.append(models.comparison.steps[3])
    witness.look("back to the fourth step")
    models.comparison.start(COMPARED, models.comparison.steps[2:], is_new=False)
    models.selection.update(step=0)
    witness.look("a step before those that were compared")
    models.selection.update(step=None)
    models.comparison.ask(COMPARED.against)
    witness.look("asked again")
    models.comparison.refuse("It cannot be: choose another.")
    witness.look("refused")
    models.comparison.scan(11, None)
    models.comparison.refuse_pictures("They have no rows in common.")
    witness.look("nothing in common")
    models.comparison.end("The other run ended.")
    witness.look("ended")
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


def test_a_prompt_that_is_written_is_shown_as_approved(qtbot: QtBot) -> None:
    models = rich_models()
    witness = witness_of(qtbot, PANELS["prompt"], models, lambda: None)
    panel = witness.view
    assert isinstance(panel, PromptPanel)
    for text, ids in (("one two", (5, 6)), ("one two\nthree", tuple(range(3000))), ("x" * 120_000, (7,))):
        panel.edit.set_text(text)
        witness.look(f"{text[:8]!r}, not counted")
        panel.set_tokens(ids)
        witness.look(f"{len(ids)} tokens")
    panel.refuse("It has no tokens.")
    witness.look("refused")
    panel.choose("ids")
    for text in ("5 6 7", "5 six 7", "[5, 99999999]", "random tokens: 12"):
        panel.edit.set_text(text)
        witness.look(f"ids {text}")
    panel.choose("chat")
    rows = panel.chat.turns.rows
    rows[0].edit.set_text("a question")
    panel.chat.turns.begin_with(Turn("system", "be kind"))
    panel.chat.turns.add(Turn("assistant", "an answer\nof two lines"))
    witness.look("three turns")
    model = models.status.model
    assert model is not None
    status = models.status.now
    assert status is not None
    models.status.set(replace(status, model=replace(model, special_ids=(1, 9))))
    texts = ("<s>", "be kind", "\n", "a question", "<e>", "an <b>answer")
    reuse = ContinuedFrom(0, 11, 3, 3, (4, "a question"), (7, "another"), 2, "{{ turn }}")
    for told in (
        Previewed((1, 2, 3, 4, 9, 6), texts), Previewed((1, 2, 3, 4, 9, 6), texts, note="A note.", reuse=reuse),
        Previewed((1, 2, 3, 4, 9, 6), texts, reuse=reuse),
    ):  # fmt: skip
        panel.set_preview(told)
        panel.set_tokens(told.token_ids)
        witness.look("rendered")
        witness.lines += _formats(panel.chat.rendered)
    approve(APPROVED / "prompt_written.txt", witness.lines[1:])


def _formats(text: QPlainTextEdit) -> Iterator[str]:
    """How runs of characters are marked."""
    block = text.document().begin()
    while block.isValid():
        for run in block.layout().formats():
            style, part = run.format, block.text()[run.start : run.start + run.length]
            colors = [
                role_of(brush.color().name())
                for brush in (style.foreground(), style.background())
                if brush.style() != Qt.BrushStyle.NoBrush
            ]
            yield f"  {part!r} {' on '.join(colors)} underlined {style.underlineStyle().name}"
        block = block.next()
    for one in text.extraSelections():
        part, style = one.cursor.selectedText(), one.format
        roles = [role_of(style.foreground().color().name()), role_of(style.background().color().name())]
        yield f"  {part!r} {' on '.join(roles)} underlined {style.underlineStyle().name}"


@pytest.mark.parametrize("name", [*PANELS, *MEASURED, "pages", "compare", "compared_steps"])
def test_a_panel_says_why_it_is_empty_as_approved(qtbot: QtBot, name: str) -> None:
    models = Models()
    panel = next(runs[name] for runs in (PANELS, MEASURED, IN_PAGES, BOTH) if name in runs)
    witness = witness_of(qtbot, panel, models, lambda: None)
    witness.look("no model")
    models.status.set(samples.status())
    witness.look("no step")
    models.timeline.append(models.history.take([samples.step_record(0)]))
    models.status.set(samples.status(0, num_tokens=samples.PROMPT))
    witness.look("one step, and nothing else is known")
    approve(APPROVED / "empty" / f"{name}.txt", witness.lines[1:])


def one_more_step(models: Models) -> None:
    """Behind the last of the rich run, on its live branch."""
    models.timeline.append(models.history.take([record(12, 8, 10)]))
    models.timeline.announce()


def begin_anew(models: Models) -> None:
    """As when another run begins: nothing of this one stays."""
    models.history.clear()
    models.bookmarks.set_all(())
    models.timeline.clear()
    models.slices.clear()
    models.viewport.show_all()
    models.selection.update(step=None, position=None)


def witness_of(qtbot: QtBot, panel: PanelOfSize, models: Models, answer: Callable[[], None]) -> Witness:
    build, size = panel
    view = build(models)
    qtbot.addWidget(view)
    view.resize(*size)
    return Witness(view, models, answer)
