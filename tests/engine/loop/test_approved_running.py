"""Commands of every kind that arrive in the middle of a run, and what becomes of the run and of them, approved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.condition import Breakpoint, TokenSpan
from engine.spec.edit import parse_edit
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, LogitBias, Prompt, SamplingParams, Turn
from engine.wire import commands as c
from engine.wire.breakpoints import AttentionPlace, MeasureAttention, SetBreakpoints
from engine.wire.comparison import OtherFile, OtherRun, OtherStep
from engine.wire.devices import UnloadModel
from engine.wire.exporting import Export
from engine.wire.measurements import CheckParity, MeasureRegret, WhatIf
from engine.wire.pictures import HeadRequest, OutliersRequest, RowRequest, TableRequest, WallRequest
from tests.engine.loop.story import Script, Story, answers
from tests.engine.tiny import prompt_ids
from tests.engine.told import approve_story

ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))
PAGED = CacheSpec("paged", page_size=4, num_pages=80)
H2O = tuned(cache_named("h2o"), budget=8)
KIVI = tuned(cache_named("kivi-2"), group=16, residual=16)


def prompt(count: int, **more: object) -> c.SubmitPrompt:
    return c.SubmitPrompt(Prompt(token_ids=prompt_ids(count), sampling=ENDLESS), **more)  # type: ignore[arg-type]


def in_the_middle(folder: Path, out: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        model = ModelSpec(str(folder), device="cpu", num_threads=1)
        yield c.LoadModel(model, PAGED)
        yield c.SetPace(None, None)
        yield c.SetSampling(ENDLESS)
        yield (
            (0, prompt(9, num_steps=7)),
            (1, c.Tokenize("ab c")),
            (2, c.TakePicture(WallRequest(0, 10, 9, "keys", False, 8, 6))),
            (2, c.TakePicture(WallRequest(0, 10, 9, "values", False, 8, 6))),
            (2, c.TakePicture(TableRequest(0, 10))),
            (3, c.SetSampling(SamplingParams(0.8, seed=5), 0)),
            (4, c.Watch((c.Watched(RowRequest(0, 0, 3), id=9), c.Watched(OutliersRequest(0, 0, 0, 2), id=8)))),
            (5, c.PreviewPrompt(Prompt(text="ab", chat=None), after=0)),
            (6, c.Force(0, (40, 41))),
        )
        yield (
            (0, c.Run(9)),
            (1, prompt(6, alone=False)),
            (2, prompt(5, alone=False, num_steps=2)),
            (3, c.Fork(0)),
            (4, c.StopSequence(1)),
            (5, c.RemoveSequence(1)),
            (6, c.SetCapture("off")),
            (7, c.SetCapture("everything", by_layer=True)),
            (8, c.Step()),
            (8, c.Step(2)),
        )
        yield ((0, c.Run()), (2, c.Pause()))
        yield ((0, c.Run()), (2, c.Step(3)))
        yield ((0, c.Run()), (2, c.Run(2)), (3, c.Cancel()))
        yield ((0, c.Step(2)), (1, c.Run(9)), (1, c.Cancel()), (1, c.Step()))
        yield (
            (0, c.Run()),
            (1, SetBreakpoints((Breakpoint(1, "step > 3"), Breakpoint(2, 'fed ~ "q"', is_enabled=False)))),
        )
        yield ((0, c.Run(4, until="rows_evicted")), (1, SetBreakpoints(())))
        yield ((0, c.Run(6)), (1, c.Run(3, until="tokens > 90")), (2, c.Run(until="tokens")))
        yield (
            (0, c.Run(5)),
            (1, c.StartComparison(0, OtherRun(H2O))),
            (3, c.TakePicture(HeadRequest(0, 12, "keys", 1, 0, 0, 12, 20), "b")),
        )
        yield ((0, c.Run(3)), (1, c.EndComparison()), (2, c.StartComparison(0, OtherStep(2, 4))))
        yield ((0, c.Run(3)), (1, WhatIf(0, H2O)), (2, CheckParity(0)), (2, MeasureRegret(0, H2O)))
        yield ((0, c.Run(3)), (1, MeasureAttention((AttentionPlace(4, 0, 12),), (TokenSpan(),))), (2, c.Cancel()))
        yield ((0, c.Run(6)), (1, c.MakeEdit(parse_edit("zero pos=0:2 layer=1", 0, 20))), (3, c.UndoEdit()))
        yield ((0, c.Run(6)), (1, c.RedoEdit()), (3, c.MakeEdit(parse_edit("zero pos=90:91", 0, 99))))
        yield ((0, c.Run(6)), (1, c.SetCache(CacheSpec())), (2, c.SetCache(CacheSpec())), (4, c.SetCache(H2O)))
        yield ((0, c.Run(6)), (1, c.GoTo(6)))
        yield ((0, c.Run(6)), (1, c.BeginBranch(0, None, (60, 61))), (3, c.DeleteBranch(story.records[-1].step)))
        yield ((0, c.Run(4)), (1, c.NextPhase()), (1, c.TakePicture(RowRequest(0, 12, 3))), (1, c.NextPhase()))
        for _ in range(2):
            yield c.NextPhase()
        yield ((0, c.Run(2)), (1, c.Step(session=2)), (1, c.Force(9, (1,))), (1, c.SetKeptLimit(-3)))
        yield ((0, c.Run(8)), (2, prompt(7)), (3, c.Run(3)))
        yield ((0, c.Run(5)), (1, prompt(12, after=0, alone=False, num_steps=1)), (2, prompt(3, after=77)))
        turns = Chat((Turn("user", "Hi"),))
        yield ((0, c.Run(4)), (1, c.SubmitPrompt(Prompt(chat=turns), alone=False, in_phases=True)))
        yield c.Step()
        yield ((0, c.Run(4)), (1, Export(out / "x.safetensors", story.records[-1].sequences[0].seq_id)))
        yield (
            (0, c.Run(4)),
            (1, c.StartComparison(story.records[-1].sequences[0].seq_id, OtherFile(out / "x.safetensors"))),
        )
        yield ((0, c.Run(4)), (1, c.LoadModel(ModelSpec("shape:none.json"), PAGED)))
        yield ((0, c.Run(4)), (1, c.OpenSnapshot(out / "x.safetensors")))
        yield c.Continue(model)
        yield ((0, c.Run(4)), (2, c.LoadModel(model, H2O)))
        yield prompt(6, num_steps=2)
        yield ((0, c.Run()), (2, UnloadModel()))

    return script


CONDITIONS = (
    "token = 38", 'token != "q"', 'token ~ "[a-z0-9]"', "fed = 110", 'fed = "W"', 'fed ~ "^.$"', 'text ~ "[a-z].$"',
    'text ~ "zzz"', "entropy > 0.5", "entropy <= 2", "probability < 0.5", "probability > 10%", "margin >= 5%",
    "surprisal > 6", "surprisal <= 6", "attention(0) > 1%", "attention(2-4) > 5%", "peak_attention(last 16) > 90%",
    "attention(last 3) < 0.6", "peak_attention(1) < 0.2", "norm > 1.1", "norm < 1.1", "nonfinite", "nonfinite = 0",
    "rows_evicted > 1", "rows_evicted = 1", "pages_allocated", "pages_shared", "pages_evicted", "pages_moved",
    "preempted", "stored > 6 KiB", "stored < 10000", "reserved >= 40 KiB", "step = 3", "step >= 4", "tokens = 12",
    "sequence = 1", "not sequence = 1 and tokens > 11", "differs", "not differs", "surprisal > 5 or differs",
    "differs and tokens > 5", "not (step < 2 or norm > 9)",
)  # fmt: skip


def asked(folder: Path) -> Callable[[Story], Script]:
    """After every step of two sequences every condition is asked: in pages that are too few, where rows are dropped,
    beside another run, and of steps that measured nothing."""

    def script(story: Story) -> Script:
        yield c.LoadModel(
            ModelSpec(str(folder), device="cpu", num_threads=1), CacheSpec("paged", page_size=4, num_pages=10)
        )
        yield c.SetPace(None, None)
        yield SetBreakpoints(tuple(Breakpoint(number, text) for number, text in enumerate(CONDITIONS)))
        for mode, capture in ((None, "everything"), (KIVI, "rows"), (CacheSpec(), "off"), (H2O, "everything")):
            if mode is not None:
                yield c.SetCache(mode)
            yield c.SetCapture(capture)
            yield prompt(10)
            yield prompt(9, alone=False)
            for _ in range(4):
                yield c.Step()
            if mode == H2O:
                yield c.StartComparison(story.records[-1].sequences[0].seq_id, OtherRun(CacheSpec()))
                yield c.Step()
                yield c.MakeEdit(parse_edit("scale by=9 pos=9:10", story.records[-1].sequences[0].seq_id, 13))
                yield c.Step()

    return script


def test_conditions_are_asked_as_approved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = answers(Story(monkeypatch).run(asked(folder)))
    wanted = ("BreakpointHit", "> ", "Failed", "ComparedStep")
    lines = [line for line in said if line[0].startswith(wanted)]
    approve_story(Path(__file__).parent / "approved" / "conditions.txt", lines)


def test_what_arrives_in_a_run_is_told_as_approved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces of four tokens, so that a prompt is read in several."""
    monkeypatch.setattr("engine.session.chunks.LARGEST", 4)
    approve_story(
        Path(__file__).parent / "approved" / "running.txt", Story(monkeypatch).run(in_the_middle(folder, tmp_path))
    )
