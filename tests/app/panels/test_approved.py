"""Every panel in a run in which everything differs, moment by moment: all that it shows, as a file that was read and
approved (`approved/PANEL.txt`); of every later moment the lines that came and went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPlainTextEdit
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.compare.view import DISPLAYS
from app.panels.prompt.view import PromptPanel
from engine.spec.bookmark import Bookmark, OnToken
from engine.spec.sampling import Turn
from engine.wire.comparison import TokenDivergence
from engine.wire.events import Failed, Previewed, Tokenized
from engine.wire.pages import ContinuedFrom
from engine.wire.status import Work
from tests.app import samples
from tests.app.painted import role_of
from tests.app.panels.shown_panels import BOTH, IN_PAGES, MEASURED, PANELS
from tests.app.panels.witness import APPROVED, witness_of
from tests.app.rich import edit_measured, give_pictures, record, rich_models
from tests.app.rich_answers import measured_models
from tests.app.rich_compared import COMPARED, compared_models, give_compared, next_compared
from tests.app.rich_pages import PagedRun
from tests.approve import approve

pytestmark = pytest.mark.usefixtures("dark_theme")

MOMENTS: dict[str, dict[str, Any]] = {
    "another layer and head": {"layer": 1, "kv_head": 2},
    "an evicted token": {"position": 5},
    "the first step of the other branch": {"step": 4},
    "step 8": {"step": 8},
    "the other sequence": {"seq_id": 1, "position": 11},
    "V": {"lens": "values"},
    "what changed": {"change": True},
    "no token, a channel": {"position": None, "channel": 3},
    "a sequence that is not there": {"seq_id": 7, "position": None},
}


OTHERS: dict[str, dict[str, Any]] = {
    "another layer and head": {"layer": 1, "kv_head": 2},
    "an evicted token": {"position": 5},
    "step 8": {"step": 8},
    "the other sequence": {"seq_id": 1, "position": 11},
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


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_shows_what_was_approved(qtbot: QtBot, name: str) -> None:
    models = rich_models()
    witness = witness_of(qtbot, PANELS[name], models, lambda: give_pictures(models))
    witness.look("now")
    witness.select(MOMENTS)
    witness.choose()
    witness.exercise()
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
    witness = witness_of(qtbot, MEASURED[name], models, lambda: give_pictures(models))
    witness.look("answered")
    witness.choose()
    witness.select(OTHERS)
    witness.exercise()
    status = models.status.now
    assert status is not None
    models.status.set(replace(status, running=True))
    one_more_step(models)
    witness.look("one more step while it runs")
    models.status.set(status)
    witness.look("at rest again")
    measurement = getattr(models.measurements, {"evicted": "regret"}.get(name, name))
    measurement.ask(replace(measurement.question, id=70), 10)
    models.status.set(replace(status, work=Work("measuring", 3, 8, reply_to=70)))
    witness.look("asked again")
    models.status.set(status)
    measurement.refuse(Failed("It cannot be: choose another.", reply_to=70))
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
    witness = witness_of(qtbot, IN_PAGES[name], run.models, run.give_pictures)
    witness.look("now")
    witness.select(SEQUENCES)
    witness.choose()
    witness.exercise()
    approve(APPROVED / f"{name}.txt", witness.lines[1:])


@pytest.mark.parametrize("name", BOTH)
def test_a_comparison_is_shown_as_approved(qtbot: QtBot, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.panels.compare.view.BLINK_MS", 3_600_000)  # sides take turns when the test says so
    models = compared_models()
    witness = witness_of(qtbot, BOTH[name], models, lambda: give_compared(models))
    witness.look("now")
    witness.select(OTHERS | {"V": {"lens": "values"}, "no token, no channel": {"position": None, "channel": None}})
    witness.choose()
    for _, display, _ in DISPLAYS[1:] if name == "compare" else ():
        witness.view.displays.choose(display)
        witness.look(display)
        witness.view.flip()
        witness.look(f"{display}, flipped")
    witness.exercise()
    status = models.status.now
    assert status is not None
    for running, count in ((True, 40), (True, 1), (False, 1)):
        models.status.set(replace(status, running=running))
        for _ in range(count):
            models.comparison.append(next_compared(models))
        models.timeline.announce(again=True)
        witness.look(f"{count} more while it {'runs' if running else 'rests'}")
    models.comparison.append(replace(next_compared(models), divergence=TokenDivergence(5, (" one", " other"))))
    witness.look("given other tokens")
    models.comparison.append(models.comparison.steps[3])
    witness.look("back to the fourth step")
    models.comparison.start(replace(COMPARED, steps=models.comparison.steps[2:]), is_new=False)
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
        panel.take_tokens(Tokenized(ids, ("",) * len(ids)))
        witness.look(f"{len(ids)} tokens")
    panel.refuse(Failed("It has no tokens."))
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
    model = models.status.now.model
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
        panel.take_tokens(told)
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
    models.timeline.append([samples.step_record(0)])
    models.status.set(samples.status(0, num_tokens=samples.PROMPT))
    witness.look("one step, and nothing else is known")
    approve(APPROVED / "empty" / f"{name}.txt", witness.lines[1:])


def one_more_step(models: Models) -> None:
    """Append a step to the live branch of the rich run."""
    models.timeline.append([record(12, 8, 10)])
    models.timeline.announce()


def begin_anew(models: Models) -> None:
    """Clear the models as when another run begins."""
    models.history.clear()
    models.bookmarks.set_all(())
    models.timeline.clear()
    models.pictures.clear()
    models.viewport.show_all()
    models.selection.update(step=None, position=None)
