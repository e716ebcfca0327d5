"""All that a person may wish and all that an engine may say, one after the other in a window without its panels: which
commands that sends, and what it changes in the models, as approved (`approved/*.txt`; `KVLOUPE_APPROVE=1` writes them
anew)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.control.requests import PACES
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.codec import uniform
from engine.spec.condition import Breakpoint
from engine.spec.edit import Mask, ReplaceTokens, Rows, Zero
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, Prompt, SamplingParams, Turn
from engine.wire import breakpoints, commands, devices, events
from engine.wire.commands import SetCache
from engine.wire.comparison import ComparisonEnded, ComparisonScanned, OtherStep
from engine.wire.measurements import CheckParity, EditMeasured, MapDamage, MeasureRegret, WhatIf
from engine.wire.records import EditMade
from engine.wire.status import (
    Chosen,
    ChosenToken,
    LayerDone,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    SuspendedStep,
    Work,
    Written,
    WrittenRows,
)
from engine.wire.tree import Node
from tests.app import answers, samples
from tests.app.control.later_story import lose, of_branches, of_files
from tests.app.control.story import Story, info, step
from tests.approve import approve

APPROVED = Path(__file__).parent / "approved"
CHAT = Chat((Turn("user", "Who?"),))
WARM = SamplingParams(0.8, seed=7)
FEW, MANY = Rows(1, 3, (2,), (1,)), Rows(1, 90)


class Clock:
    """Of one piece of news to the next it is long."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 60.0
        return self._now


def comparison(story: Story, step: int) -> Callable[[], None]:
    """The wish to compare the selected sequence with another step."""
    return lambda: story.wish.send(commands.StartComparison(story.models.selection.now.seq_id, OtherStep(step)))


