"""What is measured of sequences in modes and models of every kind, and why some of it is refused, approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.codec import parse_codec
from engine.spec.edit import parse_edit
from engine.spec.model import ModelSpec
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire import commands as c
from engine.wire.measurements import CheckParity, MapDamage, MeasureRegret, WhatIf
from tests.engine.loop.story import Script, Story, answers
from tests.engine.tiny import prompt_ids, write_config
from tests.engine.told import approve_story

ENDLESS = SamplingParams(bias=LogitBias(banned=(1, 2)))
H2O = tuned(cache_named("h2o"), budget=8)
KIVI = tuned(cache_named("kivi-2"), group=16, residual=16)
CODEC = parse_codec("int8/fp8-head@1=exact")
MODES = (
    CacheSpec(), CacheSpec("paged", page_size=4, num_pages=40), CacheSpec("static", max_length=30), CacheSpec("none"),
    H2O, KIVI, tuned(cache_named("streamingllm+int8"), sinks=1, window=6), tuned(cache_named("paged+tova"), budget=10,
    page_size=2, num_pages=40),
)  # fmt: skip


def of_sequence(seq_id: int) -> Iterator[c.Command]:
    """Everything that can be asked about a sequence."""
    for against in (None, CacheSpec(), KIVI, CacheSpec("static", max_length=12), CacheSpec("none")):
        yield CheckParity(seq_id, against)
    yield WhatIf(seq_id, H2O)
    yield WhatIf(seq_id, CacheSpec(codec=CODEC))
    yield WhatIf(seq_id, tuned(cache_named("sliding"), window=5))
    yield WhatIf(seq_id, CacheSpec("paged"))
    yield MapDamage(seq_id, CODEC, 5)
    yield MapDamage(seq_id, KIVI.codec, 512, budget_bytes=2_000)
    yield MapDamage(seq_id, CODEC, 3, budget_bytes=4_500)
    yield MeasureRegret(seq_id, H2O, 2)
    yield MeasureRegret(seq_id, tuned(cache_named("knorm"), budget=9))


def in_every_mode(folder: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        yield c.LoadModel(ModelSpec(str(folder), device="cpu", num_threads=1), CacheSpec())
        yield c.SetPace(None, None)
        for mode in MODES:
            yield c.SetCache(mode)
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(11), sampling=ENDLESS), num_steps=1)
            seq_id = story.records[-1].sequences[0].seq_id
            yield WhatIf(seq_id, H2O)
            yield c.Step(3)
            yield from of_sequence(seq_id)
        yield c.SetCache(CacheSpec())
        yield c.Fork(seq_id)
        yield c.MakeEdit(parse_edit("scale by=3 pos=5:7 layer=1", seq_id, 14))
        yield c.Step(2)
        yield CheckParity(seq_id)
        yield CheckParity(seq_id, KIVI)
        yield WhatIf(seq_id + 1, H2O)
        yield c.SetCache(H2O)
        yield c.Step()
        yield CheckParity(seq_id)
        yield c.SubmitPrompt(Prompt(token_ids=(5,), sampling=ENDLESS))
        yield from of_sequence(seq_id + 2)
        yield c.Step()
        yield WhatIf(seq_id + 2, H2O)

    return script


def of_every_kind(folder: Path) -> Callable[[Story], Script]:
    def script(story: Story) -> Script:
        for name in ("deepseek_v3", "gemma3_text", "bart", "lfm2"):
            where = folder / name
            where.mkdir()
            yield c.LoadModel(ModelSpec(f"shape:{write_config(name, where)}", device="cpu", num_threads=1), CacheSpec())
            yield c.SubmitPrompt(Prompt(token_ids=prompt_ids(11), sampling=ENDLESS), num_steps=3)
            yield from list(of_sequence(0))[4:]

    return script


@pytest.mark.parametrize("story", ["modes", "models"])
def test_measurements_are_told_as_approved(
    story: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.analysis.what_if.AT_ONCE_S", -1.0)  # an estimate comes first, however fast this is
    script = in_every_mode(folder) if story == "modes" else of_every_kind(tmp_path)
    approve_story(Path(__file__).parent / "approved" / f"measured_{story}.txt", answers(Story(monkeypatch).run(script)))
