"""Runs, steps and files of every kind beside each other, their pictures, and why some are not compared, approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.edit import parse_edit
from engine.spec.model import ModelSpec
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire import commands as c
from engine.wire.comparison import Opponent, OtherFile, OtherRun, OtherStep
from engine.wire.exporting import Export
from tests.engine.loop.story import Script, Story, answers, pictures
from tests.engine.tiny import prompt_ids, write_config
from tests.engine.told import approve_story

ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))
H2O = tuned(cache_named("h2o"), budget=8)
KIVI = tuned(cache_named("kivi-2"), group=16, residual=16)
PAGED = CacheSpec("paged", page_size=4, num_pages=40)


def beside(seq_id: int, against: Opponent, count: int, step: int) -> Iterator[c.Command]:
    """Start it, step, and look at every side."""
    yield c.StartComparison(seq_id, against)
    yield c.Step(2)
    for side in ("a", "b", "difference"):
        for request in pictures(seq_id, count, step):
            yield c.TakePicture(request, side)  # type: ignore[arg-type]


def compared(folder: Path, out: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        model = ModelSpec(str(folder), device="cpu", num_threads=1)
        (out / "other").mkdir()
        other = ModelSpec(f"shape:{write_config('llama', out / 'other')}", device="cpu")
        yield c.LoadModel(model, PAGED)
        yield c.SetPace(None, None)
        yield c.SetCapture("everything")
        yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(12), sampling=ENDLESS), num_steps=4)
        yield Export(out / "four.safetensors", 0)
        for against in (OtherRun(CacheSpec()), OtherRun(H2O), OtherRun(KIVI), OtherRun(CacheSpec("none"))):
            step = story.records[-1].step
            yield from beside(0, against, story.records[-1].sequences[0].num_tokens, step)
        another = OtherRun(CacheSpec(), other)
        for against in (another, OtherStep(99), OtherStep(3, 3), OtherFile(out / "no.npz")):
            yield c.StartComparison(0, against)
        yield c.StartComparison(9, OtherStep(2))
        yield from beside(0, OtherFile(out / "four.safetensors"), 15, 3)
        yield from beside(0, OtherStep(2), 14, 2)
        yield c.GoTo(5)
        yield c.BeginBranch(0, None, (60, 61))
        yield c.Step(3)
        yield Export(out / "eight.safetensors", 0)
        yield from beside(0, OtherStep(8), 19, story.records[-1].step)
        yield from beside(0, OtherStep(2, 9), 14, 2)
        yield c.StartComparison(0, OtherRun(H2O))
        yield c.MakeEdit(parse_edit("zero pos=4:8 layer=1 head=0", 0, 21))
        yield c.Step()
        yield c.SetCache(KIVI)
        yield c.Step()
        yield c.GoTo(4)
        yield c.RemoveSequence(0)
        yield c.TakePicture(pictures(0, 9, 2)[0], "b")
        yield c.OpenSnapshot(out / "four.safetensors")
        for against in (OtherFile(out / "eight.safetensors"), OtherRun(H2O)):
            yield from beside(0, against, 15, 3)
        yield c.StartComparison(0, OtherStep(2))
        yield c.StartComparison(0, another)
        yield c.CloseSnapshot(model)

    return script


def test_comparisons_are_told_as_approved(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = answers(Story(monkeypatch).run(compared(folder, tmp_path)))
    approve_story(Path(__file__).parent / "approved" / "compared.txt", lines)