def test_wishes_and_answers_are_as_approved(qapp: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.control.events.time", Clock())
    story = Story()
    chapters: dict[str, Callable[[Story], None]] = {
        "without_a_model": _without_model, "begin": _begin, "look_back": _look_back, "measure": _measure,
        "compare": _compare, "edit": _edit, "branches": of_branches, "files": of_files, "lose": lose,
    }  # fmt: skip
    told = {}
    for name, play in chapters.items():
        start = len(story.lines)
        play(story)
        told[name] = story.lines[start + 1 :]
    for name, lines in told.items():
        approve(APPROVED / "wishes" / f"{name}.txt", lines)


def _without_model(story: Story) -> None:
    story.engine.is_silent = True
    wish, tell = story.wish, story.tell
    story.go(
        "nothing is there: a pace, a limit, stops",
        lambda: wish.send(PACES["5"].command),
        lambda: wish.send(commands.SetKeptLimit(5 << 20)),
        lambda: wish.on_breakpoints_changed((Breakpoint(1, "step = 90"),)),
    )
    story.go(
        "models, devices, what it would take",
        story.ask(commands.FindModels()),
        story.ask(devices.FindDevices()),
        story.ask(devices.ForecastLoad(ModelSpec("org/a", "float16"), CacheSpec(), None), "forecast"),
        story.ask(devices.ForecastLoad(ModelSpec("org/a", "float16"), CacheSpec(), 700), "forecast"),
    )
    story.go(
        "they are told",
        story.answer(commands.FindModels, events.ModelsFound((events.LocalModel("One", "org/one", "Llama", 5, 6),))),
        story.answer(devices.FindDevices, devices.DevicesFound((devices.Device("cpu", "A CPU", 9, 8),), (), "why not")),
        tell(
            devices.LoadForecast(
                ModelSpec("org/a"), problem="older", reply_to=story.engine.ids_of(devices.ForecastLoad)[0]
            )
        ),
        story.answer(devices.ForecastLoad, devices.LoadForecast(ModelSpec("org/a"), "cpu", "float32", 1, 2, 3, 4)),
    )
    story.go("it fails", tell(events.Failed("There is no such model: choose another.")))
    story.go(
        "models are loaded so from now on",
        lambda: wish.on_loading_chosen(ModelSpec("org/a", "float16", "cpu", num_threads=3)),
    )
    story.go("a model", lambda: wish.on_model_chosen(ModelSpec("org/b")))
    story.go("it is there", tell(events.Restarted()), story.status())


def _begin(story: Story) -> None:
    wish, tell = story.wish, story.tell
    story.go("what is typed is counted", story.ask(commands.Tokenize("Once"), "text"))
    story.go("counted", story.answer(commands.Tokenize, events.Tokenized((5, 6), ("a", "b"))))
    story.go("a conversation is counted", story.ask(commands.PreviewPrompt(Prompt(chat=CHAT), 0), "text"))
    story.go("previewed", story.answer(commands.PreviewPrompt, events.Previewed((7,), ("c",), "text")))
    story.go(
        "not counted",
        story.ask(commands.Tokenize("x"), "text"),
        lambda: story.answer(commands.Tokenize, events.Failed("no"))(),
    )
    story.go("a prompt", lambda: wish.on_prompt_submitted("Once upon", WARM))
    texts = samples.prompt_tokens()
    story.go(
        "it is taken",
        story.answer(commands.SubmitPrompt, events.Restarted()),
        story.status(sequences=(info(0, 0, phase="waiting"),)),
        story.answer(commands.SubmitPrompt, events.Submitted(0, *texts, note="a note")),
    )
    story.go("it is read", tell(step(0, 0, None)), story.status(sequences=(info(0, 4),), step=0))
    story.go("panels appear", lambda: story.models.viewport.update(wall_size=(20, 8), head_columns=30, wants_row=True))
    story.go("a step", wish.on_step)
    story.go("it is done", tell(step(1, 1, 0)), story.status(sequences=(info(0, 5),), step=1))
    story.go("another cache", lambda: wish.send(SetCache(cache_preset("h2o").spec)))
    story.go(
        "it is there",
        tell(events.CacheChanged(cache_preset("h2o").spec, "dropped", 3.0, samples.cache_bytes(5))),
        story.status(cache=cache_preset("h2o").spec),
    )
    story.go("a run", lambda: wish.on_run_to(3))
    story.go("it runs", story.status(running=True), tell(step(2, 2, 1)))
    story.go("it is paused", wish.on_run_or_pause)
    story.go(
        "it halts",
        tell(step(3, 3, 2), breakpoints.BreakpointHit(1, "step = 3", 3, 0, "3")),
        story.status(running=False, sequences=(info(0, 7),), step=3),
    )
    story.go("a run to a condition", lambda: wish.on_run_to("entropy > 2"))
    story.go("a number of steps", lambda: wish.on_run_to(12))
    story.go(
        "a pace, a limit, stops",
        lambda: wish.send(PACES["all"].command),
        lambda: wish.send(commands.SetKeptLimit(6 << 20)),
        lambda: wish.on_breakpoints_changed((Breakpoint(1, "step = 90"), Breakpoint(2, "entropy > 9", False))),
    )
    story.go("all stops", wish.on_all_breakpoints_switched)
    story.go("all stops again", wish.on_all_breakpoints_switched)
    story.go(
        "runner, pages, capture",
        lambda: wish.send(commands.ChooseRunner("eager")),
        lambda: wish.send(commands.ChoosePagedAttention("gather")),
        lambda: wish.on_capture_chosen("off"),
        wish.on_time_by_layer_switched,
    )
    story.go("a phase", wish.on_next_phase)
    computed = ScheduledSequence(0, "decode", 7, (9,), ("!",))
    waits = SuspendedStep(4, samples.LAYERS, (0,), (1,))
    story.go("it waits", tell(PhaseReached(4, samples.LAYERS, Scheduled((computed,)))), story.status(suspended=waits))
    story.go("a layer", tell(PhaseReached(4, samples.LAYERS, LayerDone(0, ()))))
    story.models.selection.update(step=1)
    story.go("a step finishes it, wherever one looks", wish.on_step)
    story.go("it is given up", story.status(suspended=None))
    chosen, rows = ChosenToken(0, 3, "x", (), 1.0, 7, None), WrittenRows(0, 6, 0, 0, 0, 6)
    for phase in (Scheduled((computed,)), Chosen((chosen,)), Written((rows,))):
        story.engine.outbox.append(PhaseReached(4, samples.LAYERS, phase))
    story.go("all of another", story.status(step=4, sequences=(info(0, 8),)), tell(step(4, 4, 3)))


def _look_back(story: Story) -> None:
    wish, tell, models = story.wish, story.tell, story.models
    models.selection.update(position=6)
    story.go("back", wish.on_step_back)
    story.go("on", wish.on_step)
    story.go("the step of a token", wish.on_step_of_token)
    story.go("other sampling", lambda: wish.on_sampling_changed(WARM))
    story.go("to the step of a token", wish.on_run_to_token)
    story.go("a fork", lambda: wish.send(commands.Fork(0)))
    story.go(
        "it is there",
        story.answer(commands.Fork, events.ForkMade(0, 1, 2, 6, "shared")),
        story.status(sequences=(info(0, 8), info(1, 6))),
    )
    story.go("sampling of the one that is selected", lambda: wish.on_sampling_changed(WARM))
    story.go("another one beside", lambda: wish.on_prompt_submitted((5, 6, 7), WARM, alone=False))
    story.go("it is refused", story.answer(commands.SubmitPrompt, events.Failed("There is no room.")))
    story.go("in phases", lambda: wish.on_prompt_submitted(CHAT, WARM, in_phases=True))
    story.go("refused", story.answer(commands.SubmitPrompt, events.Failed("No.")))
    story.go("a conversation goes on", lambda: wish.on_prompt_submitted(CHAT, WARM, alone=False, after=1))
    story.go("refused", story.answer(commands.SubmitPrompt, events.Failed("No.")))
    story.go("nothing is said", lambda: wish.on_prompt_submitted("", WARM))
    many = (info(0, 8), info(1, 6), info(2, 3), info(3, 4))
    story.go("of four", story.status(sequences=many))
    story.go("the one that is selected is removed", lambda: wish.send(commands.RemoveSequence(1)))
    story.go("and one that is not", lambda: wish.send(commands.RemoveSequence(0)))
    story.go("two are left", story.status(sequences=(info(0, 8), info(1, 6))))
    models.selection.update(seq_id=1)
    story.go("one is stopped", lambda: wish.send(commands.StopSequence(1)))
    story.go("it has stopped", story.status(sequences=(info(0, 8), info(1, 6, phase="finished", stop="stopped"))))
    story.go("it is removed", lambda: wish.send(commands.RemoveSequence(1)))
    story.go("gone", story.status(sequences=(info(0, 8),)))
    story.go(
        "another step of a branch",
        lambda: models.selection.update(step=2),
        lambda: wish.send(commands.BeginBranch(0, None, sampling=WARM)),
        lambda: wish.send(commands.BeginBranch(0, None, (7,))),
    )
    story.go(
        "there",
        story.answer(commands.BeginBranch, events.WentTo(2, "a swap", 0.5)),
        story.status(step=2, sequences=(info(0, 6),)),
    )
    story.go("a step of it", tell(step(5, 3, 2)), story.status(step=5, sequences=(info(0, 7),)))
    story.go("from the live step", lambda: wish.send(commands.BeginBranch(0, None, text=" cat")))
    story.go("full", story.status(sequences=(info(0, 7, phase="finished", stop="context full"),)))
    story.go("nothing goes on", lambda: wish.send(commands.BeginBranch(0, None, (9,))))
    story.go("room again", story.status(sequences=(info(0, 7),)))
    story.go("late surprisals", tell(events.PromptSurprisal(0, 0, 1, (1.5, 2.5))))


def _measure(story: Story) -> None:
    wish, tell, kivi = story.wish, story.tell, cache_preset("kivi-2").spec
    asked = (WhatIf(0, kivi), CheckParity(0), MapDamage(0, uniform("int8")), MeasureRegret(0, kivi))
    for question in asked:
        story.go(f"measure {type(question).__name__}", lambda question=question: wish.send(question))
    at = story.engine.id_of(WhatIf)
    story.go("it works", story.status(work=Work("Measuring", 3, 12, reply_to=at)))
    question = story.models.measurements.what_if.question
    story.go("an answer to another", tell(replace(answers.what_if(asked[0], 0.5), reply_to=at - 1)))
    story.go("its own", tell(replace(answers.what_if(question, 0.5), reply_to=at)))
    story.go("one is refused", story.answer(MapDamage, events.Failed("Rows are gone.")))
    story.go("asked anew", lambda: wish.send(asked[2]))
    story.go("given up", lambda: wish.send(commands.Cancel()))
    story.go("it rests", story.status(work=None))
    story.go(
        "asked twice, the older refused",
        lambda: wish.send(asked[1]),
        lambda: wish.send(asked[1]),
        lambda: tell(events.Failed("older", reply_to=story.engine.ids_of(CheckParity)[-2]))(),
    )


def _compare(story: Story) -> None:
    wish, tell = story.wish, story.tell
    story.go("a comparison", comparison(story, 3))
    story.go("it stands", story.answer(commands.StartComparison, samples.comparison_started(2)))
    story.go("a further step, and all rows", tell(samples.compared_step(2), ComparisonScanned(6, None)))
    story.go(
        "another one is refused",
        comparison(story, 90),
        lambda: story.answer(commands.StartComparison, events.Failed("No such step."))(),
    )
    story.go(
        "another one is given up",
        comparison(story, 1),
        lambda: wish.send(commands.Cancel()),
    )
    story.go("too late", story.answer(commands.StartComparison, samples.comparison_started(2)))
    story.go("it ends", lambda: wish.send(commands.EndComparison()), tell(ComparisonEnded("it was removed")))


def _edit(story: Story) -> None:
    wish, tell, models = story.wish, story.tell, story.models
    models.selection.update(step=1)
    story.go("not in the past", lambda: wish.on_edited(Zero(0, FEW)))
    models.selection.update(step=None)
    story.go("beyond the tokens", lambda: wish.on_edited(Zero(0, MANY)))
    story.go("an edit", lambda: wish.on_edited(Zero(0, FEW)))
    node = Node(6, 5, (EditMade(Zero(0, FEW)),), CacheSpec())
    story.go("it is made", story.answer(commands.MakeEdit, events.NodeAdded(node, True, "written in 3 ms", 0.25)))
    story.go("it is measured", tell(EditMeasured(6, 0, 0.5, (), samples.candidates(2), 1.0, 2.0)))
    story.go("some of them, or none", lambda: wish.on_edits_repeated((Mask(0, FEW), Zero(0, MANY))))
    story.go("all of them", lambda: wish.on_edits_repeated((Mask(0, FEW), Zero(0, FEW))))
    other = Node(7, 6, (EditMade(ReplaceTokens(0, 2, (7, 8), "re-prefill", 1)),), CacheSpec())
    story.go(
        "other tokens",
        tell(events.NodeAdded(other, True, "computed anew", None, ("<7>", "<8>"))),
        story.status(step=7, sequences=(info(0, 8),)),
    )
    story.go("undo", lambda: wish.send(commands.UndoEdit()))
    story.go("undone", tell(events.WentTo(6, "a swap", 0.25)), story.status(step=6, sequences=(info(0, 7),)))
    story.go("redo", lambda: wish.send(commands.RedoEdit()))
