"""The later part of the story of `test_approved.py`: other branches, files, and an engine that is lost."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from app.dialogs.export import export_of
from engine.spec.bookmark import Bookmark, OnHead, OnPage, OnStep, OnToken
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows
from engine.spec.model import BUNDLED_NAME, ModelSpec
from engine.spec.sampling import Chat, SamplingParams, Turn
from engine.wire import commands, devices, events, exporting
from engine.wire.comparison import OtherStep
from engine.wire.measurements import CheckParity
from engine.wire.records import SamplingChanged, SequenceForked
from engine.wire.status import OpenedFile
from engine.wire.tree import Node
from tests.app import samples
from tests.app.control.story import Story, info, step

CHAT = Chat((Turn("user", "Who?"),))
WARM = SamplingParams(0.8, seed=7)
FEW, MANY = Rows(1, 3, (2,), (1,)), Rows(1, 90)


def of_branches(story: Story) -> None:
    wish, tell, models = story.wish, story.tell, story.models
    story.go("another branch is viewed", lambda: models.selection.update(step=3))
    story.go("its newest", wish.on_step, wish.on_step)
    story.go("it is the live one", wish.on_go_on_from_here)
    story.go(
        "there",
        story.answer(commands.GoTo, events.WentTo(4, "computed anew", 900.0)),
        story.status(step=4, sequences=(info(0, 8),)),
    )
    story.go("return", wish.on_returned)
    story.go("run to a place ahead", lambda: models.selection.update(ahead=5), wish.on_run_here)
    story.go("run to a moment", lambda: models.selection.update(step=5), wish.on_run_here)
    story.go("look there no more", lambda: models.selection.update(step=None))
    story.go(
        "the start",
        tell(events.WentTo(None, "nothing is left", 0.125)),
        story.status(step=None, sequences=(info(0, 0, phase="waiting"),)),
    )
    story.go("what is left is ahead", lambda: models.selection.update(step=3, position=6))
    story.go("run to it", wish.on_run_here)
    story.go("run to its token", lambda: models.selection.update(step=3, position=6), wish.on_run_to_token)
    story.go("return to what was left", wish.on_returned)
    story.go(
        "a node that is not live",
        tell(
            events.NodeAdded(Node(8, None, (SamplingChanged(0, WARM), SequenceForked(2, 0, None)), CacheSpec()), False)
        ),
    )
    story.go("names", lambda: models.history.rename(5, "other"), lambda: models.history.rename(1, "none"))
    story.go(
        "bookmarks",
        *(
            lambda one=one: wish.on_bookmark_put(one)
            for one in (
                Bookmark(OnStep(3), "three"),
                Bookmark(OnToken(5, 0, 6), "token"),
                Bookmark(OnHead(4, 0, 3, 1)),
                Bookmark(OnPage(2, 1, 9)),
            )
        ),
    )
    for target in (OnToken(5, 0, 6), OnHead(4, 0, 3, 1), OnPage(2, 1, 9), OnStep(90)):
        story.go(f"look at {target}", lambda target=target: wish.on_bookmark_wanted(target))
    story.go(
        "a branch goes",
        lambda: models.selection.update(step=5),
        lambda: wish.send(commands.DeleteBranch(5)),
        tell(events.BranchDeleted((5,))),
    )
    story.go("joined", lambda: wish.send(commands.JoinBranches((3, 4))))
    story.go("it came beside", story.answer(commands.JoinBranches, events.ForkMade(0, 3, 3, 7, "rows were copied")))
    story.go("a step there", tell(step(9, 0, None)), story.status(step=9, sequences=(info(0, 4),)))


def of_files(story: Story) -> None:
    wish, tell, models = story.wish, story.tell, story.models
    path, other = Path("/nowhere/a.safetensors"), Path("/nowhere/b.npz")
    story.go(
        "an estimate, and another",
        story.ask(exporting.EstimateExport(export_of(models, path, 9, 9)), "estimate"),
        story.ask(exporting.EstimateExport(export_of(models, other, None, None)), "estimate"),
    )
    first = story.engine.ids_of(exporting.EstimateExport)[0]
    story.go("the first is told to nobody", tell(exporting.ExportEstimate(1, 2, 3, "", reply_to=first)))
    story.go("the second", story.answer(exporting.EstimateExport, exporting.ExportEstimate(4, 5, 6, "")))
    story.go(
        "one is refused",
        story.ask(exporting.EstimateExport(export_of(models, path, None, None)), "estimate"),
        lambda: story.answer(exporting.EstimateExport, events.Failed("There is no room."))(),
    )
    story.go("written", lambda: wish.send(export_of(models, path, None, 0, notes="mine")))
    assert story.requests.exports.is_writing(path)
    assert not story.requests.exports.is_writing(other)
    story.go("done", story.answer(exporting.Export, exporting.Exported(path, 5 << 20, 1500.0, Path("/nowhere/a.py"))))
    assert not story.requests.exports.is_writing(path)
    story.go(
        "another is cancelled",
        lambda: wish.send(export_of(models, other, 9, 9)),
        lambda: story.answer(exporting.Export, exporting.ExportCancelled(other))(),
    )
    assert not story.requests.exports.is_writing(other)
    story.go("a file", lambda: wish.on_snapshot_chosen(path))
    model = replace(samples.model_info("Far"), source="/home/far", fingerprint="far")
    file = OpenedFile(path, 9, "Far", 3, "", "", "", "")
    story.go(
        "it is open",
        tell(events.Restarted(), step(0, 0, None, 4), step(1, 1, 0, 4)),
        story.status(model=model, opened=file, sequences=(info(4, 6),), step=1),
    )
    opened = events.SessionOpened(
        "a draft", WARM, ((0, "mine"), (1, "nobody")), (Bookmark(OnStep(0), "old"),), ("step = 4", "nonsense")
    )
    story.go("with what a person wrote", tell(opened))
    story.go("nobody knows its model", wish.on_continued)
    story.go("a person does", lambda: wish.send(commands.Continue(ModelSpec("/home/near"))))
    story.go("it is closed", wish.on_file_closed)
    bundled = replace(file, model=BUNDLED_NAME)
    story.go("one of the bundled model", story.status(opened=bundled), wish.on_continued)
    known = replace(model, fingerprint=samples.model_info().fingerprint, dtype="float32", num_threads=2)
    story.go("a session of a model that was here", story.status(model=known, opened=replace(file, has_rows=False)))
    story.go("goes on", wish.on_continued)
    story.go(
        "from a window of this program", lambda: setattr(wish, "sessions_folder", Path("/nowhere")), wish.on_continued
    )
    story.go(
        "closed",
        tell(events.Restarted()),
        story.status(model=samples.model_info(), opened=None, sequences=(), step=None),
    )


def lose(story: Story) -> None:
    wish, tell = story.wish, story.tell
    for number in range(3):
        story.engine.outbox.append(step(number, number, number - 1 if number else None))
    story.go("three steps", story.status(sequences=(info(0, 6),), step=2, pending=(SamplingChanged(0, WARM),)))
    story.go(
        "much is asked",
        lambda: wish.send(CheckParity(0)),
        lambda: wish.send(commands.Fork(0)),
        lambda: wish.send(commands.StartComparison(0, OtherStep(1))),
        lambda: wish.send(export_of(story.models, Path("/x.npz"), None, None)),
    )
    story.go("busy", story.status(running=True), tell(events.EngineBusy("a step", 12)))
    story.go("no more", tell(events.EngineBusy("", 0)))
    story.go("silent", tell(events.EngineLost("the engine does not answer", has_ended=False)))
    story.go(
        "what is typed is counted by nobody",
        story.ask(commands.Tokenize("x")),
    )
    story.go("back", tell(events.EngineBack()))
    story.go("gone", tell(events.EngineLost("the engine was killed")))
    story.go("a wish leaves that in sight", wish.on_step)
    story.go("begun again", lambda: story.models.status.set_engine("process"), story.controller.replay)
    story.go("its own beginning", tell(events.Restarted()), story.status(sequences=(), step=None, pending=()))
    story.go("a step once more", tell(events.StepRedone(0, (), ())))
    story.go(
        "all of them",
        tell(events.Redone(1, 2, 1500.0, why_not_all="a page was lost", num_computed_anew=5)),
        story.status(sequences=(info(0, 5),), step=1),
    )
    story.go("unloaded", lambda: story.models.selection.update(step=0), lambda: wish.send(devices.UnloadModel()))
    story.go(
        "let go",
        tell(devices.Unloaded("Tales", "cpu", 5 << 20, 3 << 20, 7 << 20)),
        story.status(model=None, sequences=(), step=None),
    )
    story.go("nothing but an answer", tell(events.Stopped()))
