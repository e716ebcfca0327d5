"""Pictures of every kind and size, asked for and watched, where rows were dropped, coded, edited or are not finite,
approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.edit import parse_edit
from engine.spec.model import ModelSpec
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire import commands as c
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    PictureRequest,
    RowRequest,
    TableRequest,
    WallRequest,
)  # fmt: skip
from tests.engine.loop.story import Script, Story, answers
from tests.engine.tiny import prompt_ids
from tests.engine.told import approve_story

ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))
MODES = (
    CacheSpec(),
    CacheSpec("paged", page_size=4, num_pages=40),
    tuned(cache_named("h2o"), budget=12, sinks=0),
    tuned(cache_named("streamingllm+int8"), sinks=2, window=9),
    tuned(cache_named("kivi-2"), group=16, residual=16),
)


def of_all_sizes(seq_id: int, count: int, step: int) -> Iterator[PictureRequest]:
    for columns, rows in ((1, 1), (3, 5), (64, 24), (0, 0)):
        yield WallRequest(seq_id, count, count - 3, "keys", False, columns, rows)
        yield WallRequest(seq_id, count, count - 3, "values", True, columns, rows)
    for start, stop, columns in (
        (0, count, 7),
        (3, 3, 5),
        (5, count, 64),
        (0, 99, 4),
        (count - 1, count, 1),
        (9, 4, 3),
    ):
        yield HeadRequest(seq_id, count, "keys", 1, 1, start, stop, columns)
        yield HeadRequest(seq_id, count, "values", 0, 0, start, stop, columns)
    yield HeadRequest(seq_id, count, "keys", 2, 7, 0, count, 0)
    for start, stop, columns in ((0, None, 64), (3, 9, 2), (5, 99, 4), (4, 4, 1), (0, None, 0)):
        yield AttentionRequest(seq_id, step, 2, columns, start, stop)
    for position in (0, 6, count - 1, count, -1):
        yield RowRequest(seq_id, count, position)
    for number in (1, 0, 50):
        yield OutliersRequest(seq_id, count, step, number)
    yield TableRequest(seq_id, count)


def wrong(seq_id: int) -> tuple[PictureRequest, ...]:
    return (
        HeadRequest(seq_id, 9, "keys", 9, 0, 0, 9, 9), HeadRequest(seq_id, 9, "keys", -1, 0, 0, 9, 9),
        HeadRequest(seq_id, 9, "keys", 0, -1, 0, 9, 9), RowRequest(99, 9, 3), AttentionRequest(seq_id, 1, 5, 9),
        AttentionRequest(seq_id, 999, 0, 9), TableRequest(seq_id, 999), TableRequest(seq_id, -1),
        WallRequest(seq_id, -5, -9, "keys", True, -1, -1), OutliersRequest(seq_id, 999, 999, -4),
    )  # fmt: skip


def of_all_modes(folder: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        yield c.LoadModel(ModelSpec(str(folder), device="cpu", num_threads=1), CacheSpec())
        yield c.SetPace(None, None)
        yield c.SetCapture("everything")
        for request in (WallRequest(0, 3, 2, "keys", False, 8, 8), AttentionRequest(0, 0, 0, 9)):
            yield c.TakePicture(request)
        for seq_id, mode in enumerate(MODES):
            yield c.SetCache(mode)
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(14), sampling=ENDLESS), num_steps=4)
            count, step = 17, story.records[-1].step
            for request in (*of_all_sizes(seq_id, count, step), *of_all_sizes(seq_id, count - 2, step - 2)):
                yield c.TakePicture(request)
        for request in wrong(seq_id):
            yield c.TakePicture(request)
        for scale in (
            "scale by=1e38 pos=2:4 layer=1 head=0 channel=3-4",
            "scale by=-1e9 pos=3 layer=1 head=0 channel=4",
        ):
            yield c.MakeEdit(parse_edit(scale, seq_id, 17))
        yield c.Force(seq_id, (7,))  # else logits that are no numbers end the sequence
        yield c.Step()
        for request in of_all_sizes(seq_id, 18, story.records[-1].step):
            yield c.TakePicture(request)

    return script


def watched_in_all_modes(folder: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        yield c.LoadModel(ModelSpec(str(folder), device="cpu", num_threads=1), CacheSpec())
        yield c.SetPace(None, None)
        for seq_id, mode in enumerate(MODES):
            yield c.SetCache(mode)
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(13), sampling=ENDLESS), num_steps=1)
            few = list(of_all_sizes(seq_id, 14, 0))[1::3]
            extents = ("all", "newest", "fixed")
            yield c.Watch(tuple(c.Watched(each, extents[i % 3], 50 + i) for i, each in enumerate(few)))  # type: ignore[arg-type]
            yield c.Step()
            yield c.Run(3)
            yield c.Force(seq_id, (7, 8))
            yield c.Step(2)
            yield c.NextPhase()
            yield c.NextPhase()
            yield c.Cancel()
            yield c.Step()

    return script


@pytest.mark.parametrize("name", ["pictures", "watched"])
def test_pictures_are_told_as_approved(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = {"pictures": of_all_modes, "watched": watched_in_all_modes}[name]
    approve_story(Path(__file__).parent / "approved" / f"{name}.txt", answers(Story(monkeypatch).run(script(folder))))
