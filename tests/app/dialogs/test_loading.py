"""Where a model is loaded: what the engine tells before it is done, and what a choice becomes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox, QFileDialog, QWidget

from app.dialogs.loading import LoadingDialog, device_words, forecast_facts
from app.models.sequence_status import sequence_status
from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED_NAME, ModelSpec
from engine.wire.commands import LoadModel
from engine.wire.devices import (
    Device,
    DevicesFound,
    FindDevices,
    ForecastLoad,
    FormatHere,
    LoadForecast,
    Unloaded,
    UnloadModel,
)
from engine.wire.events import StateChanged
from engine.wire.status import Work
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import texts_in

GIB = 2**30
CPU = Device("cpu", "A CPU", 16 * GIB, 10 * GIB, (), 8)
GPUS = tuple(Device(f"cuda:{n}", "A GPU", 8 * GIB, (6 + n) * GIB, ("bfloat16",)) for n in range(2))
FORMATS = (FormatHere("stored", ""), FormatHere("int8", ""), FormatHere("int4", "torchao is not installed"))


def texts(box: QComboBox) -> list[str]:
    return [box.itemText(index) for index in range(box.count())]


def opened_dialog(shell: Shell, engine: FakeEngine) -> LoadingDialog:
    """With a model loaded."""
    engine.loaded()
    turn(shell)
    shell.actions["model.compute"].trigger()
    (dialog,) = shell.window.findChildren(LoadingDialog)
    return dialog


def test_a_choice_is_forecast_loaded_and_kept_and_a_model_is_unloaded_and_offered_again(
    shell: Shell, engine: FakeEngine
) -> None:
    dialog = opened_dialog(shell, engine)
    assert engine.of(FindDevices)
    found = DevicesFound((*GPUS, CPU), FORMATS, "accelerate is not installed")
    engine.emit(replace(found, reply_to=engine.id_of(FindDevices)))
    turn(shell)
    assert texts(dialog.device) == [
        "auto: as suits the machine",
        "cuda:0 · A GPU · 6.0 GiB of 8.0 GiB free · no bfloat16",
        "cuda:1 · A GPU · 7.0 GiB of 8.0 GiB free · no bfloat16",
        "cpu · A CPU · 10.0 GiB of 16.0 GiB free",
        "split over all GPUs — accelerate is not installed",
    ]
    assert texts(dialog.weights)[-1].endswith("— torchao is not installed")
    dialog.device.setCurrentIndex(2)
    dialog.dtype.setCurrentIndex(dialog.dtype.findData("float16"))
    dialog.weights.setCurrentIndex(dialog.weights.findData("int8"))
    dialog.threads.setValue(3)
    dialog.context.setValue(700)
    wanted = ModelSpec("bundled", "float16", "cuda:1", num_threads=3, weights="int8")
    asked = engine.of(ForecastLoad)[-1]
    assert asked == ForecastLoad(wanted, shell.models.status.now.cache, 700)
    number = engine.numbered[-1].id
    engine.emit(LoadForecast(wanted, problem="The device is gone.", reply_to=number - 1))  # of what was chosen before
    engine.emit(LoadForecast(wanted, "cuda:1", "float16", 5 * GIB, GIB, 700, 7 * GIB, reply_to=number))
    turn(shell)
    assert dialog.ok.isEnabled()
    assert "fits" in dialog.facts.text()
    dialog.accept()
    turn(shell)
    assert engine.of(LoadModel)[-1].model == wanted
    shell.window.top.model.chosen.emit(ModelSpec("/models/other"))  # others are loaded so from now on
    assert engine.of(LoadModel)[-1].model == replace(wanted, source="/models/other")
    shell.remember()
    assert shell.settings.loading == wanted
    # ---- and let go
    assert not shell.actions["model.reload"].isEnabled()
    shell.actions["model.unload"].trigger()
    turn(shell)
    assert engine.of(UnloadModel)
    engine.emit(StateChanged(replace(samples.status(), model=None)), Unloaded("Tales", "cuda:1", 5 * GIB, GIB, 6 * GIB))
    turn(shell)
    notice = shell.models.status.notice
    assert notice == (
        "Tales is unloaded from cuda:1: it held 5.0 GiB of weights and 1.0 GiB of caches, 6.0 GiB became free"
    )
    assert shell.models.status.why_no_rows == "The model is unloaded: load it again to have its K and V."
    assert sequence_status(shell.models).words == "model unloaded"
    assert not shell.actions["model.unload"].isEnabled()
    wishes: list[bool] = []
    shell.reload_wanted.connect(lambda: wishes.append(True))
    shell.actions["model.reload"].trigger()
    assert wishes == [True]
    engine.emit(StateChanged(replace(samples.status(), model=None, work=Work("Loading Tales", 3, 9, is_loading=True))))
    turn(shell)
    assert sequence_status(shell.models).words == "loading a model"
    assert shell.models.status.why_no_rows == "The model is being loaded: its K and V come with it."


CONTROL = Qt.KeyboardModifier.ControlModifier


def test_a_key_pressed_while_a_model_is_loaded_is_kept_or_says_why_nothing_happens(
    shell: Shell, engine: FakeEngine
) -> None:
    engine.loaded()
    turn(shell)
    shell.actions["prompt.send"].trigger()
    turn(shell)
    assert shell.actions["run.step"].isEnabled()
    engine.emit(StateChanged(replace(engine.status, work=Work("Loading another", 3, 9, is_loading=True))))
    turn(shell)
    commands = len(engine.sent)
    shell.window.show()
    told = shell.window.status.note
    for key, modifier in ((Qt.Key.Key_F10, Qt.KeyboardModifier.NoModifier), (Qt.Key.Key_Return, CONTROL)):
        QTest.keyClick(shell.window.prompt.edit, Qt.Key.Key_F5)
        assert told.text() == "Run is not possible now. A model is being loaded: wait for it, or cancel."
        QTest.keyClick(shell.window.prompt.edit, key, modifier)
        assert told.text() == "The prompt is sent as soon as the model is loaded"
    turn(shell)
    assert len(engine.sent) == commands, "they would reach the session of the other model"
    assert shell.actions["run.cancel"].isEnabled()
    engine.emit(StateChanged(engine.status))
    turn(shell)
    assert shell.actions["run.step"].isEnabled()


def test_another_folder_can_be_chosen_and_is_forecast_and_loaded(
    shell: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialog = opened_dialog(shell, engine)
    assert dialog.name.text() == BUNDLED_NAME
    long = "/models/" + 9 * "of-a-long-name/" + "Tales"
    for chosen, shown in (("", BUNDLED_NAME), ("/m/Tales", "/m/Tales"), (long, "…")):
        monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_, folder=chosen: folder)
        dialog.folder.click()
        assert dialog.name.text().startswith(shown)
        if chosen:
            assert engine.of(ForecastLoad)[-1].model.source == chosen
    assert dialog.name.text().endswith("/Tales")
    assert long in dialog.name.toolTip()
    dialog.accept()
    turn(shell)
    assert engine.of(LoadModel)[-1].model.source == long


def test_an_adapter_can_be_put_on_the_model_and_taken_off(
    shell: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialog = opened_dialog(shell, engine)
    assert ("none" in texts_in(dialog), dialog.no_adapter.isVisible()) == (True, False)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: "/a/lora")
    dialog.adapter.click()
    dialog.adapter.click()  # it takes the place of the one before
    assert {BUNDLED_NAME, "/a/lora"} <= {*texts_in(dialog)}
    assert dialog.no_adapter.isVisible()
    wanted = ModelSpec("bundled+adapter:/a/lora")
    assert engine.of(ForecastLoad)[-1].model == wanted
    asked = len(engine.of(ForecastLoad))
    dialog.weights.setCurrentIndex(dialog.weights.findData("int8"))
    assert dialog.problem.text() == "An adapter is put on weights as they are stored: leave out the int8 weights."
    assert not dialog.ok.isEnabled()
    assert len(engine.of(ForecastLoad)) == asked
    dialog.no_adapter.click()
    assert ("none" in texts_in(dialog), dialog.no_adapter.isVisible()) == (True, False)
    assert engine.of(ForecastLoad)[-1].model == ModelSpec(weights="int8")
    dialog.weights.setCurrentIndex(0)
    dialog.adapter.click()
    dialog.show_forecast(LoadForecast(wanted, "cpu", "float32", GIB, GIB, 700, 7 * GIB))
    dialog.accept()
    turn(shell)
    assert engine.of(LoadModel)[-1].model == wanted
    engine.emit(StateChanged(replace(engine.status, model=replace(samples.model_info(), source=wanted.source))))
    turn(shell)
    shell.actions["model.compute"].trigger()
    again = shell.window.findChildren(LoadingDialog)[-1]
    assert {BUNDLED_NAME, "/a/lora"} <= {*texts_in(again)}


def test_what_a_forecast_says(host: QWidget) -> None:
    told = LoadForecast(
        ModelSpec(), "cuda:0", "float16", 3 * GIB, GIB, 900, 2 * GIB, GIB, "the only GPU", ("bfloat16 is not there",)
    )
    said = {fact.label: fact.text for fact in forecast_facts(told, "Growing")}
    assert said["goes to"] == "cuda:0 in float16"
    assert (said["weights"], said["Growing cache, 900 tokens"], said["together"]) == ("3.0 GiB", "1.0 GiB", "4.0 GiB")
    assert said["held by the present model"] == "1.0 GiB"
    assert "does not fit" in said.values()
    assert {"the only GPU", "bfloat16 is not there"} <= set(said)
    later = replace(told, free_bytes=3 * GIB)
    assert "fits once the present model is unloaded" in [fact.text for fact in forecast_facts(later, "Growing")]
    assert device_words(CPU) == "cpu · A CPU · 10.0 GiB of 16.0 GiB free"
    dialog = LoadingDialog(ModelSpec(device="cuda:5"), CacheSpec(), host)
    assert dialog.device.currentData() == "cuda:5"  # as remembered, until the engine says what is here
    dialog.show_devices(DevicesFound((CPU,), FORMATS, ""))
    assert dialog.device.currentData() == "auto"
    dialog.show_forecast(LoadForecast(ModelSpec(), problem="There is no model folder."))
    assert not dialog.ok.isEnabled()


def test_the_forecast_is_of_the_model_that_is_loaded(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    engine.emit(StateChanged(replace(engine.status, model=replace(samples.model_info(), source="org/a"))))
    turn(shell)
    shell.actions["model.compute"].trigger()
    (dialog,) = shell.window.findChildren(LoadingDialog)
    dialog.threads.setValue(3)
    assert engine.of(ForecastLoad)[-1].model == ModelSpec("org/a", num_threads=3)
