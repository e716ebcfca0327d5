"""The Compare panel: what it asks for, and that it shows exactly the numbers of the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QFileDialog, QWidget

from app.kit.view import COMPARE
from app.panels.compare.view import BUTTON, FILE, INVITATION, MODEL, STEP, cache_choice
from engine.spec.cache import PRESETS, cache_named
from engine.spec.model import ModelSpec
from engine.wire.commands import Cancel, EndComparison, StartComparison
from engine.wire.comparison import ComparisonEnded, ComparisonScanned, FirstDifference, OtherFile, OtherRun, OtherStep
from engine.wire.events import Failed, StateChanged
from engine.wire.status import OpenedFile, Work
from tests.app import samples
from tests.app.conftest import turn
from tests.app.panels.compare.desk import CompareDesk

DEPARTURE = FirstDifference(3, 1, "values", 2, 5, 1.0625, 1.5, 0.4, 1e-4)


def against(desk: CompareDesk) -> object:
    found = desk.engine.of(StartComparison)[-1]
    assert isinstance(found, StartComparison)
    return found.against


# ---- what is compared --------------------------------------------------------------------------------------------


def test_a_run_is_compared_with_the_chosen_mode_until_a_person_ends_it(desk: CompareDesk) -> None:
    assert desk.view.empty_text == INVITATION
    assert desk.view.button.text() == BUTTON
    offered = desk.view.remedies[COMPARE]
    assert offered.isVisible()
    offered.click()
    assert desk.view.opponents.view().isVisible()
    desk.view.opponents.hidePopup()
    desk.view.opponents.choose(cache_choice("int8"))
    desk.view.button.click()
    assert not offered.isVisible()
    assert against(desk) == OtherRun(cache_named("int8"))
    turn(desk.shell)
    assert desk.view.button.text() == "Stop"
    work = Work("The other run reads the same tokens", 6, 24)
    desk.tell(StateChanged(replace(desk.engine.status, work=work)))
    assert desk.view.button.text() == "Stop  6/24"
    assert "reads the same tokens" in desk.view.button.toolTip()
    desk.tell(replace(samples.comparison_started(), reply_to=desk.engine.id_of(StartComparison)))
    assert desk.view.button.text() == BUTTON
    assert desk.view.end_button.isVisible()
    desk.view.end_button.click()
    assert desk.engine.of(EndComparison)
    desk.tell(ComparisonEnded())
    assert desk.view.empty_text == INVITATION
    assert not desk.view.end_button.isVisible()


def test_what_is_chosen_from_the_list_that_was_opened_for_it_is_compared_at_once(desk: CompareDesk) -> None:
    box = desk.view.opponents
    QTest.keyClick(box, Qt.Key.Key_Down)
    assert not desk.engine.of(StartComparison), "walking through the closed box compares nothing"
    desk.view.button.setFocus()
    desk.view.remedies[COMPARE].click()
    entries = box.view()
    entries.setCurrentIndex(box.model().index(box.findData(cache_choice("int8")), 0))
    QTest.keyClick(entries, Qt.Key.Key_Return)
    assert box.hasFocus(), "what was chosen can be changed with the arrows"
    assert against(desk) == OtherRun(cache_named("int8"))
    desk.tell(replace(samples.comparison_started(), reply_to=desk.engine.id_of(StartComparison)))
    QTest.keyClick(box, Qt.Key.Key_Down)
    assert len(desk.engine.of(StartComparison)) == 1


def test_a_start_that_takes_too_long_is_stopped(desk: CompareDesk) -> None:
    desk.view.button.click()
    turn(desk.shell)
    desk.view.button.click()
    assert desk.engine.of(Cancel)
    assert desk.models.comparison.asked is None
    assert desk.view.button.text() == BUTTON


def test_an_earlier_step_is_compared_with_once_it_is_looked_at(desk: CompareDesk) -> None:
    desk.view.opponents.choose(STEP)
    assert not desk.view.button.isEnabled()
    assert "View an earlier step first" in desk.view.button.toolTip()
    desk.models.selection.update(step=7)
    assert desk.view.button.isEnabled()
    desk.view.button.click()
    assert against(desk) == OtherStep(7)


def test_what_is_chosen_in_the_open_list_is_compared_at_once(desk: CompareDesk) -> None:
    """Not what arrow keys pass by while it is closed."""
    box = desk.view.opponents
    for opens in (False, True):
        if opens:
            box.showPopup()
            box.hidePopup()
        box.choose(cache_choice("int8"))
        box.activated.emit(box.currentIndex())
        assert len(desk.engine.of(StartComparison)) == opens
    assert against(desk) == OtherRun(PRESETS["int8"].spec)


def test_another_dtype_loads_the_same_model_in_it(desk: CompareDesk) -> None:
    desk.view.opponents.choose("dtype float32")
    assert not desk.view.button.isEnabled()
    assert "in float32 already" in desk.view.button.toolTip()
    desk.view.opponents.choose("dtype bfloat16")
    desk.view.button.click()
    assert against(desk) == OtherRun(desk.models.status.now.cache, ModelSpec("bundled", "bfloat16"))


def test_another_model_is_asked_for_and_runs_in_this_mode_and_dtype(
    desk: CompareDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["", "/some/model"]
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: answers.pop(0))
    desk.view.opponents.choose(MODEL)
    desk.view.button.click()
    assert not desk.engine.of(StartComparison)
    desk.view.button.click()
    assert against(desk) == OtherRun(desk.models.status.now.cache, ModelSpec("/some/model", "float32"))


def test_a_snapshot_is_asked_for_and_a_refusal_said(desk: CompareDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("", ""), ("/some/cache.safetensors", ""), ("", "")]
    began_in: list[str] = []

    def ask(_parent: QWidget, _title: str, start: str, _kinds: str) -> tuple[str, str]:
        began_in.append(start)
        return answers.pop(0)

    monkeypatch.setattr(QFileDialog, "getOpenFileName", ask)
    desk.models.status.folder = Path("/exports")
    desk.view.opponents.choose(FILE)
    desk.view.button.click()
    assert not desk.engine.of(StartComparison)
    desk.view.button.click()
    assert against(desk) == OtherFile(Path("/some/cache.safetensors"))
    desk.view.compare()
    assert began_in == ["/exports", "/exports", "/some"], "where a file was written or opened last"
    desk.tell(Failed("That file holds other tokens: choose another.", reply_to=desk.engine.id_of(StartComparison)))
    assert desk.view.empty_text == "That file holds other tokens: choose another."


def test_an_opened_file_is_compared_with_runs_of_its_model(desk: CompareDesk) -> None:
    """The model is loaded from where one of that fingerprint was loaded before. A file whose model is unknown can only
    be compared with another snapshot or with a folder."""
    status, view = desk.models.status.now, desk.view
    assert status is not None
    assert status.model is not None
    opened = OpenedFile(Path("/some/cache.safetensors"), 9, "other", 3, "", "", "", "")
    in_file = replace(status, opened=opened, model=replace(status.model, source=""))
    desk.tell(StateChanged(in_file))
    for choice, dtype in ((cache_choice("int8"), "float32"), ("dtype bfloat16", "bfloat16")):
        view.opponents.choose(choice)
        view.button.click()
        cache = cache_named("int8") if dtype == "float32" else status.cache
        assert against(desk) == OtherRun(cache, ModelSpec("bundled", dtype))
        desk.tell(Failed("Not now.", reply_to=desk.engine.id_of(StartComparison)))
    desk.tell(StateChanged(replace(in_file, model=replace(status.model, fingerprint="another"))))
    assert not view.button.isEnabled()
    assert "The model of this file is not known here" in view.button.toolTip()
    view.opponents.choose(FILE)
    assert view.button.isEnabled()
    view.opponents.choose(STEP)
    assert "the rows of one step" in view.button.toolTip()


def test_a_refusal_keeps_the_present_comparison(compared: CompareDesk) -> None:
    compared.view.button.click()
    compared.tell(Failed("The pool is full: give it more room.", reply_to=compared.engine.id_of(StartComparison)))
    assert compared.view.place.words == "The pool is full: give it more room."
    assert not compared.view.place.isEnabled()
    assert "KIVI-2" in compared.view.sides.text()


# ---- words -------------------------------------------------------------------------------------------------------


def test_a_step_before_those_that_were_compared_is_not_waited_for(desk: CompareDesk) -> None:
    """After a change of mode the steps before it are not compared, and no picture of them is asked for."""
    started = samples.comparison_started(21)
    desk.start(replace(started, steps=tuple(step for step in started.steps if step.step > 5)))
    desk.models.selection.update(step=2)
    turn(desk.shell, 2)
    chip = desk.view.provenance_label
    assert chip.text.endswith("step 2 was not compared")
    desk.start(replace(started, steps=tuple(step for step in started.steps if step.step > 5)))
    assert desk.view.why.isVisible()
    assert desk.view.why.text() == desk.steps.numbers.text()
    assert desk.view.why.text().startswith("This step was not compared")


def test_both_sides_are_named(compared: CompareDesk) -> None:
    words = "A: sequence 0 · Growing · float32     B: the same tokens in KIVI-2 · float32"
    assert compared.view.sides.text() == words
    assert "rounding may change a logit by 0.001" in compared.view.sides.toolTip()


def test_sides_of_two_dtypes_are_told_apart_above_their_pictures(desk: CompareDesk) -> None:
    started = samples.comparison_started(21)
    desk.start(replace(started, b=replace(started.b, dtype="bfloat16")))
    assert desk.view.maps.captions["a"].text().startswith("A · sequence 0 · float32 · colours per layer, ±")
    assert (
        desk.view.maps.captions["b"]
        .text()
        .startswith("B · the same tokens in KIVI-2 · bfloat16 · colours per layer, ±")
    )


@pytest.mark.parametrize(
    ("num_beyond", "is_lossy", "words", "role"),
    [
        (0, True, "Within rounding so far: 4 steps", "good"),
        (3, True, "Lossy, so it differs: 3 of 4 steps beyond rounding", "warning"),
        (1, False, "Departs: 1 of 4 steps beyond rounding", "bad"),
    ],
)
def test_the_verdict_knows_what_was_asked_for(
    desk: CompareDesk, num_beyond: int, is_lossy: bool, words: str, role: str
) -> None:
    started = samples.comparison_started(4)
    steps = tuple(replace(step, is_beyond_rounding=number < num_beyond) for number, step in enumerate(started.steps))
    desk.start(replace(started, steps=steps, b=replace(started.b, is_lossy=is_lossy)))
    assert desk.view.verdict.text() == words
    assert desk.view.verdict.property("textRole") == role


@pytest.mark.parametrize(
    ("edited_from", "is_lossy", "words", "role"),
    [
        (samples.PROMPT - 1, False, "Edited by hand: 2 of 4 steps beyond rounding", "warning"),
        (samples.PROMPT, False, "Departs: 2 of 4 steps beyond rounding", "bad"),  # the first of them came before
        (samples.PROMPT, True, "Edited by hand, and lossy: 2 of 4 steps beyond rounding", "warning"),
        (samples.PROMPT + 1, True, "Lossy, so it differs: 2 of 4 steps beyond rounding", "warning"),
    ],
)
def test_an_edit_by_hand_is_no_departure(
    desk: CompareDesk, edited_from: int, is_lossy: bool, words: str, role: str
) -> None:
    started = samples.comparison_started(4)
    steps = tuple(replace(step, is_beyond_rounding=number < 2) for number, step in enumerate(started.steps))
    a, b = replace(started.a, edited_from=edited_from), replace(started.b, is_lossy=is_lossy)
    desk.start(replace(started, steps=steps, a=a, b=b))
    assert desk.view.verdict.text() == words
    assert desk.view.verdict.property("textRole") == role


def test_steps_of_which_nothing_is_compared_are_not_within_rounding(desk: CompareDesk) -> None:
    started = samples.comparison_started(4)
    desk.start(replace(started, steps=tuple(replace(step, is_beyond_rounding=None) for step in started.steps)))
    assert desk.view.verdict.text().startswith("Nothing is compared yet")
    assert desk.view.verdict.property("textRole") == "muted"


def test_without_steps_in_common_the_rows_alone_are_judged(desk: CompareDesk) -> None:
    desk.start(replace(samples.comparison_started(), steps=()))
    assert desk.view.verdict.text().startswith("Nothing is compared yet")
    desk.tell(ComparisonScanned(24, None))
    assert desk.view.verdict.text() == "Within rounding so far: the rows of 24 tokens"
    desk.tell(ComparisonScanned(24, DEPARTURE))
    assert desk.view.verdict.text() == "Lossy, so it differs: rows beyond rounding"
    steps = tuple(replace(step, is_beyond_rounding=False) for step in samples.comparison_started().steps)
    desk.start(replace(samples.comparison_started(), steps=steps))
    desk.tell(ComparisonScanned(24, DEPARTURE))
    assert desk.view.verdict.text() == "Lossy, so it differs: rows beyond rounding", "no step is, of four"


def test_the_first_departure_is_described_in_full_and_a_click_selects_it(compared: CompareDesk) -> None:
    assert compared.view.place.words == "All rows are compared when the run rests"
    assert not compared.view.place.isEnabled()
    compared.tell(ComparisonScanned(24, DEPARTURE))
    assert compared.view.place.words == (
        "First row beyond rounding: layer 1, V, kv head 2, token 3 “·time”, channel 5: 1.0625 against 1.5  →"
    )
    compared.view.place.click()
    now = compared.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel) == (1, 2, 3, "values", 5)
    compared.tell(ComparisonScanned(24, None))
    assert "same within rounding: 24 tokens" in compared.view.place.words
    assert not compared.view.place.isEnabled()


def test_where_rows_cannot_be_compared_logits_alone_are_shown(desk: CompareDesk) -> None:
    why = "The two models have other layers or heads: their logits are compared, their K and V cannot be."
    desk.start(replace(samples.comparison_started(21), no_rows=why))
    assert desk.view.why.text() == why
    assert desk.view.why.isVisible()
    assert not desk.view.maps.isVisible()
    assert not desk.asked()
    assert desk.models.viewport.now.compared is None
    assert desk.steps.numbers.text().endswith("logits alone")
