"""Every wish in every state that an engine can be in, and why actions are not possible there: what is sent, said and
changed is approved (`approved/states/NAME.txt`): all of it in the usual state, in another one what differs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from app.control.conditions import reasons
from app.dialogs.export import export_of
from app.kit.asking import Question
from engine.spec.bookmark import Bookmark, OnHead, OnStep
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.condition import Breakpoint
from engine.spec.edit import Mask, Rows, Zero
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, Prompt, SamplingParams, Turn
from engine.wire import breakpoints, commands, comparison, devices, events, exporting
from engine.wire.breakpoints import BreakpointState
from engine.wire.commands import GoTo
from engine.wire.comparison import OtherStep
from engine.wire.measurements import CheckParity
from engine.wire.message import Command
from engine.wire.records import EditMade
from engine.wire.status import OpenedFile, SuspendedStep, Work
from engine.wire.tree import Node
from tests.app import samples
from tests.app.control.story import Story, info, step
from tests.approve import approve, short

APPROVED = Path(__file__).parent / "approved"
USUAL, BASE = "two sequences", "nothing is known"
BASES = dict.fromkeys(("a model, no sequence", "it loads", "gone", "silent"), BASE)  # those that are more like this
FILE = OpenedFile(Path("/a/b.safetensors"), 3 << 20, "Other", 4, "", "", "2026-01-02", "kvloupe 1")
LOADING = Work("Loading", 1, 3, can_cancel=False)
WARM = SamplingParams(0.8, seed=7)
CHAT = Chat((Turn("user", "Who?"),))
CHANGED = events.CacheChanged(cache_preset("h2o").spec, "dropped", 3.0, samples.cache_bytes(5))
ENDED = (info(0, 6, phase="finished", stop="end of text"), info(1, 6, phase="finished", stop="end"))
FEW, MANY = Rows(1, 3, (2,), (1,)), Rows(1, 90)


def loaded(story: Story) -> None:
    """A model, and two sequences of four steps with a branch that was left after the second."""
    story.engine.is_silent = True
    story.status(sequences=(info(0, 0, phase="waiting"),))()
    story.engine.outbox.extend(
        (
            events.Restarted(),
            events.Submitted(0, *samples.prompt_tokens()),
            *(step(n, n, n - 1 if n else None, 0, 1) for n in range(4)),
        )
    )
    story.engine.outbox.append(events.WentTo(1, "cropped", 0.5))
    story.engine.outbox.append(step(4, 2, 1, 0, 1))
    node = Node(5, 4, (EditMade(Zero(0, FEW)),), CacheSpec())
    story.engine.outbox.append(events.NodeAdded(node, True, "written", 0.25))
    story.status(
        step=5, sequences=(info(0, 6), info(1, 6)), breakpoints=(BreakpointState(Breakpoint(1, "step = 90")),)
    )()
    story.models.breakpoints.set((Breakpoint(1, "step = 90"), Breakpoint(2, "step = 2", is_enabled=False)))
    story.models.bookmarks.put(Bookmark(OnStep(2), "two"))


def also(**changed: object) -> Callable[[Story], None]:
    """The loaded state with another status."""

    def begin(story: Story) -> None:
        loaded(story)
        story.status(**changed)()

    return begin


def says(*said: events.Event) -> Callable[[Story], None]:
    """The loaded state, and something is said."""

    def begin(story: Story) -> None:
        loaded(story)
        story.engine.outbox.extend(said)

    return begin


def unloaded(story: Story) -> None:
    loaded(story)
    story.engine.outbox.append(devices.Unloaded("Tales", "cpu", 5, 3, 7))
    story.status(model=None, sequences=(), step=None)()


def compared(story: Story) -> None:
    loaded(story)
    story.engine.outbox.append(samples.comparison_started(2))


# A state, and where one looks in it.
STATES: dict[str, tuple[Callable[[Story], None], dict[str, object]]] = {
    "nothing is known": (lambda story: None, {}),
    "a model, no sequence": (lambda story: story.status(sequences=(), step=None)(), {}),
    "it loads": (lambda story: story.status(model=None, sequences=(), work=LOADING)(), {}),
    "two sequences": (loaded, {"position": 2}),
    "the newest token": (loaded, {"position": 5}),
    "a place ahead": (loaded, {"ahead": 4, "seq_id": 1}),
    "an earlier step": (loaded, {"step": 1, "position": 3}),
    "a step that was left": (loaded, {"step": 3, "position": 6, "seq_id": 1}),
    "an area": (loaded, {"area": FEW, "position": 1}),
    "a rule drops rows": (also(cache=cache_preset("h2o").spec), {"position": 2}),
    "before the first step of a mode": (says(CHANGED), {}),
    "it runs": (also(running=True), {}),
    "one has ended": (also(sequences=(ENDED[0], info(1, 6))), {}),
    "all have ended": (also(sequences=ENDED), {}),
    "between two phases": (also(suspended=SuspendedStep(6, 6, (0, 1), (7, 7), 2)), {"step": 1}),
    "it measures": (also(work=Work("Measuring", 1, 3)), {}),
    "a comparison": (compared, {}),
    "a file": (also(opened=FILE), {"position": 2}),
    "a session": (also(opened=replace(FILE, has_rows=False, why_not="no model")), {}),
    "silent": (says(events.EngineLost("it does not answer", has_ended=False)), {}),
    "gone": (says(events.EngineLost("it was killed")), {}),
    "unloaded": (unloaded, {}),
}  # fmt: skip

# A method of the intents and its arguments, or a command.
WISHES: dict[str, Command | tuple[object, ...] | list[tuple[object, ...]]] = {
    "send": (commands.SetCache(cache_preset("int8").spec),),
    "take": (Question(commands.Tokenize("Once")),),
    "on_snapshot_chosen": (Path("/a/c.npz"),),
    "a file goes on": commands.Continue(ModelSpec("org/a")),
    "on_continued": (),
    "on_file_closed": (),
    "a comparison": commands.StartComparison(0, OtherStep(1)),
    "a measurement": CheckParity(0),
    "on_model_chosen": (ModelSpec("org/a", "float16"),),
    "unload": devices.UnloadModel(),
    "on_capture_chosen": ("off",),
    "on_time_by_layer_switched": (),
    "on_prompt_submitted": [
        ("Once", WARM),
        (CHAT, WARM, False, False, 1),
        ("Twice", WARM, False),
        ("Thrice", WARM, True, True),
    ],
    "on_sampling_changed": (WARM,),
    "a fork": commands.Fork(1),
    "branches are joined": commands.JoinBranches((2, 3)),
    "the first is removed": commands.RemoveSequence(0),
    "the second is removed": commands.RemoveSequence(1),
    "on_step": (),
    "on_next_phase": (),
    "on_step_back": (),
    "on_run_or_pause": (),
    "on_run_to": [(3,), ("entropy > 2",)],
    "on_run_here": (),
    "on_run_to_token": (),
    "on_step_of_token": (),
    "on_match_wanted": (1,),
    "on_all_breakpoints_switched": (),
    "cancel": commands.Cancel(),
    "on_go_on_from_here": (),
    "on_returned": (),
    "another token": commands.BeginBranch(0, None, (7,)),
    "another text": commands.BeginBranch(0, None, text="and"),
    "another draw": commands.BeginBranch(0, None, sampling=WARM),
    "a limit": commands.SetKeptLimit(5 << 20),
    "on_bookmark_put": (Bookmark(OnHead(1, 0, 3, 1), "a head"),),
    "on_bookmark_wanted": [(OnStep(2),), (OnStep(77),)],
    "on_edited": [(Zero(0, FEW),), (Zero(0, MANY),)],
    "on_edits_repeated": [((Mask(0, FEW), Zero(0, FEW)),), ((Mask(0, FEW), Zero(0, MANY)),)],
}  # fmt: skip


SESSION = events.SessionOpened(
    "Once", WARM, ((2, "left"),), (Bookmark(OnStep(1), "one"),), ("step = 1", "# step = 2")
)  # fmt: skip
# Pieces of news, each with the kind of the wish that it answers, where it answers one.
NEWS: dict[str, tuple[type | None, events.Event]] = {
    "a step": (None, step(6, 4, 5, 0, 1)),
    "a step of no known parent": (None, step(9, 4, 77, 1)),
    "begun anew": (None, events.Restarted()),
    "a prompt is taken": (commands.SubmitPrompt, events.Submitted(2, (5, 6), ("a", "b"), note="a note")),
    "a fork is made": (commands.Fork, events.ForkMade(1, 3, 2, 5, "rows were copied")),
    "a branch was begun": (commands.BeginBranch, events.WentTo(2, "a swap", 0.5)),
    "the start": (commands.GoTo, events.WentTo(None, "nothing is left", 0.125)),
    "a step that was left": (None, events.WentTo(3, "computed anew", 900.0)),
    "an edit": (None, events.NodeAdded(Node(8, 5, (EditMade(Mask(0, FEW)),), CacheSpec()), True, "hidden", 0.5)),
    "a node elsewhere": (None, events.NodeAdded(Node(8, 3, (EditMade(Mask(0, FEW)),), CacheSpec()), False)),
    "a branch is gone": (None, events.BranchDeleted((1, 2, 3))),
    "surprisals": (None, events.PromptSurprisal(0, 0, 1, (0.5, 0.25))),
    "a step again": (None, events.StepRedone(2, (), ())),
    "all again": (None, events.Redone(3, 4, 1500.0, "a page was lost", 5)),
    "another mode": (None, CHANGED),
    "counted": (commands.Tokenize, events.Tokenized((5, 6), ("a", "b"))),
    "previewed": (commands.PreviewPrompt, events.Previewed((7,), ("c",), "text")),
    "written": (exporting.Export, exporting.Exported(Path("/x.npz"), 5 << 20, 12.0, Path("/x.py"))),
    "not written": (exporting.Export, exporting.ExportCancelled(Path("/x.npz"))),
    "it is refused": (CheckParity, events.Failed("Rows are gone.")),
    "a fork is refused": (commands.Fork, events.Failed("There is no room.")),
    "pictures are refused": (commands.Watch, events.Failed("There is no such head.")),
    "it fails": (None, events.Failed("Something went wrong.")),
    "compared": (commands.StartComparison, samples.comparison_started(2)),
    "compared with something else": (None, samples.comparison_started(3)),
    "a step of both": (None, samples.compared_step(2)),
    "scanned": (None, comparison.ComparisonScanned(6, None)),
    "the comparison ends": (None, comparison.ComparisonEnded("it was removed")),
    "a stop": (None, breakpoints.BreakpointHit(1, "step = 90", 5, 1, "90")),
    "models": (None, events.ModelsFound((events.LocalModel("One", "org/one", "Llama", 5, 6),))),
    "unloaded": (None, devices.Unloaded("Tales", "cuda:0", 5 << 20, 3 << 20, 7 << 20)),
    "silent": (None, events.EngineLost("it does not answer", has_ended=False)),
    "gone": (None, events.EngineLost("it was killed")),
    "busy": (None, events.EngineBusy("a step", 12)),
    "back": (None, events.EngineBack()),
    "a session": (None, SESSION),
}  # fmt: skip
NEWS_IN = (
    "nothing is known",
    "before the first step of a mode",
    "two sequences",
    "an earlier step",
    "a step that was left",
    "a comparison",
    "gone",
)


def conditions_of(story: Story) -> list[str]:
    """What is not there that actions need, and why; without that of each runner and each edit."""
    found = reasons(story.models).items()
    return [f"{name}: {why}" for name, why in found if why and not name.startswith(("runner ", "pages ", "rows to "))]


@cache
def wishes_in(name: str) -> tuple[list[str], dict[str, list[str]]]:
    """What is not possible in a state, and what comes of every wish."""
    begin, viewed = STATES[name]
    story = Story()
    begin(story)
    story.controller.tick()
    story.models.selection.update(**viewed)
    story.go("")
    reasons, found = conditions_of(story), {}
    for wish, given in WISHES.items():
        method, given = ("send", (given,)) if isinstance(given, Command) else (wish, given)
        for number, arguments in enumerate(given if isinstance(given, list) else [given]):
            story.lines.clear()
            story.go(wish, lambda method=method, arguments=arguments: getattr(story.wish, method)(*arguments))
            found[f"{wish}{f' {number + 1}' if number else ''}"] = story.lines[2:]
            story.models.selection.update(**(structs.asdict(type(story.models.selection.now)()) | viewed))
            story.go("")
    return reasons, found


def differing(found: dict[str, list[str]], usual: dict[str, list[str]]) -> Iterator[str]:
    """What came of each thing that was done, but for what comes of it usually."""
    for name, lines in found.items():
        if usual.get(name) != lines:
            yield from (f"== {name}", *map(short, lines)) if lines else (f"== {name}: nothing",)


@pytest.mark.parametrize("name", STATES)
def test_every_wish_in_a_state_is_as_approved(qapp: object, name: str) -> None:
    reasons, found = wishes_in(name)
    known, usual = wishes_in(BASES.get(name, USUAL)) if name not in (USUAL, BASE) else ([], {})
    lines = [line for line in reasons if line not in known]
    approve(APPROVED / "states" / f"{file_of(name)}.txt", [*lines, *differing(found, usual)])


def wait_for_much(story: Story) -> None:
    """Wishes that are on their way."""
    wish = story.wish
    wish.on_prompt_submitted("Twice", WARM, alone=False)
    wish.send(commands.Fork(1))
    wish.send(commands.BeginBranch(0, None, (7,)))
    wish.send(GoTo(2))
    story.ask(commands.Tokenize("Once"))()
    story.ask(commands.PreviewPrompt(Prompt(chat=CHAT), 0))()
    wish.send(CheckParity(0))
    wish.send(commands.StartComparison(0, OtherStep(1)))
    wish.send(export_of(story.models, Path("/x.npz"), None, None))
    story.models.viewport.update(wall_size=(20, 8), head_columns=30, wants_row=True)


@cache
def news_in(name: str) -> dict[str, list[str]]:
    begin, viewed = STATES[name]
    found = {}
    for what, (answered, event) in NEWS.items():
        story = Story()
        begin(story)
        story.controller.tick()
        story.models.selection.update(**viewed)
        if name not in ("nothing is known", "gone"):
            wait_for_much(story)
        story.go("")
        story.lines.clear()
        ids = story.engine.ids_of(answered) if answered is not None else []
        story.go(what, story.tell(replace(event, reply_to=ids[-1]) if ids else event))
        found[what] = story.lines[2:]
    return found


@pytest.mark.parametrize("name", NEWS_IN)
def test_all_news_in_a_state_are_as_approved(qapp: object, name: str) -> None:
    usual = news_in(USUAL) if name != USUAL else {}
    approve(APPROVED / "states" / f"news_{file_of(name)}.txt", list(differing(news_in(name), usual)))


def file_of(state: str) -> str:
    return state.replace(",", "").replace(" ", "_")
