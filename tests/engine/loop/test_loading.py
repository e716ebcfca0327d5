"""Models that are loaded, refused, or exchanged while a session lives."""

from __future__ import annotations

from pathlib import Path

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import FindModels, LoadModel, Step
from engine.wire.events import Failed, ModelsFound, Restarted, StateChanged
from engine.wire.records import StepRecord
from tests.engine.loop.driver import GROWING, Driver, prompt
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
    assert driver.loop.close(10.0)


def test_models_on_this_computer_are_listed_without_a_model(driver: Driver) -> None:
    driver.send(FindModels())
    assert isinstance(driver.wait_for(ModelsFound).models, tuple)


def test_status_says_what_takes_a_while(tmp_path: Path) -> None:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    driver.wait(lambda: driver.of(Restarted))
    driver.rest()
    labels = [e.status.work.label for e in driver.of(StateChanged) if e.status.work]
    assert labels[0].startswith("Starting torch")
    assert driver.status.work is None
    assert driver.loop.close(10.0)
