"""Lossy modes in the real window with the real engine: prompt, steps, looking back, rewinding, and back to lossless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PySide6.QtCore import QPointF
from PySide6.QtWidgets import QComboBox, QSpinBox

from app.dialogs.cache import CacheDialog
from app.shell import Shell
from engine.errors import InputError
from engine.spec.cache import FAMILIES, PRESETS, CacheSpec, cache_preset, fitted, preset_of, tuned, value_of
from tests.app.driver import Driver

TEXT = "Once upon a time there was a little girl named Lily. She loved to play with her red ball in the park."
FEW = {"budget": 14, "sinks": 2}


@pytest.mark.parametrize(
    ("spec", "past"),
    [
        (tuned(cache_preset("h2o").spec, **FEW), "recorded"),
        (tuned(cache_preset("streamingllm").spec, sinks=2, window=12, rerotate=True), "recorded"),
        (tuned(cache_preset("kivi-2").spec, group=16, residual=16), "dequantised"),
        (cache_preset("int8").spec, "dequantised"),
        (cache_preset("transformers-quantized").spec, "as stored now"),
    ],
    ids=lambda value: preset_of(value).name if isinstance(value, CacheSpec) else "",
)
def test_a_lossy_mode_from_prompt_to_lossless(drive: Callable[..., Driver], spec: CacheSpec, past: str) -> None:
    driver = drive(spec)
    models, window = driver.models, driver.window
    driver.send(TEXT)
    driver.steps(2)
    models.selection.update(layer=2, kv_head=1, position=9)
    driver.wait_until_idle()
    then = models.pictures.wall
    assert then is not None
    assert then.provenance in window.wall.provenance_label.text
    driver.steps(3)

    driver.look_at(2)  # as it stood then, or a word that it is not
    again = models.pictures.wall
    assert again is not None
    assert again.provenance == past
    assert past in window.wall.provenance_label.text
    assert past in window.head.provenance_label.text
    if past != "as stored now":
        np.testing.assert_array_equal(again.low, then.low)
        if then.absent is not None and again.absent is not None:
            np.testing.assert_array_equal(again.absent, then.absent)
    assert not window.wall.canvas.marks.alarms  # a ghost is no NaN
    drops = not spec.retention.keeps_all
    assert (window.tokens.canvas.chips.holders is not None) == drops
    assert (window.head.map.matrix.gone is not None) == drops

    window.actions_["run.go_on"].trigger()
    driver.wait_until_idle(lambda: len(models.timeline) == 3)
    assert models.pictures.wall is not None
    assert models.pictures.wall.provenance == then.provenance
    np.testing.assert_array_equal(models.pictures.wall.low, then.low)

    driver.choose(CacheSpec())
    assert "stored" in models.status.notice
    assert "ms" in models.status.notice
    assert models.pictures.wall.absent is None
    assert models.pictures.wall.provenance == "live cache"
    assert window.tokens.canvas.chips.holders is None
    driver.look_at(1)
    assert models.pictures.wall.provenance == "as stored now"  # computed anew: that step read other rows


def test_ghosts_say_since_when_and_why(drive: Callable[..., Driver]) -> None:
    driver = drive(tuned(cache_preset("tova").spec, **FEW))
    models, window = driver.models, driver.window
    driver.send(TEXT)
    driver.steps(4)
    record = models.timeline.latest
    assert record is not None
    eviction = next(e for e in record.evictions if e.layer == 3)
    position = int(eviction.positions[0])
    models.selection.update(layer=3, kv_head=0, position=position)
    driver.wait_until_idle()
    window.head.map.hover_at(QPointF(position + 0.5, 4.5))
    text = window.head.readout.text()
    assert f"evicted at step {record.step}: least attended by the newest query" in text
    assert "<" in text
    facts = window.inspector.facts.text()
    assert f"evicted at step {record.step}" in facts
    assert "held by" in facts
    tip = window.tokens.canvas.chips.words(models.timeline.tokens(0)[position])
    assert "of 24 heads" in tip
    assert "of 6 layers" in tip
    # the newest query still looked at what went after it
    window.attention.map.hover_at(QPointF(position + 0.5, 0.5))
    assert "evicted" not in window.attention.readout.text()
    driver.steps(1)
    window.attention.map.hover_at(QPointF(position + 0.5, 0.5))
    assert f"evicted at step {record.step}" in window.attention.readout.text()


def test_the_strip_knows_who_holds_what_without_the_wall(drive: Callable[..., Driver]) -> None:
    driver = drive(tuned(cache_preset("knorm").spec, **FEW))
    driver.window.docks.docks["wall"].hide()
    driver.send(TEXT)
    driver.steps(1)
    holders = driver.window.tokens.canvas.chips.holders
    assert holders is not None
    assert holders.all_heads == 24
    assert int(holders.heads.sum()) == 24 * 14


def test_a_refused_mode_is_a_banner_and_nothing_changes(drive: Callable[..., Driver]) -> None:
    driver = drive(CacheSpec())
    driver.send(TEXT)
    before = driver.models.pictures.wall
    quanto = tuned(cache_preset("transformers-quantized").spec, backend="quanto", bits=4)
    driver.window.top.cache.choose(quanto)
    driver.until(lambda: driver.models.status.failure, may_fail=True)
    assert "not installed" in driver.models.status.failure
    assert driver.window.banner.isVisible()
    assert driver.shell.models.status.now.cache == CacheSpec()
    assert driver.window.top.cache.accessibleName().startswith("Cache: Growing")
    assert before is not None
    np.testing.assert_array_equal(driver.models.pictures.wall.low, before.low)  # type: ignore[union-attr]


# ---- what is offered ---------------------------------------------------------------------------------------------


def test_every_preset_is_offered_by_family(shell: Shell) -> None:
    assert all((preset.family == "lossless") == preset.lossless for preset in PRESETS.values())
    offered = {
        family: [action.data() for action in menu.actions() if action.data() in PRESETS]
        for family, menu in shell.window.top.cache.families.items()
    }
    assert offered == {
        family: [name for name, preset in PRESETS.items() if preset.family == family] for family, _ in FAMILIES
    }
    assert all(shell.window.actions_[f"cache.{name}"] is not None for name in PRESETS)


def test_every_parameter_of_every_preset_can_be_edited(shell: Shell) -> None:
    for name, preset in PRESETS.items():
        dialog = CacheDialog(preset.spec, None, shell.window)
        numbers = set() if dialog.codec is None else set(dialog.codec.numbers)
        assert set(preset.parameters) <= set(dialog.fields) | numbers, name
        assert (dialog.codec is None) == bool(preset.spec.row.takes_no), name
        chosen: list[CacheSpec] = []
        dialog.chosen.connect(chosen.append)
        assert dialog.spec() == preset.spec, name
        dialog.accept()
        assert chosen == [], name  # what was not touched is not filled again


def test_wrong_combinations_are_refused_in_the_engines_words(shell: Shell) -> None:
    dialog = CacheDialog(cache_preset("h2o").spec, None, shell.window)
    dialog.show()
    chosen: list[CacheSpec] = []
    dialog.chosen.connect(chosen.append)
    sinks, budget = dialog.fields["sinks"], dialog.fields["budget"]
    assert isinstance(sinks, QSpinBox)
    assert isinstance(budget, QSpinBox)
    sinks.setValue(300)
    dialog.accept()
    assert dialog.isVisible()
    assert "cannot hold 300 sinks" in dialog.problem.text()
    assert not chosen
    budget.setValue(400)
    dialog.accept()
    assert not dialog.isVisible()
    assert (chosen[0].retention.sinks, chosen[0].retention.budget) == (300, 400)


def test_a_ratio_takes_the_place_of_a_budget_and_nothing_is_a_value(shell: Shell) -> None:
    dialog = CacheDialog(tuned(cache_preset("h2o").spec, window=8), None, shell.window)
    chosen: list[CacheSpec] = []
    dialog.chosen.connect(chosen.append)
    dialog.fields["ratio"].setValue(0.25)  # type: ignore[union-attr]
    dialog.fields["window"].setValue(0)  # type: ignore[union-attr]
    dialog.accept()
    assert (chosen[0].retention.budget, chosen[0].retention.ratio, chosen[0].retention.window) == (None, 0.25, None)


def test_the_quantiser_is_chosen_by_name(shell: Shell) -> None:
    dialog = CacheDialog(cache_preset("transformers-quantized").spec, None, shell.window)
    box = dialog.fields["backend"]
    assert isinstance(box, QComboBox)
    assert [box.itemData(i) for i in range(box.count())] == ["fp8", "quanto", "hqq"]
    dialog.fields["bits"].setValue(4)  # type: ignore[union-attr]
    dialog.accept()
    assert "fp8 quantiser" in dialog.problem.text()
    box.setCurrentIndex(1)
    chosen: list[CacheSpec] = []
    dialog.chosen.connect(chosen.append)
    dialog.accept()
    assert (value_of(chosen[0], "backend"), value_of(chosen[0], "bits")) == ("quanto", 4)


def test_a_mode_can_be_made_so_small_that_it_is_felt() -> None:
    for name, preset in PRESETS.items():
        smaller = fitted(preset.spec, 60, 1 / 3)
        if smaller != preset.spec and preset.spec.layout != "static":
            assert not preset.lossless, name
            assert smaller.retention.num_kept(60) < 60 or (value_of(smaller, "residual") or 0) < 60
    with pytest.raises(InputError):
        tuned(cache_preset("h2o").spec, budget=None, ratio=None)


def test_exact_rows_beside_quantised_ones_are_called_exact(drive: Callable[..., Driver]) -> None:
    """KIVI keeps the latest rows as they were written."""
    driver = drive(tuned(cache_preset("kivi-2").spec, group=16, residual=16))
    models, window = driver.models, driver.window
    driver.send(TEXT)
    driver.steps(2)
    count = models.timeline.num_tokens(0)
    exact_from = count // 16 * 16
    assert 0 < exact_from < count - 1
    for layer, (position, words) in enumerate(((exact_from - 1, "dequantised"), (exact_from, "exact"))):
        models.selection.update(layer=layer, kv_head=0, position=position, channel=3)
        driver.wait_until_idle()
        for panel in (window.wall, window.head):
            assert panel.provenance_label.text.startswith("partly dequantised")
            assert panel.provenance_label.kind == "dequantised"
        window.head.map.hover_at(QPointF(position + 0.5, 3.5))
        assert window.head.readout.text().split("   ")[2] == words
        facts = window.inspector.facts.text()
        assert ("read as\tK dequantised · V exact" in facts) == (words == "dequantised")
    assert f"exact from token {exact_from} on" in window.wall.provenance_label.whole
    window.wall.choose("V")
    driver.wait_until_idle()
    assert f"exact from token {count - 16} on" in window.wall.provenance_label.whole
