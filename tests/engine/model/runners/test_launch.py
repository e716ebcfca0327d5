"""Steps that are recorded once a length bucket: the fused decoder's tokens, K and V, at every edge of a bucket."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest
import torch

from engine.cache.attention_probe import Probe
from engine.history.state import SharedList
from engine.model.runners.launch import Launch, RerunRecorder, StepFunction, bucket_of, record_weights
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import RunnerName
from engine.spec.sampling import Prompt
from tests.engine.model.runners.test_guard import changes
from tests.engine.session.sessions import set_state
from tests.engine.tiny import model_of, prompt_ids, tiniest_model

LAYOUTS = {
    "growing": CacheSpec("growing"),
    "static": CacheSpec("static", max_length=100),
    "paged": CacheSpec("paged", page_size=8),
}


def session_of(spec: CacheSpec, lengths: Sequence[int], runner: RunnerName = "graph", late_steps: int = 0) -> Session:
    """A session that has read prompts of these lengths."""
    model = model_of("llama")
    runners = Runners(model.runners.decoder, runner)
    runners.announce = Announced()
    session = Session(replace(model, runners=runners), spec, late_steps=late_steps)
    for seed, length in enumerate(lengths):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(length, seed)))
        session.force(seq_id, prompt_ids(40, seed + 50))  # no text ends early
    while session.is_prefilling:
        session.step()
    return session


class Announced(list[str]):
    """What is said of every recording, which is said once it is made and never for a replay."""

    def __call__(self, label: str) -> AbstractContextManager[None]:
        self.append(label)
        return nullcontext()


def num_recorded(session: Session) -> int:
    """How many steps were recorded."""
    announced = session.model.runners.announce
    assert isinstance(announced, Announced)
    return len(announced)


def compare(session: Session, eager: Session) -> None:
    """Logits, attention rows, K and V of both are the same but for rounding."""
    assert session.live.ids == eager.live.ids
    for seq_id in session.live.ids:
        mine, theirs = session.logits(seq_id), eager.logits(seq_id)
        assert mine is not None
        assert theirs is not None
        assert torch.allclose(mine, theirs, atol=1e-5)
        for layer in range(2):
            rows, others = session.cache_of(seq_id).rows(layer), eager.cache_of(seq_id).rows(layer)
            assert rows is not None
            assert others is not None
            assert torch.allclose(rows.keys, others.keys, atol=1e-5)
            assert torch.allclose(rows.values, others.values, atol=1e-5)


def test_buckets_grow_by_a_half_and_a_third_and_never_beyond_the_room() -> None:
    assert [bucket_of(n, None) for n in (1, 64, 65, 96, 97, 128, 129, 192, 193, 3000)] == [
        64, 64, 96, 96, 128, 128, 192, 192, 256, 3072,
    ]  # fmt: skip
    assert bucket_of(97, 100) == 100


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recorded_step_is_the_fused_one_at_every_edge_of_a_bucket(layout: str) -> None:
    """From 62 tokens to 98: in at 63, 64, 65 and 95, 96, 97, where the room of a growing cache doubles as well."""
    session, eager = session_of(LAYOUTS[layout], [62]), session_of(LAYOUTS[layout], [62], "fused")
    for _ in range(36):
        one, other = session.step(), eager.step()
        assert (one.runner, other.runner) == ("graph", "fused")
        assert one.sequences[0].sampled == other.sequences[0].sampled
        mine, theirs = one.sequences[0].attention, other.sequences[0].attention
        assert mine is not None
        assert theirs is not None
        assert mine.recent_mass == pytest.approx(theirs.recent_mass, abs=1e-5)
        compare(session, eager)
    assert session.sequence(0).num_tokens == 98
    assert num_recorded(session) == 3


@pytest.mark.parametrize("length", [62, 94])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_recorded_ahead_of_its_token_is_the_fused_one(layout: str, length: int) -> None:
    """Over the edge of a bucket, of a page, and of the room of a growing cache."""
    session = session_of(LAYOUTS[layout], [length], "graph", late_steps=2)
    eager = session_of(LAYOUTS[layout], [length], "fused")
    for each in (session, eager):
        set_state(each, 0, forced=SharedList())  # what is forced is not launched ahead
        each.step()
    found = [record for _ in range(4) for record in session.step_late()] + session.observer.complete()
    expected = [eager.step() for _ in range(4)]
    session.stepper.discard_ahead()
    assert [part.sampled for record in found for part in record.sequences] == [
        part.sampled for record in expected for part in record.sequences
    ]
    assert {record.runner for record in found} == {"graph"}
    compare(session, eager)
    assert num_recorded(session) == 2


@pytest.mark.parametrize("layout", ["growing", "static"])
def test_what_one_sequence_attends_to_is_not_overwritten_by_the_step_of_the_next(layout: str) -> None:
    """Each has a recording of its own, and all of them lie in one pool."""
    session, eager = session_of(LAYOUTS[layout], [7, 15, 9]), session_of(LAYOUTS[layout], [7, 15, 9], "fused")
    for _ in range(3):
        one, other = session.step(), eager.step()
        assert (one.runner, len(one.sequences)) == ("graph", 3)
        for mine, theirs in zip(one.sequences, other.sequences, strict=True):
            assert mine.attention is not None
            assert theirs.attention is not None
            assert mine.attention.recent_mass == pytest.approx(theirs.attention.recent_mass, abs=1e-5)
        compare(session, eager)


def test_several_sequences_in_pages_are_one_recorded_step() -> None:
    """One comes later, so that pages do not lie in a run; one goes, which is another batch."""
    lengths = [7, 60, 15]
    session, eager = session_of(LAYOUTS["paged"], lengths), session_of(LAYOUTS["paged"], lengths, "fused")
    for step in range(12):
        for each in (session, eager):
            if step == 4:
                each.submit(Prompt(token_ids=prompt_ids(9, 8)))
                each.step()
            if step == 9:
                each.remove(0)
        one, other = session.step(), eager.step()
        assert (one.runner, other.runner) == ("graph", "fused")
        assert [part.sampled for part in one.sequences] == [part.sampled for part in other.sequences]
        for mine, theirs in zip(one.sequences, other.sequences, strict=True):
            assert mine.attention is not None
            assert theirs.attention is not None
            assert mine.attention.first_mass == pytest.approx(theirs.attention.first_mass, abs=1e-5)
        compare(session, eager)
    assert num_recorded(session) == 3, "3 sequences up to 64 tokens, 4 up to 96, 3 up to 96"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_going_back_and_on_replays_the_same_numbers(layout: str) -> None:
    session = session_of(LAYOUTS[layout], [20])
    records = [session.step() for _ in range(6)]
    session.go_to(records[2].step)
    again = [session.step() for _ in range(3)]
    assert [r.checksums for r in again] == [r.checksums for r in records[3:]]
    session.model.runners.choose("fused")
    assert session.step().runner == "fused"
    session.model.runners.choose("graph")
    assert session.step().runner == "graph"
    eager = session_of(LAYOUTS[layout], [20], "fused")
    for _ in range(8):
        eager.step()
    compare(session, eager)


def test_rows_that_were_left_behind_are_not_read_even_where_they_are_no_numbers() -> None:
    """A step reads the room behind the rows, with a weight of zero; zero times NaN is not zero."""
    session, eager = session_of(LAYOUTS["growing"], [20]), session_of(LAYOUTS["growing"], [20], "fused")
    at = session.step().step
    session.step()
    with torch.inference_mode():
        for layer in session.cache_of(0).model_cache.layers:
            layer.keys[:, :, layer.length - 1], layer.values[:, :, layer.length - 1] = torch.nan, torch.nan
    session.go_to(at)
    for _ in range(2):
        eager.step()
    assert session.step().runner == "graph"
    compare(session, eager)


def test_a_step_is_recorded_anew_for_everything_that_is_baked_into_it() -> None:
    session = session_of(LAYOUTS["growing"], [20])
    session.step()
    assert num_recorded(session) == 1
    session.step()
    assert num_recorded(session) == 1
    weight = session.model.model.model.layers[1].mlp.down_proj.weight
    before = weight.data
    weight.data = before.clone()  # the same numbers at another address
    session.step()
    assert num_recorded(session) == 2
    weight.data = before
    session.step()
    assert num_recorded(session) == 2, "the recording of before is still there"
    rotary = session.model.model.model.rotary_emb
    frequencies = rotary.inv_freq
    rotary.inv_freq = frequencies.clone()
    session.step()
    rotary.inv_freq = frequencies
    assert num_recorded(session) == 3, "frequencies that are replaced are read elsewhere"
    session.submit(Prompt(token_ids=prompt_ids(5, 3)))
    session.step()
    session.step()
    assert num_recorded(session) == 4, "another cache is other buffers"


def test_recordings_live_as_long_as_their_cache(launches: WeakSet[Launch]) -> None:
    session = session_of(LAYOUTS["growing"], [20])
    session.step()
    assert len(launches) == 1
    session.remove(0)
    session.forget_history()
    gc.collect()
    assert not launches


@pytest.mark.parametrize("layout", ["growing", "static"])
def test_a_moment_that_is_kept_keeps_no_recordings(layout: str, launches: WeakSet[Launch]) -> None:
    """They would take memory of the card that is in no count."""
    session = session_of(LAYOUTS[layout], [20])
    at = session.step().step
    later, before = session.step(), session.cache_of(0)
    of_before = {*map(id, launches)}
    session.go_to(at)
    assert later.step in session.kept
    assert session.step().runner == "graph"
    gc.collect()
    assert launches
    assert not of_before & {*map(id, launches)}
    session.remove(0)
    gc.collect()
    assert not launches
    assert before.model_cache.layers, "the moment is still there"


def test_on_a_gpu_steps_are_recorded_unless_something_else_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runners, "_has_graphs", True)
    session = session_of(LAYOUTS["growing"], [20], "auto")
    assert session.step().runner == "graph"
    session.model.runners.choose("fused")
    assert session.step().runner == "fused"


@pytest.mark.parametrize(
    ("used", "chosen"),
    [("graph+fused", "graph"), ("fused+graph", "graph"), ("transformers+fused", "fused"), ("graph", "graph")],
)
def test_a_step_of_several_runners_is_repeated_by_the_one_that_was_chosen(used: str, chosen: str) -> None:
    runners = Runners(model_of("llama").runners.decoder)
    with runners.chosen_as(used):
        assert runners.chosen == chosen
    with runners.chosen_as("another"):
        assert runners.chosen == "auto"


def test_caches_that_keep_no_exact_rows_in_place_take_the_fused_decoder() -> None:
    for spec in (CacheSpec("dynamic"), cache_preset("int8").spec, cache_preset("paged-fp8").spec, CacheSpec("none")):
        session = session_of(spec, [10])
        assert session.step().runner == "fused", spec
        assert not session.model.runners.state.note


def test_a_compiled_step_is_the_fused_one_and_is_made_once_for_a_static_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the code that torch writes: `test_compiled_step` has it write some."""
    monkeypatch.setattr("engine.model.runners.compiler.BACKEND", "eager")
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    model, spec = tiniest_model(), CacheSpec("static", max_length=80)
    compiled, fused = (Session(replace(model, runners=Runners(model.runners.decoder, runner)), spec)
                       for runner in ("compile", "fused"))  # type: ignore[arg-type]  # fmt: skip
    compiled.model.runners.announce = Announced()
    for session in (compiled, fused):
        session.force(session.submit(Prompt(token_ids=prompt_ids(62))), prompt_ids(8, 1))
        session.step()
    for _ in range(4):
        one, other = compiled.step(), fused.step()
        assert (one.runner, other.runner) == ("compile", "fused")
        mine, theirs = compiled.logits(0), fused.logits(0)
        assert mine is not None
        assert theirs is not None
        assert torch.allclose(mine, theirs, atol=1e-5)
    assert num_recorded(compiled) == 1


