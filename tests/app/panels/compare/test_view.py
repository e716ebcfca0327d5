"""The panel that compares: what it asks for, every number at its place, and nothing that it was not told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF
from PySide6.QtGui import QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog

from app.draw.colormap import signed_index
from app.draw.format import brief
from app.panels.compare.draw import matrix_of
from app.panels.compare.maps import CompareMaps, Shown
from app.panels.compare.opponents import FILE, STEP, cache_choice
from app.panels.compare.view import BLINK, BUTTON, OVERLAY, SWAP
from app.panels.compare.words import INVITATION
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_named
from engine.wire.commands import Cancel, EndDuel, StartDuel
from engine.wire.duel import Departure, DuelEnded, DuelScanned
from engine.wire.events import Failed, StateChanged
from engine.wire.opponents import OtherFile, OtherRun, OtherStep
from engine.wire.requests import WallRequest
from engine.wire.status import Work
from tests.app import samples
from tests.app.conftest import turn
from tests.app.panels.compare.desk import CompareDesk, field, pooled

DEPARTURE = Departure(3, 1, "values", 2, 5, 1.0625, 1.5, 0.4, 1e-4)


def against(desk: CompareDesk) -> object:
    found = desk.engine.of(StartDuel)[-1]
    assert isinstance(found, StartDuel)
    return found.against


# ---- what is compared --------------------------------------------------------------------------------------------


def test_a_run_is_compared_with_the_chosen_mode_until_a_person_ends_it(desk: CompareDesk) -> None:
    assert desk.view.empty_text == INVITATION
    assert desk.view.button.text() == BUTTON
    desk.view.opponents.choose(cache_choice("int8"))
    desk.view.button.click()
    assert against(desk) == OtherRun(cache_named("int8"))
    turn(desk.shell)
    assert desk.view.button.text() == "Stop"
    work = Work("The other run reads the same tokens", 6, 24)
    desk.tell(StateChanged(replace(desk.engine.status, work=work)))
    assert desk.view.button.text() == "Stop  6/24"
    assert "reads the same tokens" in desk.view.button.toolTip()
    desk.tell(replace(samples.duel_started(), reply_to=desk.engine.id_of(StartDuel)))
    assert desk.view.button.text() == BUTTON
    assert desk.view.end_button.isVisible()
    desk.view.end_button.click()
    assert desk.engine.of(EndDuel)
    desk.tell(DuelEnded())
    assert desk.view.empty_text == INVITATION
    assert not desk.view.end_button.isVisible()


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
    assert "Look at an earlier step first" in desk.view.button.toolTip()
    desk.models.selection.update(step=7)
    assert desk.view.button.isEnabled()
    desk.view.button.click()
    assert against(desk) == OtherStep(7)


def test_another_dtype_loads_the_same_model_in_it(desk: CompareDesk) -> None:
    desk.view.opponents.choose("dtype float32")
    assert not desk.view.button.isEnabled()
    assert "in float32 already" in desk.view.button.toolTip()
    desk.view.opponents.choose("dtype bfloat16")
    desk.view.button.click()
    assert against(desk) == OtherRun(desk.models.status.cache, ModelSpec("bundled", "bfloat16"))


def test_a_snapshot_is_asked_for_and_a_refusal_said(desk: CompareDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("", ""), ("/some/cache.safetensors", "")]
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: answers.pop(0))
    desk.view.opponents.choose(FILE)
    desk.view.button.click()
    assert not desk.engine.of(StartDuel)
    desk.view.button.click()
    assert against(desk) == OtherFile(Path("/some/cache.safetensors"))
    desk.tell(Failed("That file holds other tokens: choose another.", reply_to=desk.engine.id_of(StartDuel)))
    assert desk.view.empty_text == "That file holds other tokens: choose another."


def test_a_refusal_leaves_the_comparison_that_stands(compared: CompareDesk) -> None:
    compared.view.button.click()
    compared.tell(Failed("The pool is full: give it more room.", reply_to=compared.engine.id_of(StartDuel)))
    assert compared.view.place.words == "The pool is full: give it more room."
    assert not compared.view.place.isEnabled()
    assert "KIVI-2" in compared.view.sides.text()


# ---- words -------------------------------------------------------------------------------------------------------


def test_both_sides_are_named(compared: CompareDesk) -> None:
    words = "A: sequence 0 · Growing · float32     B: the same tokens in KIVI-2 · float32"
    assert compared.view.sides.text() == words
    assert "rounding may change a logit by 0.001" in compared.view.sides.toolTip()


def test_sides_of_two_dtypes_are_told_apart_above_their_pictures(desk: CompareDesk) -> None:
    started = samples.duel_started(21)
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
        (3, True, "Departs as asked (lossy): 3 of 4 steps beyond rounding", "warning"),
        (1, False, "Departs: 1 of 4 steps beyond rounding", "bad"),
    ],
)
def test_the_verdict_knows_what_was_asked_for(
    desk: CompareDesk, num_beyond: int, is_lossy: bool, words: str, role: str
) -> None:
    started = samples.duel_started(4)
    steps = tuple(replace(step, is_beyond_rounding=number < num_beyond) for number, step in enumerate(started.steps))
    desk.start(replace(started, steps=steps, b=replace(started.b, is_lossy=is_lossy)))
    assert desk.view.verdict.text() == words
    assert desk.view.verdict.property("textRole") == role


def test_steps_of_which_nothing_is_compared_are_not_within_rounding(desk: CompareDesk) -> None:
    started = samples.duel_started(4)
    desk.start(replace(started, steps=tuple(replace(step, is_beyond_rounding=None) for step in started.steps)))
    assert desk.view.verdict.text().startswith("Nothing is compared yet")
    assert desk.view.verdict.property("textRole") == "muted"


def test_without_steps_in_common_the_rows_alone_are_judged(desk: CompareDesk) -> None:
    desk.start(replace(samples.duel_started(), steps=()))
    assert desk.view.verdict.text().startswith("Nothing is compared yet")
    desk.tell(DuelScanned(24, None))
    assert desk.view.verdict.text() == "Within rounding so far: the rows of 24 tokens"
    desk.tell(DuelScanned(24, DEPARTURE))
    assert desk.view.verdict.text() == "Departs as asked (lossy): rows beyond rounding"


def test_the_first_departure_is_told_in_full_and_leads_there(compared: CompareDesk) -> None:
    assert compared.view.place.words == "All rows are compared when the run rests"
    assert not compared.view.place.isEnabled()
    compared.tell(DuelScanned(24, DEPARTURE))
    assert compared.view.place.words == (
        "First row beyond rounding: layer 1, V, kv head 2, token 3 “·time”, channel 5: 1.0625 against 1.5  →"
    )
    compared.view.place.click()
    now = compared.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.tensor, now.channel) == (1, 2, 3, "values", 5)
    compared.tell(DuelScanned(24, None))
    assert "same within rounding: 24 tokens" in compared.view.place.words
    assert not compared.view.place.isEnabled()


def test_where_rows_cannot_be_compared_logits_alone_are_shown(desk: CompareDesk) -> None:
    why = "The two models have other layers or heads: their logits are compared, their K and V cannot be."
    desk.start(replace(samples.duel_started(21), no_rows=why))
    assert desk.view.why.text() == why
    assert desk.view.why.isVisible()
    assert not desk.view.maps.isVisible()
    assert not desk.asked()
    assert desk.models.viewport.now.compared is None
    assert desk.steps.numbers.text().endswith("logits alone")


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_the_exact_numbers_of_both_sides_stand_under_the_cursor(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.maps.maps["b"]._hover_at(QPointF(6.5, 3.5))
    cell = 6 * samples.HEAD_DIM + 3  # of `[tokens, channels]`
    a, b = cell / 8, cell / 8 + 0.25
    where = f"layer 0 · head 0 · channel 3 · token 6 {samples.word(6).replace(' ', '·')}"
    assert compared.view.readout.text() == f"A {a}   B {b}   A − B -0.25   {where}"
    assert compared.view.maps.maps["difference"].hover == QPointF(6.5, 3.5)
    compared.view.maps.maps["b"]._hover_at(None)
    assert compared.view.maps.maps["a"].hover is None
    assert not compared.view.readout.isEnabled()


def test_each_number_has_tokens_of_its_own_where_sides_pool_differently(compared: CompareDesk) -> None:
    sides = pooled(-1, 1, 0, 24, 6), pooled(-2, 2, 17, 24, 3), pooled(0.5, 0.5, 17, 24, 1)
    text = compared.view._reading(Shown(*sides, True, None, None).on_same_positions(), QPointF(18.5, 0.5))
    numbers = "A -1.0 … 1.0 (18…23)   B -2.0 … 2.0 (17…19)   A − B 0.5 (18)"
    assert text == f"{numbers}   layer 0 · head 0 · channel 0 · (tokens)"
    same = Shown(sides[0], sides[0], sides[0], True, None, None).on_same_positions()
    assert compared.view._reading(same, QPointF(18.5, 0.5)).endswith("channel 0 · tokens 18…23, extremes")


def test_the_selected_cell_is_told_where_the_cursor_is_elsewhere(compared: CompareDesk) -> None:
    compared.show("head")
    compared.models.selection.update(position=4, channel=2)
    assert compared.view.readout.text().startswith(f"A {(4 * samples.HEAD_DIM + 2) / 8}   B ")


def test_a_click_on_the_wall_selects_layer_head_and_token(compared: CompareDesk) -> None:
    shown = compared.view._shown
    assert shown is not None
    row = shown.a.row_of(2, 3, None)
    assert row is not None
    compared.view.maps.picked.emit(QPointF(9.5, row + 0.5))
    now = compared.models.selection.now
    assert (now.layer, now.kv_head, now.position) == (2, 3, 9)


def test_a_click_on_attention_selects_the_kv_head_that_is_read(compared: CompareDesk) -> None:
    compared.show("attention")
    compared.view.maps.picked.emit(QPointF(2.5, 5.5))
    now = compared.models.selection.now
    assert (now.kv_head, now.position, now.channel) == (2, 2, None)
    assert compared.view.readout.text().startswith("A ")
    assert "query head" in compared.view.readout.text()


def test_both_sides_share_their_colours_and_the_difference_has_its_own(compared: CompareDesk) -> None:
    compared.show("head")
    captions = {name: label.text() for name, label in compared.view.maps.captions.items()}
    assert captions["a"].split(" · ")[-1] == captions["b"].split(" · ")[-1] != captions["difference"].split(" · ")[-1]
    assert captions["difference"] == "A − B · colours ±0.25"
    shown = compared.view._shown
    assert shown is not None
    (limit,) = {float(limit) for limit in shown.limits}
    assert captions["a"].endswith(f"colours ±{brief(limit)}")
    values = field((24, samples.HEAD_DIM), "b")
    np.testing.assert_array_equal(compared.view.maps.maps["b"].image.image, signed_index(values.T / limit, 1.0))


def test_a_wall_has_a_range_of_colours_for_each_layer(qapp: QApplication) -> None:
    """Layer 1 holds a hundredth of what layer 0 does: both are as strong, in A, in B and in the difference."""
    piece = samples.wall_slice(WallRequest(0, 20, 20, "keys", False, 10, 8))
    size = np.where(np.arange(len(piece.low)) == 0, 10, 0.1).astype(np.float32)[:, None, None, None]
    full = np.broadcast_to(size, piece.low.shape)
    a, b, difference = (matrix_of(replace(piece, low=full * part, high=full * part)) for part in (0.5, 1.0, -0.5))
    maps = CompareMaps(str)
    maps.show_pictures(Shown(a, b, difference, True, None, None), "", "")
    first = np.array([place.layer == 0 for place in a.places])
    np.testing.assert_allclose(maps._shown.limits, np.where(first, 10, 0.1))  # type: ignore[union-attr]
    for side, entry in {"a": 191, "b": 254, "difference": 0}.items():
        image = maps.maps[side].image.image
        assert abs(image[first].astype(int) - entry).max() <= 1
        assert abs(image[~first].astype(int) - entry).max() <= 1
    assert maps.captions["a"].text() == "A · colours per layer, ±0.1 to ±10"
    assert maps.captions["difference"].text() == "A − B · colours per layer, ±0.05 to ±5"


def test_swap_shows_the_other_side_in_the_same_place(compared: CompareDesk) -> None:
    maps = compared.view.maps
    compared.view.displays.choose(SWAP)
    compared.answer()
    assert not maps.maps["b"].isVisible()
    assert maps.captions["a"].text().startswith("A · sequence 0")
    first = maps.maps["a"].image.image.copy()
    compared.shell.window.actions_["compare.flip"].trigger()
    assert maps.captions["a"].text().startswith("B · the same tokens in KIVI-2")
    assert (maps.maps["a"].image.image != first).any()
    compared.shell.window.actions_["compare.flip"].trigger()
    np.testing.assert_array_equal(maps.maps["a"].image.image, first)


def test_blink_lets_both_take_turns_while_they_are_seen(compared: CompareDesk) -> None:
    maps = compared.view.maps
    compared.view.displays.choose(BLINK)
    assert maps._blink.isActive()
    maps._blink.timeout.emit()
    assert maps.is_b
    maps._blink.timeout.emit()
    assert not maps.is_b
    compared.shell.window.arrange("learn")
    assert not maps._blink.isActive()


def test_overlay_is_the_mean_and_says_so(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.displays.choose(OVERLAY)
    compared.answer()
    maps, shown = compared.view.maps, compared.view._shown
    assert shown is not None
    assert maps.captions["a"].text().startswith("Mean of A and B")
    mean = field((24, samples.HEAD_DIM), "a") + 0.125
    np.testing.assert_array_equal(maps.maps["a"].image.image, signed_index(mean.T / shown.limits[:, None], 1.0))
    assert maps.maps["difference"].isVisible()


def test_overlay_of_pooled_cells_is_of_their_extremes_and_says_so(compared: CompareDesk) -> None:
    compared.view.displays.choose(OVERLAY)
    maps = compared.view.maps
    sides = pooled(-3, 3.5, 0, 12, 6), pooled(-3.5, 3, 0, 12, 6), pooled(0.5, 0.5, 0, 12, 6)
    maps.show_pictures(Shown(*sides, True, None, None), "", "")
    assert maps.captions["a"].text().startswith("Means of the extremes of A and B")
    assert (maps.maps["a"].image.image > 230).all()


def test_zoom_is_that_of_the_head_everywhere(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.maps.maps["difference"].zoom_to(10, 8)
    wanted = compared.models.viewport.now.head_range
    assert wanted is not None
    assert (wanted.low, wanted.high) == (6.5, 14.5)
    turn(compared.shell)
    assert {heatmap.visible_range for heatmap in compared.view.maps.maps.values()} == {(6.5, 14.5)}
    compared.view.reset_view()
    assert compared.models.viewport.now.head_range is None


def test_pictures_of_another_step_say_so(compared: CompareDesk) -> None:
    assert compared.view.provenance_text == "difference"
    compared.models.selection.update(step=5)
    assert "showing" in compared.view.provenance_text
    compared.answer()
    turn(compared.shell)
    compared.answer()
    assert compared.view.provenance_text == "difference"
    shown = compared.view._shown
    assert shown is not None
    assert shown.a.whole == (0, samples.PROMPT + 5)


def test_pictures_that_cannot_be_had_say_why_until_others_come(compared: CompareDesk) -> None:
    compared.view.choose("attention")
    turn(compared.shell, 2)
    last = compared.asked()[-1]
    compared.engine.emit(Failed("A snapshot keeps no attention: look at its rows.", reply_to=last.id))
    turn(compared.shell, 2)
    assert compared.view.why.text() == "A snapshot keeps no attention: look at its rows."
    assert compared.view.why.isVisible()
    assert compared.models.status.failure == ""
    compared.show("head")
    assert compared.view.maps.isVisible()


def test_hidden_pictures_are_not_asked_for(compared: CompareDesk) -> None:
    assert compared.models.viewport.now.compared is not None
    compared.shell.window.arrange("learn")
    assert compared.models.viewport.now.compared is None


def test_the_x_key_in_a_picture_swaps(compared: CompareDesk) -> None:
    heatmap = compared.view.maps.maps["a"]
    compared.shell.window.activateWindow()
    heatmap.setFocus()
    turn(compared.shell)
    QTest.keySequence(heatmap, QKeySequence("X"))
    assert compared.view.displays.currentData() == SWAP
    assert compared.view.maps.is_b
