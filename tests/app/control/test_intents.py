from __future__ import annotations

from pathlib import Path

from app.control.controller import Controller
from app.dialogs.export import export_of, whole_session
from app.models import Models
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    BeginBranch,
    Cancel,
    Force,
    ForceText,
    GoTo,
    LoadModel,
    Pause,
    Run,
    SetCache,
    SetSampling,
    Step,
    SubmitPrompt,
)
from engine.wire.events import Failed, StateChanged, WentTo
from engine.wire.exporting import Export
from tests.app import samples
from tests.app.fake_engine import FakeEngine


def test_a_prompt_is_prefilled_once_it_is_taken(controller: Controller, engine: FakeEngine, models: Models) -> None:
    controller.intents.on_prompt_submitted("Once upon a time", SamplingParams())
    assert engine.sent == [SubmitPrompt(Prompt(text="Once upon a time", sampling=SamplingParams()), num_steps=1)]
    controller.tick()
    assert models.timeline.num_tokens(0) == 4
    assert not engine.of(Step), "the engine reads the prompt once it has taken it, and steps nothing else"


def test_a_refused_prompt_does_not_step_the_run_before(controller: Controller, engine: FakeEngine) -> None:
    engine.is_silent = True
    controller.intents.on_prompt_submitted("too long", SamplingParams())
    assert not controller.is_idle
    engine.emit(Failed("The prompt has too many tokens: shorten it.", reply_to=engine.id_of(SubmitPrompt)))
    controller.tick()
    assert not engine.of(Step)
    assert controller.requests.sequences.is_empty


def test_an_empty_prompt_is_a_banner_and_no_command(controller: Controller, engine: FakeEngine, models: Models) -> None:
    controller.intents.on_prompt_submitted("", SamplingParams())
    assert not engine.sent
    assert "empty" in models.status.failure


def test_stepping_back_looks_and_stepping_on_returns(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    stepped.intents.on_step_back()
    stepped.intents.on_step_back()
    assert models.selection.now.step == 8
    stepped.intents.on_step()
    stepped.intents.on_step()
    assert models.selection.now.step is None
    assert not engine.of(Step)
    stepped.intents.on_step()
    assert engine.of(Step) == [Step()]


def test_go_on_from_here_makes_the_past_the_present(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=4, position=12)
    stepped.intents.on_go_on_from_here()
    assert engine.of(GoTo) == [GoTo(4)]
    stepped.tick()
    assert models.timeline.latest.step == 4
    assert models.selection.now.step is None
    assert models.selection.now.position is None  # the token it stood on is gone
    assert "step 4" in models.status.notice


def test_going_to_the_live_step_asks_nothing(stepped: Controller, engine: FakeEngine) -> None:
    stepped.intents.on_go_on_from_here()
    assert not engine.of(GoTo)


def test_run_and_pause(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=3)
    stepped.intents.on_run_or_pause()
    assert models.selection.now.step is None
    assert engine.of(Run) == [Run()]
    engine.emit(StateChanged(samples.status(10, num_tokens=14, running=True)))
    stepped.tick()
    stepped.intents.on_run_or_pause()
    assert engine.of(Pause) == [Pause()]


def test_another_token_while_looking_back_begins_a_branch_and_steps_it(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """One click: the engine goes to the step that is viewed, and is asked for a step when it is there."""
    models.selection.update(step=3)
    newest = models.timeline.latest.step  # type: ignore[union-attr]
    engine.sent.clear()
    stepped.intents.send(BeginBranch(0, None, (42,)))
    assert engine.of(Force) == []
    assert engine.of(BeginBranch) == [BeginBranch(0, 3, (42,))]
    assert engine.of(Step) == [], "not before it is there: where it is refused nothing is stepped"
    stepped.tick()
    assert engine.of(Step) == [Step()]
    stepped.tick()
    assert [record.step for record in models.timeline] == [0, 1, 2, 3, newest + 1]
    assert newest in models.history
    assert models.selection.now.step is None


def test_a_branch_that_is_refused_steps_nothing(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=3)
    engine.sent.clear()
    engine.is_silent = True
    stepped.intents.send(BeginBranch(0, None, text=" upon"))
    assert engine.of(BeginBranch) == [BeginBranch(0, 3, text=" upon")]
    engine.emit(Failed("No such step.", reply_to=engine.id_of(BeginBranch)))
    stepped.tick()
    engine.emit(WentTo(3, "kept", 0.1, reply_to=None))
    stepped.tick()
    assert engine.of(Step) == []
    assert models.status.failure == "No such step."


def test_branches_from_the_live_step_need_no_branch(stepped: Controller, engine: FakeEngine) -> None:
    engine.sent.clear()
    stepped.intents.send(BeginBranch(0, None, text=" upon"))
    stepped.intents.send(BeginBranch(0, None, sampling=SamplingParams(0.8, seed=7)))
    asked = [command for command in engine.sent if isinstance(command, ForceText | SetSampling | Step)]
    assert asked == [ForceText(0, " upon"), Step(), SetSampling(SamplingParams(0.8, seed=7), 0), Step()]


def test_export_takes_what_is_looked_at(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    stepped.intents.send(whole_session(models, Path("a.safetensors")))
    stepped.intents.send(export_of(models, Path("b.safetensors"), 2, 3, notes="note"))
    now, past = engine.of(Export)
    assert now == Export(Path("a.safetensors"), 0, None, "", records=tuple(models.timeline.records))
    assert past == Export(Path("b.safetensors"), 0, 7, "note", records=tuple(models.timeline.records[2:4]))


def test_simple_intents_are_one_command(stepped: Controller, engine: FakeEngine) -> None:
    stepped.intents.send(Cancel())
    stepped.intents.send(SetCache(cache_preset("static").spec))
    stepped.intents.on_model_chosen(ModelSpec("/models/x"))
    assert engine.of(Cancel) == [Cancel()]
    assert engine.of(SetCache) == [SetCache(CacheSpec("static"))]
    assert engine.of(LoadModel) == [LoadModel(ModelSpec("/models/x"), CacheSpec())]


def test_another_token_at_the_live_step_is_forced(stepped: Controller, engine: FakeEngine) -> None:
    stepped.intents.send(BeginBranch(0, None, (42,)))
    assert engine.of(Force) == [Force(0, (42,))]
    assert engine.of(Step)[-1] == Step()


def test_other_sampling_while_looking_back_is_said_to_be_the_live_steps(stepped: Controller, models: Models) -> None:
    told: list[str] = []
    models.status.noticed.connect(told.append)
    stepped.intents.on_sampling_changed(SamplingParams(0.8, seed=7))
    assert told == []
    models.selection.update(step=1)
    stepped.intents.on_sampling_changed(SamplingParams(0.9, seed=7))
    assert [each.partition(":")[0] for each in told] == ["Changed for the live step, not for step 1"]
