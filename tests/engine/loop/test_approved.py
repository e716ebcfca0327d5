"""All that an engine says in long stories in which commands of every kind occur and everything differs, approved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.condition import Breakpoint, TokenSpan
from engine.spec.edit import parse_edit
from engine.spec.grid import SweepMode, SweepText
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, LogitBias, Prompt, SamplingParams, Turn
from engine.wire import commands as c
from engine.wire.breakpoints import AttentionPlace, MeasureAttention, SetBreakpoints
from engine.wire.comparison import OtherFile, OtherRun, OtherStep
from engine.wire.devices import ForecastLoad, UnloadModel
from engine.wire.exporting import EstimateExport, Export
from engine.wire.measurements import Bench, CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.pictures import AttentionRequest, HeadRequest, RowRequest, TableRequest, WallRequest
from engine.wire.tree import Node
from tests.engine.loop.story import Script, Story, pictures
from tests.engine.tiny import prompt_ids, write_config
from tests.engine.told import approve_story

PAGED = CacheSpec("paged", page_size=4, num_pages=24)
H2O = tuned(cache_named("h2o"), budget=10)
KIVI = tuned(cache_named("kivi-4"), group=8, residual=8)
WARM = SamplingParams(0.9, top_k=50, top_p=0.97, min_p=0.001, seed=11)
ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))


def many_moments(folder: Path) -> Callable[[Story], Script]:
    """Two sequences in pages, watched; branches, edits, stops, phases; other modes; what is measured of all that."""

    def script(story: Story) -> Script:
        spec = ModelSpec(str(folder), device="cpu", num_threads=1)
        yield c.Step()
        yield c.LoadModel(spec, PAGED)
        yield c.SetPace(None, None)
        yield c.SetCapture("everything")
        yield c.SetKeptLimit(1 << 20)
        yield c.SetSampling(WARM)
        yield c.Tokenize("ab c")
        yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(13)), num_steps=2)
        watched = (
            c.Watched(WallRequest(0, 0, 0, "keys", False, 64, 24), id=71),
            c.Watched(HeadRequest(0, 0, "values", 1, 1, 2, 9, 64), "newest", id=72),
            c.Watched(AttentionRequest(0, 0, 2, 64), id=73),
            c.Watched(TableRequest(0, 0), id=74),
        )
        yield c.Watch(watched)
        yield c.SubmitPrompt(
            Prompt(token_ids=(*prompt_ids(13)[:9], 40, 41), sampling=SamplingParams(stop=("q",))), alone=False
        )
        yield c.Step(2)
        yield c.Force(1, (30, 31, 32))
        yield SetBreakpoints(
            (
                Breakpoint(1, "tokens = 16"),
                Breakpoint(2, "probability > 2", is_enabled=False),
                Breakpoint(3, "rows_evicted"),
            )
        )
        yield c.Run(6)
        yield c.Run(3, until="step = 7")
        yield SetBreakpoints(())
        yield c.NextPhase()
        for _ in range(9):
            yield c.NextPhase()
        for request in pictures(1, 12, 6):
            yield c.TakePicture(request)
        yield c.Watch(watched[1:3])
        yield c.SetCapture("statistics")
        yield c.Fork(0)
        yield c.Fork(1, 5)
        yield c.StopSequence(3)
        yield c.Step(2)
        yield c.MakeEdit(parse_edit("scale by=1.5 pos=3:6 layer=1 head=1 part=values", 0, 16))
        yield c.MakeEdit(parse_edit("bias add=20:+9 ban=21", 1, 14))
        yield c.Step(2)
        yield c.UndoEdit()
        yield c.UndoEdit()
        yield c.RedoEdit()
        yield c.GoTo(6)
        yield c.BeginBranch(0, 8, (50, 51), sampling=SamplingParams(seed=3))
        yield c.Step(2)
        yield c.JoinBranches((9,))
        yield c.DeleteBranch(10)
        yield c.DeleteBranch(5)
        yield c.TakePicture(WallRequest(0, 15, 15, "keys", False, 40, 24), node=9)
        yield MeasureAttention(
            (AttentionPlace(3, 0, 15), AttentionPlace(4, 1, 12)), (TokenSpan(0, 3), TokenSpan(0, 0, 4))
        )
        yield c.RemoveSequence(1)
        yield c.StartComparison(0, OtherRun(KIVI))
        yield c.Step(2)
        for side in ("a", "b", "difference"):
            yield c.TakePicture(HeadRequest(0, 12, "keys", 1, 0, 0, 12, 20), side)
        yield c.EndComparison()
        yield c.StartComparison(0, OtherStep(7))
        yield WhatIf(0, H2O)
        yield CheckParity(0)
        yield MapDamage(0, KIVI.codec, 12)
        yield MeasureRegret(0, H2O, 4)
        texts = (SweepText("own", Prompt(token_ids=prompt_ids(10))),)
        modes = tuple(SweepMode(name, spec) for name, spec in (("a", CacheSpec()), ("b", H2O), ("c", KIVI)))
        yield Sweep(texts, 4, modes)
        yield Bench((("growing", CacheSpec()), ("pages", PAGED)), (6,), 2, (1, 2))
        for mode in (CacheSpec(), H2O, KIVI, CacheSpec("static", max_length=40), CacheSpec("none")):
            yield c.SetCache(mode)
            yield c.Step()
            count = max(part.num_tokens for part in story.records[-1].sequences if part.seq_id == 0)
            for request in pictures(0, count, story.records[-1].step)[:3]:
                yield c.TakePicture(request)
        yield c.GoTo(None)

    return script


def files(folder: Path, out: Path) -> Callable[[Story], Script]:
    """A conversation, a pool too small for two, what is written of it, looked at, compared and gone on from; another
    engine that does all of it once more; and what is refused."""

    def script(story: Story) -> Script:
        model = ModelSpec(str(folder), device="cpu", num_threads=1)
        yield ForecastLoad(model, PAGED, 64)
        yield c.LoadModel(model, CacheSpec("paged", page_size=4, num_pages=11))
        yield c.SetPace(None, None)
        turn = Chat((Turn("system", "A"), Turn("user", "Hi")))
        yield c.PreviewPrompt(Prompt(chat=turn))
        yield c.SubmitPrompt(Prompt(chat=turn, sampling=WARM), in_phases=True)
        yield c.TakePicture(RowRequest(0, 9, 3))
        yield CheckParity(0)
        yield c.Step(3)
        yield c.PreviewPrompt(Prompt(chat=turn.answered("x", "Yo")), after=0)
        yield c.SubmitPrompt(Prompt(chat=turn.answered("x", "Yo")), num_steps=2, after=0)
        yield c.SubmitPrompt(Prompt(text="pqr stu", sampling=ENDLESS), alone=False)
        yield c.ForceText(2, "vw")
        yield c.Step(8)
        yield c.SubmitPrompt(
            Prompt(token_ids=prompt_ids(6), sampling=SamplingParams(max_new_tokens=2)), alone=False, num_steps=3
        )
        yield from (
            *(c.Step(0), c.Run(2, until="rows_evicted"), c.GoTo(99), c.Fork(9), c.Force(0, (500,)), c.ForceText(2, "")),
            *(c.SetCache(replace(PAGED, num_pages=3)), c.RemoveSequence(9), c.SetPace(0.0, None), c.SetKeptLimit(-1)),
            *(c.EndComparison(), c.TakePicture(HeadRequest(2, 9, "keys", 7, 0, 0, 9, 9)), MeasureRegret(2, KIVI)),
            *(
                c.MakeEdit(parse_edit("zero pos=40:41", 2, 50)),
                SetBreakpoints((Breakpoint(1, "step = 1"), Breakpoint(1, "step = 2"))),
            ),
            *(WhatIf(9, H2O), c.StartComparison(2, OtherFile(out / "none.safetensors")), c.CloseSnapshot(model)),
            *(c.Continue(model), c.Cancel(), c.Pause(), c.NextPhase(session=3), c.ChooseRunner("transformers")),
            c.ChoosePagedAttention("pages"),
        )
        yield c.RemoveSequence(1)
        yield c.Step(8)
        wanted = Export(out / "x.safetensors", 2, notes="a note", records=story.records[-5:], with_script=True)
        nodes = tuple(Node.of(record) for record in story.records)
        yield EstimateExport(wanted)
        yield wanted
        yield Export(out / "part.safetensors", 2, layers=(1, 2), kv_heads=(1,), form="rows")
        yield Export(out / "x.npz", 2, kind="npz")
        yield c.StartComparison(2, OtherFile(out / "x.safetensors"))
        yield c.Step()
        for name in ("x.safetensors", "part.safetensors", "x.npz"):
            yield c.OpenSnapshot(out / name)
            yield c.Step()
            yield c.Watch((c.Watched(RowRequest(2, 0, 9), id=81),))
            seq_id = 0 if name == "x.npz" else 2
            for request in pictures(seq_id, 12, 20):
                yield c.TakePicture(request)
            yield EstimateExport(Export(out / "y.safetensors", seq_id, 10))
        yield c.CloseSnapshot(model)
        yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(5)), num_steps=2)
        yield c.OpenSnapshot(out / "x.safetensors")
        yield c.Continue(model)
        yield c.Step(2)
        yield c.TakePicture(RowRequest(2, 19, 17))
        yield c.GoTo(None)
        yield c.GoTo(23)
        yield c.SetKeptLimit(1 << 19)
        yield c.SetCapture("everything", by_layer=True)
        yield c.LoadModel(model, CacheSpec("paged", page_size=4, num_pages=11))
        yield c.Redo(nodes, nodes[-2].step)
        yield c.Step()
        yield UnloadModel()
        yield UnloadModel()

    return script


def kinds(folder: Path) -> Callable[[Story], Script]:
    """Layers, codes and states of every kind: stepped, written, looked at in the file, and gone on from."""

    def script(story: Story) -> Script:
        modes = (
            ("deepseek_v3", KIVI),
            ("gemma3_text", CacheSpec("paged", page_size=4)),
            ("lfm2", cache_named("int8")),
            ("bart", CacheSpec("paged", page_size=4)),
            ("mamba", CacheSpec()),
            ("qwen3", tuned(cache_named("streamingllm"), sinks=2, window=7)),
            ("llama", tuned(cache_named("h2o+fp8-max-e8m0"), budget=9, group=8)),
        )
        for name, mode in modes:
            where = folder / name
            where.mkdir()
            model = ModelSpec(f"shape:{write_config(name, where)}", device="cpu", num_threads=1)
            yield c.LoadModel(model, mode)
            yield c.SetPace(None, None)
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(11), sampling=ENDLESS), num_steps=3)
            count = story.records[-1].sequences[0].num_tokens
            yield c.TakePicture(WallRequest(0, count, count - 2, "keys", True, 20, 24))
            written = Export(where / "x.safetensors", 0, form="stored")
            yield EstimateExport(written)
            yield written
            yield Export(where / "rows.safetensors", 0, form="rows", layers=(1,))
            for file in ("rows", "x"):
                yield c.OpenSnapshot(where / f"{file}.safetensors")
                for request in pictures(0, count, 2, layer=1):
                    yield c.TakePicture(request)
            yield c.Continue(model)
            yield c.Step()

    return script


def test_kinds_are_told_as_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approve_story(Path(__file__).parent / "approved" / "kinds.txt", Story(monkeypatch).run(kinds(tmp_path)))


def test_files_are_told_as_approved(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.batch.PRODUCTS_IN_STEP", 0)  # that of a prompt comes behind its step
    approve_story(Path(__file__).parent / "approved" / "files.txt", Story(monkeypatch).run(files(folder, tmp_path)))


def test_many_moments_are_told_as_approved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    lines = story.run(many_moments(folder))
    approve_story(Path(__file__).parent / "approved" / "moments.txt", [*lines, *story.saved()])
