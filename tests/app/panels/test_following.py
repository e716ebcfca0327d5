"""Every panel follows the selection: one line for each change, with all panels that must look different."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF
from PySide6.QtGui import QImage

from app.draw.format import brief
from app.shell import Shell
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

PICTURES = ("wall", "head", "attention")
OF_A_STEP = ("tokens", *PICTURES, "next_token", "timings", "bytes", "inspector")
EVERYTHING = {*OF_A_STEP, "prompt"}

# Changes of the selection, and the panels that must look different; all others must stay the same.
MOVES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "another step": ({"step": 9}, OF_A_STEP),
    "another token": ({"position": 6}, ("tokens", *PICTURES, "inspector")),
    "no token": ({"position": None}, ("tokens", *PICTURES, "inspector")),
    "another layer": ({"layer": 4}, (*PICTURES, "inspector")),
    "another head": ({"kv_head": 2}, (*PICTURES, "inspector")),
    "another lens": ({"lens": "values"}, ("wall", "head")),
    "only the change": ({"change": True}, ("wall",)),
    "a channel": ({"channel": 5}, ("head",)),
}


@pytest.fixture
def shown(running: Shell) -> Shell:
    """A window with room for every panel; a token, a layer and a head are selected, none of them the first."""
    running.window.resize(1800, 1300)
    running.models.selection.update(position=13, layer=2, kv_head=1)
    running.window.timeline.setFocus()  # the editor's cursor blinks
    turn(running)
    return running


def pictures(shell: Shell) -> dict[str, QImage]:
    found = {name: panel.frame.grab().toImage() for name, panel in shell.window.panels.items() if panel.isVisible()}
    return {name: found[name] for name in EVERYTHING}


def test_every_panel_follows_the_selection_and_back_without_a_trace(shown: Shell) -> None:
    now, before = shown.models.selection.now, pictures(shown)
    for move, (change, concerned) in MOVES.items():
        shown.models.selection.update(**change)
        turn(shown)
        after = pictures(shown)
        assert {name for name in EVERYTHING if before[name] != after[name]} == set(concerned), move
        shown.models.selection.update(**{name: getattr(now, name) for name in change})
        turn(shown)
        after = pictures(shown)
        assert {name for name in EVERYTHING if before[name] != after[name]} == set(), f"{move}, taken back"


@pytest.mark.parametrize("move", ["another step", "another layer", "another head", "another lens"])
def test_until_the_answer_comes_a_picture_says_that_it_is_of_another_place(
    shown: Shell, engine: FakeEngine, move: str
) -> None:
    """A head of the place before under the name of this one would be a lie."""
    change, _ = MOVES[move]
    engine.is_silent = True
    title = shown.window.head.accessibleName()
    shown.models.selection.update(**change)
    turn(shown)
    assert shown.window.head.accessibleName() == title
    assert shown.window.head.provenance_label.kind == "past"


def test_a_click_in_a_pinned_row_leads_to_its_own_layer(shown: Shell) -> None:
    row = shown.window.attention
    row.pin_button.click()
    shown.models.selection.update(layer=4, kv_head=3)
    turn(shown)
    row.pick(QPointF(5.5, 2.5))
    now = shown.models.selection.now
    assert (now.layer, now.kv_head, now.position) == (2, 2 // (samples.HEADS // samples.KV_HEADS), 5)


@pytest.mark.parametrize("step", [3, 12, None])
def test_the_ledger_is_that_of_the_step_that_is_looked_at(shown: Shell, step: int | None) -> None:
    shown.models.selection.update(step=step)
    turn(shown)
    record = shown.models.timeline.at(step)
    assert record is not None
    lines = {line.label: line.text for line in shown.window.bytes.state.lines}
    assert lines["stored in tensors"] == f"{record.num_bytes.stored:,}"


def test_the_inspector_tells_each_tensors_extremes_and_the_slot_at_their_labels(shown: Shell) -> None:
    row = shown.models.pictures.row
    assert row is not None
    told = {fact.label: fact.text for fact in shown.window.inspector.state.facts}
    for name, rows in (("K", row.keys[2][1]), ("V", row.values[2][1])):
        assert told[f"{name}[2, 1, 13]"] == f"{brief(float(rows.min()))} … {brief(float(rows.max()))}"
    assert told["K[2, 1, 13]"] != told["V[2, 1, 13]"]
    assert told["position · id"] == "13 · 113"


def test_the_next_token_is_told_on_the_scale_that_is_chosen(shown: Shell) -> None:
    record = samples.step_record(21)
    (part,) = record.sequences
    candidates = tuple(replace(one, sampled_prob=one.prob**2) for one in part.candidates)
    shown.models.timeline.append([replace(record, sequences=(replace(part, candidates=candidates),))])
    shown.models.timeline.announce()
    view = shown.window.next_token
    for choice in ("raw", "sampled", "raw"):
        view.choose(choice)
        wanted = [one.prob if choice == "raw" else one.sampled_prob for one in candidates]
        assert [row.bars[0].share for row in view.state.rows] == pytest.approx(wanted)
