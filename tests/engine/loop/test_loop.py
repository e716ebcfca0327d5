"""The loop as the window uses it: real thread, real models, commands in, events out."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from safetensors import safe_open

from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.codec import uniform
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    ChoosePagedAttention,
    ChooseRunner,
    Fork,
    GoTo,
    Pause,
    Run,
    SetCache,
    SetPace,
    SetSampling,
    Step,
    StopSequence,
    SubmitPrompt,
)
from engine.wire.events import CacheChanged, Done, Failed, ForkMade, Restarted, StateChanged, WentTo
from engine.wire.exporting import Export, Exported
from engine.wire.measurements import CheckParity
from engine.wire.message import Command
from engine.wire.records import StepRecord
from tests.engine.loop.driver import GROWING, Driver, prompt
from tests.engine.tiny import prompt_ids


def test_it_loads_prefills_and_steps(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    record = driver.wait_for(StepRecord)
    assert record.phase == "prefill"
    assert not driver.rest().running, "one unit was asked for"
    assert len(driver.of(StepRecord)) == 1
    driver.send(Step(3))
    driver.wait_for(StepRecord, 4)
    assert driver.rest().step == 3
    assert [r.step for r in driver.of(StepRecord)] == [0, 1, 2, 3]


def test_the_last_word_of_a_run_comes_after_its_last_step_or_when_another_takes_over(driver: Driver) -> None:
    driver.send(structs.replace(prompt(6), id=1), Run(4, id=2))
    driver.wait_for(StepRecord, 4)
    driver.rest()
    assert driver.last_words() == [Done(reply_to=1), Done(reply_to=2)]
    after = driver.events[driver.events.index(Done(reply_to=2)) :]
    assert not [event for event in after if isinstance(event, StepRecord)]
    driver.forget()
    driver.send(SetPace(1e-4, None), Run(id=3), Step(2, id=4))
    driver.wait_for(StepRecord, 2)
    driver.rest()
    assert driver.last_words() == [Done(reply_to=3), Done(reply_to=4)]
    driver.forget()
    driver.send(Run(id=5), Step(0, id=6), Pause(id=7), StopSequence(0, id=8), Run(id=9))
    driver.wait_for(Failed, 2)
    driver.rest()
    assert [(type(word), word.reply_to) for word in driver.last_words()] == [
        (Failed, 6), (Done, 5), (Done, 7), (Done, 8), (Failed, 9),
    ]  # fmt: skip


def test_a_runner_is_chosen_by_a_command_and_says_when_it_records(driver: Driver) -> None:
    driver.send(ChooseRunner("graph"), prompt(6), Step(3))
    assert driver.wait_for(StepRecord, 3).runner == "graph"
    assert driver.rest().runner.chosen == "graph"
    labels = [event.status.work.label for event in driver.of(StateChanged) if event.status.work is not None]
    assert labels.count("Recording a step of up to 64 tokens") == 1
    assert driver.rest().work is None
    driver.send(ChooseRunner("transformers"), Step())
    assert driver.wait_for(StepRecord, 4).runner == "transformers"
    assert driver.rest().runner.chosen == "transformers"


def test_pages_are_read_as_a_command_says(driver: Driver) -> None:
    driver.send(SetCache(CacheSpec("paged", page_size=4)), ChoosePagedAttention("pages"), prompt(6), Step(2))
    assert driver.wait_for(StepRecord, 2).runner == "fused+pages"
    assert driver.rest().runner.pages == "pages"
    driver.send(ChoosePagedAttention("gather"), Step())
    assert driver.wait_for(StepRecord, 3).runner == "fused"


def test_a_loop_says_that_it_gets_on_and_that_it_is_idle(slow: Driver) -> None:
    activity = slow.engine.activity
    slow.wait(lambda: not activity.what)
    before = activity.num_marks
    slow.send(prompt(300), Step())
    slow.wait_for(StepRecord)
    slow.rest()
    assert activity.num_marks > before + len(slow.of(StepRecord)) + 2
    slow.wait(lambda: not activity.what)


@pytest.mark.parametrize(
    ("command", "num_forwards"),
    [(Step(), 1), (GoTo(1), 2), (SetCache(GROWING), 1), (CheckParity(0), 1)],
    ids=["step", "rewind", "another cache", "parity"],
)
def test_every_layer_of_every_forward_leaves_a_mark(slow: Driver, command: Command, num_forwards: int) -> None:
    """Those of a replay and of a measurement too: whoever waits for them sees that they get on."""
    kivi = CacheSpec("growing", codec=uniform("kivi-2", group=16, residual=16))
    slow.send(SetCache(kivi), prompt(157), Step(5))
    slow.wait_for(StepRecord, 5)
    if isinstance(command, GoTo):
        slow.send(SetCache(GROWING))  # back in the mode before, its rows are computed anew
    slow.rest()
    slow.session.kept.clear()
    model, count = slow.session.model, [0]
    mark = model.heartbeat

    def counted() -> None:
        assert mark is not None
        mark()
        count[0] += 1

    model.heartbeat = counted
    marks = slow.engine.activity.num_marks
    slow.send(command)
    slow.rest()
    assert not slow.of(Failed)
    assert slow.engine.activity.num_marks - marks > 8 * num_forwards
    if not isinstance(command, GoTo):  # there a cancel is looked for at every layer, which marks it as well
        assert count[0] >= 8 * num_forwards


def test_rewind_cache_sampling_and_a_second_prompt(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(GoTo(1))
    assert driver.wait_for(WentTo).step == 1
    assert driver.rest().step == 1
    driver.send(SetCache(CacheSpec("paged")))
    assert "converted" in driver.wait_for(CacheChanged).how
    driver.send(SetSampling(SamplingParams(temperature=3.0)))
    assert driver.rest().sampling.temperature == 3.0
    driver.send(SubmitPrompt(Prompt(token_ids=prompt_ids(4)), alone=False))
    assert len(driver.rest().sequences) == 2
    driver.send(prompt(5))
    driver.wait_for(Restarted)
    assert [s.num_prompt_tokens for s in driver.rest().sequences] == [5]
    assert driver.status.step is None


def test_the_cache_in_use_is_not_filled_again(driver: Driver) -> None:
    tova = cache_preset("tova").spec
    driver.send(prompt(40), Step(2), SetCache(tova))
    assert driver.wait_for(CacheChanged).cache == tova
    driver.send(SetCache(tova), SetCache(GROWING))
    assert driver.wait_for(CacheChanged, 2).cache == GROWING
    assert driver.of(Failed) == []


def test_export_is_whole_and_told(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.send(Export(path, 0))
    exported = driver.wait_for(Exported)
    assert exported.num_bytes == path.stat().st_size
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"


def test_a_fork_of_a_past_step_is_told_with_its_parent(driver: Driver) -> None:
    driver.send(prompt(6), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(Fork(0, 1))
    forked = driver.wait_for(ForkMade)
    assert (forked.parent, forked.child, forked.step, forked.num_tokens) == (0, 1, 1, 7)
    place = driver.events.index(forked)
    told = [event.status for event in driver.events[:place] if isinstance(event, StateChanged)]
    assert [info.num_tokens for info in told[-1].sequences] == [9, 7], "the status that has it comes first"


def test_sampling_is_told_of_each_sequence_and_of_the_next_prompt(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step())
    driver.wait_for(StepRecord)
    warm = SamplingParams(temperature=2.0)
    driver.send(SetSampling(warm), SubmitPrompt(Prompt(token_ids=(5, 6)), alone=False))
    driver.send(SetSampling(SamplingParams(seed=9), 1))
    status = driver.rest()
    assert [info.sampling for info in status.sequences] == [
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(seed=9),
    ]
    assert status.sampling == warm
