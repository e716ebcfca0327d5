from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QApplication,
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSpinBox,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app.dialogs.cache import CacheDialog
from app.dialogs.calculator import Calculator
from app.dialogs.export import ExportDialog
from app.dialogs.help import AboutDialog
from app.dialogs.loading import HubDialog
from app.dialogs.questions import CheckpointLimitDialog, RunToDialog
from app.kit.dialog import Dialog
from app.kit.fields import inset
from app.kit.theme import DARK, apply_theme
from app.shell import Shell
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.codec import CodecSpec, Coding, uniform
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel, Run, SetCache, SetKeptLimit
from engine.wire.events import Restarted, StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

H2O = cache_preset("h2o").spec
OFFLOADED = replace(cache_preset("offloaded").spec, host_gib=1.23456789)


@pytest.fixture
def ready(shell: Shell, engine: FakeEngine) -> Shell:
    """A window with a prompt behind it, in a mode that has parameters."""
    engine.loaded()
    turn(shell)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.window.activateWindow()
    return shell


def open_dialogs() -> list[type]:
    """The kinds of the dialogs that are open."""
    QApplication.processEvents()
    return [type(w) for w in QApplication.topLevelWidgets() if isinstance(w, Dialog) and w.isVisible()]


def in_mode(shell: Shell, engine: FakeEngine, spec: CacheSpec) -> None:
    engine.status = replace(engine.status, cache=spec)
    engine.emit(StateChanged(engine.status))
    turn(shell)


def typed(qtbot: QtBot, text: str) -> None:
    """Type where the focus is, then Enter."""
    field = QApplication.focusWidget()
    qtbot.keyClicks(field, text)
    qtbot.keyClick(field, Qt.Key.Key_Return)
    QApplication.processEvents()