def test_all_that_makes_a_compiled_step_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what comes before and behind the compilation: importing the compiler, and the first call of what it made."""
    twin, record = RerunRecorder(), RerunRecorder.record

    def slowly(step: StepFunction) -> Any:
        time.sleep(0.02)
        return record(twin, step)

    monkeypatch.setattr(twin, "record", slowly)
    monkeypatch.setattr(twin, "name", "compile")
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: twin)
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    session = session_of(LAYOUTS["growing"], [20], "compile")
    first, second = (session.step().timings for _ in range(2))
    assert first.compile_ms >= 20
    assert second.compile_ms == 0


@pytest.mark.parametrize("runner", ["fused", "graph", "compile"])
def test_a_change_of_the_model_behind_a_recording_is_noticed(
    runner: RunnerName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next step the model itself is called, and the runner again when the change is taken back."""
    twin = RerunRecorder()
    monkeypatch.setattr(twin, "name", runner)
    monkeypatch.setattr("engine.model.runners.runners.recorder_of", lambda name, device, compiling: twin)
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    session = session_of(LAYOUTS["growing"], [20], runner)
    used = {}
    for what, change in changes(session.model.model).items():
        before = session.step().runner
        with change():
            used[what] = before, session.step().runner
    assert set(used.values()) == {(runner, "transformers")}, used


def test_of_each_sequence_the_weights_that_it_has_are_shown() -> None:
    """Behind its end a bucket reads what is none of its rows."""
    weights = {layer: torch.rand(2, 3, 8) for layer in (0, 4)}
    both, alone = Probe(), Probe()
    record_weights(both, weights, [4, 6], is_batch=True)
    record_weights(alone, {layer: each[:1] for layer, each in weights.items()}, [4], is_batch=False)
    parts = both.parts
    assert not both.weights
    assert both.is_borrowed
    assert alone.is_borrowed
    for layer, each in weights.items():
        for found, number, count in ((parts[0], 0, 5), (parts[1], 1, 7), (alone, 0, 5)):
            assert torch.equal(found.weights[layer], each[number : number + 1, :, :count])
