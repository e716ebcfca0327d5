"""Cache modes of every kind: all that an engine says of one text that is stepped, watched, edited and gone back in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.edit import parse_edit
from engine.spec.model import ModelSpec
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire import commands as c
from engine.wire.pictures import HeadRequest, OutliersRequest, RowRequest, WallRequest
from tests.engine.loop.story import Script, Story, pictures
from tests.engine.tiny import prompt_ids
from tests.engine.told import approve_story

ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))
FEW_PAGES = {"page_size": 2, "num_pages": 40}
# what is done by hand in each mode, behind a prompt of 15 tokens and two more
MODES: tuple[tuple[CacheSpec, tuple[str, ...]], ...] = (
    (tuned(cache_named("paged+h2o"), budget=12, sinks=1, **FEW_PAGES), ("pin pos=12:14", "unpin pos=13")),
    (tuned(cache_named("paged+streamingllm+int8"), sinks=2, window=7, **FEW_PAGES), ("zero pos=0 layer=1 part=keys",)),
    (tuned(cache_named("paged+snapkv"), budget=12, sinks=0, **FEW_PAGES), ("mask pos=14:16 layer=0-1",)),
    (cache_named("fp8-token-head/int8"), ("noise ratio=0.5 seed=3 pos=2:5 head=1", "drop pos=4:6")),
    (tuned(cache_named("int8/kivi-2"), group=16, residual=16), ("replace pos=3:5 tokens=17,18",)),
    (cache_named("exact@0-1=int8"), ("replace pos=3:5 tokens=17,18,19 how=re-prefill",)),
    (tuned(cache_named("streamingllm"), sinks=2, window=6, rerotate=True), ("scale by=-2 pos=0:2",)),
    (tuned(cache_named("tova+int8"), budget=9), ("pin pos=16", "overwrite shift=-1 pos=16 layer=2")),
    (tuned(cache_named("pyramidkv"), budget=8), ("mask pos=15 head=1", "drop pos=15 layer=2")),
    (CacheSpec("static", max_length=28), ("overwrite step={first} pos=4:6 shift=-1 channel=0-7", "unmask pos=1:3")),
    (CacheSpec("none"), ("replace pos=10:12 tokens=9 how=re-prefill",)),
)  # fmt: skip


def all_modes(folder: Path) -> Callable[[Story], Script]:
    """In each mode the same text, of which everything is watched: edits by hand, undone; an earlier moment, another
    road from there; pictures of what that step changed."""

    def script(story: Story) -> Script:
        yield c.LoadModel(ModelSpec(str(folder), device="cpu", num_threads=1), CacheSpec())
        yield c.SetPace(None, None)
        yield c.SetKeptLimit(0)
        for seq_id, (mode, edits) in enumerate(MODES):
            yield c.SetCache(mode)
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(15), sampling=ENDLESS))
            yield c.Step()
            first = story.records[-1].step
            yield c.Watch(
                (
                    c.Watched(WallRequest(seq_id, 15, 14, "keys", True, 64, 24), id=1),
                    c.Watched(WallRequest(seq_id, 15, 15, "values", False, 8, 5), id=2),
                    c.Watched(HeadRequest(seq_id, 15, "values", 1, 1, 0, 15, 8), id=3),
                    c.Watched(HeadRequest(seq_id, 15, "keys", 2, 0, 9, 15, 64), "newest", id=4),
                    c.Watched(RowRequest(seq_id, 15, 14), id=5),
                    c.Watched(OutliersRequest(seq_id, 15, 0, 3), id=6),
                )
            )
            yield c.Step(2)
            for edit in edits:
                yield c.MakeEdit(parse_edit(edit.format(first=first), seq_id, 17))
                yield c.Step()
            yield c.UndoEdit()
            yield c.GoTo(first + 1)
            yield c.BeginBranch(seq_id, None, (40,))
            yield c.Step(2)
            for request in pictures(seq_id, 18, story.records[-1].step):
                yield c.TakePicture(request)

    return script


def test_modes_are_told_as_approved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approve_story(Path(__file__).parent / "approved" / "modes.txt", Story(monkeypatch).run(all_modes(folder)))