def test_the_number_of_steps_that_is_typed_is_run(ready: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    ready.window.actions_["run.to"].trigger()
    assert open_dialogs() == [RunToDialog]
    typed(qtbot, "400")
    assert engine.of(Run) == [Run(400)]
    assert open_dialogs() == []


def test_a_condition_of_two_runs_is_waited_for_only_beside_another_run(ready: Shell, engine: FakeEngine) -> None:
    ready.window.actions_["run.to"].trigger()
    dialog = next(one for one in QApplication.topLevelWidgets() if isinstance(one, RunToDialog) and one.isVisible())
    dialog.ways[2].setChecked(True)
    dialog.condition.setText("differs")
    dialog.accept()
    assert dialog.isVisible()
    assert dialog.problem.text()
    engine.emit(samples.comparison_started(2))
    turn(ready, 2)
    dialog.accept()
    assert engine.of(Run) == [Run(until="differs")]


def test_the_limit_of_kept_checkpoints_is_chosen_told_and_remembered(
    ready: Shell, engine: FakeEngine, qtbot: QtBot
) -> None:
    ready.window.actions_["run.kept"].trigger()
    assert open_dialogs() == [CheckpointLimitDialog]
    typed(qtbot, "256")
    assert engine.of(SetKeptLimit) == [SetKeptLimit(256 << 20)]
    assert ready.settings.kept_bytes == 256 << 20
    engine.emit(Restarted())
    turn(ready)
    assert engine.of(SetKeptLimit) == [SetKeptLimit(256 << 20)] * 2, "the next engine is told, too"


def test_a_budget_that_is_typed_is_the_budget(ready: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    in_mode(ready, engine, H2O)
    ready.window.actions_["cache.tune"].trigger()
    assert open_dialogs() == [CacheDialog]
    typed(qtbot, "24")
    assert engine.of(SetCache) == [SetCache(tuned(H2O, budget=24))]


def test_a_budget_and_a_ratio_take_each_other_back(host: QWidget) -> None:
    dialog = CacheDialog(H2O, None, host)
    dialog.fields["ratio"].setValue(0.5)
    assert dialog.fields["budget"].value() == 0
    assert dialog.answer() == tuned(H2O, ratio=0.5)
    dialog.fields["budget"].setValue(32)
    assert dialog.fields["ratio"].value() == 0
    assert dialog.answer() == tuned(H2O, budget=32)


def test_a_hub_name_that_is_typed_is_loaded(ready: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    ready.window.actions_["model.hub"].trigger()
    assert open_dialogs() == [HubDialog]
    typed(qtbot, "org/two")
    assert [command.model for command in engine.of(LoadModel)] == [ModelSpec("org/two")]


def test_parameters_that_stay_change_nothing(ready: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    for spec in (H2O, tuned(H2O, ratio=0.333), OFFLOADED, cache_preset("kivi-4").spec):
        in_mode(ready, engine, spec)
        ready.window.actions_["cache.tune"].trigger()
        assert open_dialogs() == [CacheDialog], spec
        typed(qtbot, "")
        assert open_dialogs() == [], spec
        assert engine.of(SetCache) == [], spec


MAKERS: dict[str, Callable[[Shell], Dialog]] = {
    "steps": lambda shell: RunToDialog(shell.models, shell.window),
    "hub": lambda shell: HubDialog(shell.window),
    "cache": lambda shell: CacheDialog(H2O, None, shell.window),
    "pool": lambda shell: CacheDialog(OFFLOADED, samples.model_info(), shell.window),
    "export": lambda shell: ExportDialog(
        shell.models, {}, "{}", shell.controller.requests.exports.is_writing, shell.window
    ),
    "calculator": lambda shell: Calculator(samples.model_info(), CacheSpec(), shell.window),
}


def test_the_first_field_has_the_focus_and_its_text_selected(ready: Shell) -> None:
    for name, make in MAKERS.items():
        dialog = make(ready)
        dialog.show()
        dialog.activateWindow()
        QApplication.processEvents()
        field = dialog.first_field()
        assert field is not None, name
        assert QApplication.focusWidget() is field, name
        line = field.lineEdit() if isinstance(field, QAbstractSpinBox) else field
        if isinstance(line, QLineEdit) and line.text():
            assert line.selectedText(), name
        dialog.reject()


def test_tab_walks_the_fields_before_the_buttons(ready: Shell, qtbot: QtBot) -> None:
    dialog = CacheDialog(H2O, None, ready.window)
    dialog.open()
    QApplication.processEvents()
    walked = []
    assert dialog.codec is not None
    fields = [*(dialog.fields[name] for name in ("budget", "ratio", "sinks", "window", "layout"))]
    fields += dialog.codec.choice.findChildren(QComboBox)
    for _ in fields:
        walked.append(QApplication.focusWidget())
        qtbot.keyClick(walked[-1], Qt.Key.Key_Tab)
    assert walked == fields
    assert QApplication.focusWidget() is dialog.ok
    dialog.reject()


def test_enter_in_the_calculator_copies_nothing(ready: Shell, qtbot: QtBot) -> None:
    QGuiApplication.clipboard().setText("mine")
    sheet = Calculator(samples.model_info(), CacheSpec(), ready.window)
    sheet.show()
    sheet.layers.setFocus()
    qtbot.keyClick(sheet.layers, Qt.Key.Key_Return)
    assert sheet.isVisible()
    assert QGuiApplication.clipboard().text() == "mine"
    sheet.reject()


@pytest.mark.parametrize("value", [2, 24, 4_096])
def test_a_number_field_is_as_wide_as_its_number_and_unit(qapp: QApplication, value: int) -> None:
    apply_theme(qapp, DARK)
    row = QWidget()
    layout = QHBoxLayout(row)
    field = QSpinBox()
    field.setRange(0, 100_000)
    inset(field, "steps")
    layout.addWidget(field)
    layout.addStretch(1)
    field.setValue(value)
    row.show()
    qapp.processEvents()
    line = field.lineEdit()
    margins = line.textMargins()
    room = line.width() - margins.left() - margins.right() - 8  # the style sheet's padding
    assert room >= line.fontMetrics().horizontalAdvance(line.text())
    row.deleteLater()


def test_a_hub_name_that_is_empty_is_refused_inside_the_dialog(shell: Shell) -> None:
    dialog = HubDialog(shell.window)
    dialog.accept()
    assert "no name" in dialog.problem.text()
    dialog.reject()


def test_the_parameters_of_a_cache_are_asked_for(shell: Shell) -> None:
    heard: list[object] = []
    dialog = CacheDialog(cache_preset("static").spec, None, shell.window)
    dialog.chosen.connect(heard.append)
    dialog.fields["max_length"].setValue(512)
    dialog.accept()
    assert [spec.max_length for spec in heard] == [512]


def test_k_and_v_are_given_codecs_of_their_own(ready: Shell, engine: FakeEngine) -> None:
    """The fields are those of the codecs that are chosen, and what is sent is one codec for K and another for V."""
    in_mode(ready, engine, CacheSpec())
    ready.window.actions_["cache.tune"].trigger()
    (dialog,) = [w for w in QApplication.topLevelWidgets() if isinstance(w, CacheDialog) and w.isVisible()]
    assert dialog.codec is not None
    codec, numbers = dialog.codec.choice, dialog.codec.numbers
    assert not any(numbers[name].isVisible() for name in ("bits", "group", "residual"))
    codec.choose("int8", "fp8-max")
    assert [n for n in ("bits", "group", "residual") if numbers[n].isVisible()] == ["group"]
    codec.choose("int8", "kivi")
    for name, value in (("bits", 2), ("group", 16), ("residual", 32)):
        assert numbers[name].isVisible()
        numbers[name].setValue(value)
    dialog.accept()
    assert engine.of(SetCache) == [SetCache(CacheSpec(codec=CodecSpec(Coding("int8"), Coding("kivi-2", 16, 32))))]


def test_a_codec_that_cannot_be_is_refused_in_the_engines_words(ready: Shell, engine: FakeEngine) -> None:
    dialog = CacheDialog(H2O, None, ready.window)
    dialog.show()
    assert dialog.codec is not None
    dialog.codec.choice.choose("int8", "kivi")
    dialog.accept()
    assert dialog.isVisible()
    assert "a single row cannot be evicted" in dialog.problem.text()
    dialog.codec.choice.choose("int8")
    chosen: list[CacheSpec] = []
    dialog.chosen.connect(chosen.append)
    dialog.accept()
    assert chosen == [tuned(H2O, codec=uniform("int8"))]


def test_a_switch_and_a_choice_reach_the_cache(shell: Shell) -> None:
    spec = cache_preset("streamingllm").spec
    dialog = CacheDialog(spec, None, shell.window)
    box, layout = dialog.fields["rerotate"], dialog.fields["layout"]
    assert isinstance(box, QCheckBox)
    assert isinstance(layout, QComboBox)
    assert dialog.answer() is None
    box.setChecked(True)
    assert dialog.answer() == tuned(spec, rerotate=True)
    dialog = CacheDialog(tuned(spec, rerotate=True), None, shell.window)
    assert dialog.fields["rerotate"].isChecked()  # type: ignore[union-attr]
    dialog.fields["rerotate"].setChecked(False)  # type: ignore[union-attr]
    dialog.fields["layout"].setCurrentIndex(1)  # type: ignore[union-attr]
    assert dialog.answer() == tuned(spec, layout="paged")


def test_about_says_the_program_its_parts_and_its_licence(running: Shell) -> None:
    running.actions["help.about"].trigger()
    (dialog,) = running.window.findChildren(AboutDialog)
    name, facts = (label.text() for label in dialog.findChildren(QLabel) if label.isVisible())
    assert name.startswith("KV Loupe")
    versions = [part.split() for part in facts.split("\n\n")[1].split(" · ")]
    assert [name for name, _ in versions] == ["Python", "Qt", "torch", "transformers", "safetensors", "numpy"]
    assert "Apache License 2.0" in facts
    label = next(each for each in dialog.findChildren(QLabel) if each.text() == facts)
    assert label.textInteractionFlags() & Qt.TextInteractionFlag.TextSelectableByMouse, (
        "versions are copied into reports"
    )
