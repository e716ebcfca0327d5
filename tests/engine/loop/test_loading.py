"""Models that are loaded, refused, or exchanged while a session lives."""

from __future__ import annotations

import weakref
from pathlib import Path

from engine.saved.session import SessionRecorder
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import FindModels, Force, LoadModel, Redo, Step
from engine.wire.devices import DevicesFound, FindDevices, ForecastLoad, LoadForecast, Unloaded, UnloadModel
from engine.wire.events import Failed, ModelsFound, NodeAdded, Redone, Restarted, StateChanged
from engine.wire.records import StepRecord, TokensForced
from engine.wire.tree import Node
from tests.engine.loop.driver import GROWING, PATIENCE_S, Driver, prompt
from tests.engine.tiny import write_config


def test_a_bad_model_keeps_the_old_and_a_good_one_replaces_it(driver: Driver, tmp_path: Path) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    name = driver.rest().model
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    driver.send(LoadModel(ModelSpec(str(broken), num_threads=1), GROWING))
    assert "not valid JSON" in driver.wait_for(Failed).message
    assert driver.rest().model == name
    other = tmp_path / "other"
    other.mkdir()
    driver.send(LoadModel(ModelSpec(f"shape:{write_config('gpt2', other)}", num_threads=1), CacheSpec("dynamic")))
    driver.wait_for(Restarted)
    status = driver.rest()
    assert status.model is not None
    assert status.model.architecture == "GPT2LMHeadModel"
    assert status.cache == CacheSpec("dynamic")
    assert status.sequences == ()


def test_the_first_load_may_fail_and_another_follow(tmp_path: Path) -> None:
    driver = Driver("/no/such/model")
    assert "check the path" in driver.wait_for(Failed).message
    driver.send(Step())
    assert "no model yet" in driver.wait_for(Failed, 2).message
    driver.send(LoadModel(ModelSpec(f"shape:{write_config('llama', tmp_path)}", num_threads=1), GROWING))
    driver.wait_for(Restarted)
    assert driver.loop.close(PATIENCE_S)


def test_models_on_this_computer_are_listed_without_a_model(driver: Driver) -> None:
    driver.send(FindModels())
    assert isinstance(driver.wait_for(ModelsFound).models, tuple)


def test_status_says_what_takes_a_while(tmp_path: Path) -> None:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    driver.wait(lambda: driver.of(Restarted))
    driver.rest()
    labels = [e.status.work.label for e in driver.of(StateChanged) if e.status.work]
    assert labels[0].startswith("Starting torch")
    assert all(e.status.work.is_loading for e in driver.of(StateChanged) if e.status.work)
    assert driver.status.work is None
    assert driver.loop.close(PATIENCE_S)


def test_devices_and_what_a_model_would_take_are_told_before_one_is_loaded(driver: Driver) -> None:
    driver.send(FindDevices(id=7), ForecastLoad(ModelSpec(num_threads=1), GROWING, 100, id=8))
    found, forecast = driver.wait_for(DevicesFound), driver.wait_for(LoadForecast)
    assert (found.reply_to, forecast.reply_to) == (7, 8)
    assert found.devices[-1].name == "cpu"
    assert [each.name for each in found.weights] == ["stored", "int8", "int4"]
    assert (forecast.device, forecast.context, forecast.problem) == ("cpu", 100, "")
    assert (
        forecast.freed_bytes == driver.session.model.info.weight_bytes
    )  # of the model that it would take the place of


def test_a_model_that_is_unloaded_is_gone_and_its_steps_can_be_done_once_more(driver: Driver) -> None:
    driver.send(prompt(6), Step(2))
    driver.wait_for(StepRecord, 2)
    driver.send(prompt(5, temperature=1.0), Step())
    driver.wait_for(StepRecord, 3)
    driver.rest()
    driver.send(Force(1, (9,)))
    driver.rest()
    records, model = driver.of(StepRecord), weakref.ref(driver.session.model.model)
    info, recorder = driver.status.model, SessionRecorder()
    recorder.take(driver.events)
    driver.forget()
    driver.send(UnloadModel(id=9))
    told = driver.wait_for(Unloaded)
    status = driver.status
    assert info is not None
    assert (told.reply_to, told.name, told.weight_bytes) == (9, info.name, info.weight_bytes)
    assert told.cache_bytes > 0
    assert model() is None
    assert (status.model, status.sequences, status.step, status.cache) == (None, (), None, GROWING)
    pending = driver.of(NodeAdded)[0].node  # what waited for the next step is a moment of its own
    assert isinstance(pending.changes[-1], TokensForced)
    recorder.take(driver.events)
    saved = recorder.session()
    assert (saved.model, saved.live) == (info, pending.step), "the session is that of its model, loaded or not"
    assert saved.nodes[-1] == pending
    driver.send(UnloadModel())
    assert "nothing to free" in driver.wait_for(Failed).message
    driver.send(LoadModel(ModelSpec(info.source, device="cpu", num_threads=1), GROWING))
    driver.wait_for(Restarted)
    driver.send(Redo((Node.of(records[-1]), pending), pending.step))
    redone = driver.wait_for(Redone)
    assert (redone.step, redone.why_not_all, redone.why_not_exact) == (pending.step, "", "")
