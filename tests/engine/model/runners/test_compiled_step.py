"""transformers' static cache, its decode step compiled: the tokens are those of the same cache without a compiler."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.model.runners import compiler
from engine.model.runners.runners import Runners, are_near
from engine.session.session import Session
from engine.spec.cache import ALL_PRESETS, PRESETS, CacheSpec, cache_named, preset_of
from engine.spec.sampling import Prompt
from engine.wire.records import StepRecord
from tests.engine.tiny import config_dict, model_of, prompt_ids, random_model, tiniest_model

COMPILED, EAGER = CacheSpec("static-compiled", max_length=40), CacheSpec("static", max_length=40)
PROMPT, STEPS = 7, 5  # beyond windows of 8 tokens


def stepped(model: Any, spec: CacheSpec, capture: str = "rows") -> tuple[Session, list[StepRecord]]:
    session = Session(replace(model, runners=Runners(model.runners.decoder)), spec, capture=capture)
    session.force(session.submit(Prompt(token_ids=prompt_ids(PROMPT))), prompt_ids(STEPS, 1))
    return session, [session.step() for _ in range(STEPS)]


def assert_alike(model: Any, *, is_compiled: bool = True) -> Session:
    """The same candidates and attention at every step, and the same rows behind them."""
    (mine, records), (other, expected) = stepped(model, COMPILED), stepped(model, EAGER)
    for one, two in zip(records, expected, strict=True):
        mine_part, other_part = one.sequences[0], two.sequences[0]
        assert [c.token_id for c in mine_part.candidates[:3]] == [c.token_id for c in other_part.candidates[:3]]
        assert torch.allclose(torch.tensor(mine_part.entropy), torch.tensor(other_part.entropy), atol=1e-4)
    for layer in range(len(other.cache_of(0).layers)):
        rows, theirs = mine.cache_of(0).rows(layer), other.cache_of(0).rows(layer)
        assert (rows is None) == (theirs is None)
        if rows is not None and theirs is not None:
            assert rows.first == theirs.first
            assert torch.allclose(rows.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(rows.values, theirs.values, atol=1e-5)
    ways = {record.runner for record in records[1:]}
    assert ways == {"transformers+compile"} if is_compiled else "transformers+compile" not in ways
    return mine


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that torch.compile does but the code that it writes, which takes minutes of a suite."""
    torch.compiler.reset()
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    yield
    torch.compiler.reset()


def test_it_is_a_mode_of_its_own_that_no_sweep_of_all_modes_runs() -> None:
    spec = cache_named("transformers-static-compiled")
    assert preset_of(spec) is ALL_PRESETS["transformers-static-compiled"]
    assert preset_of(spec).name not in PRESETS
    assert (spec.form, spec.is_exact, spec.row.needs_cuda) == ("static", True, False)


@pytest.mark.skipif(bool(compiler.why_not_compiled(torch.device("cpu"))), reason="no C++ compiler is installed")
def test_a_compiled_step_says_what_the_step_says() -> None:
    assert_alike(tiniest_model())


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("architecture", ["mistral", "t5"])
def test_other_architectures_are_compiled_too(architecture: str) -> None:
    """One whose windows slide, which torch compiles anew once they are full, and one behind an encoder."""
    short = random_model({**config_dict("mistral"), "num_hidden_layers": 1}, 0.15)
    session = assert_alike(short if architecture == "mistral" else model_of(architecture))
    assert not session.model.runners.note


@pytest.mark.usefixtures("traced")
def test_a_model_that_cannot_be_compiled_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def failing(graph: Any, inputs: Any) -> Any:
        tried.append(graph)
        raise RuntimeError("no such instruction\nmuch more")

    monkeypatch.setattr(compiler, "BACKEND", failing)
    session = assert_alike(tiniest_model(), is_compiled=False)
    assert len(tried) == 1
    assert "the steps are not compiled" in session.model.runners.note
    assert session.model.runners.note.endswith("no such instruction")


@pytest.mark.usefixtures("traced")
def test_other_numbers_are_noticed_before_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *tensors: tuple(each * 1.001 for each in graph(*tensors))

    monkeypatch.setattr(compiler, "BACKEND", wrong)
    for _ in range(2):  # the second time torch has it already
        session = assert_alike(tiniest_model(), is_compiled=False)
        assert "give other numbers than uncompiled" in session.model.runners.note


@pytest.mark.parametrize(("dtype", "is_rounding"), [(torch.bfloat16, True), (torch.float32, False)])
def test_what_is_rounding_depends_on_the_dtype_of_the_model(dtype: torch.dtype, is_rounding: bool) -> None:
    logits, weights = torch.linspace(-3, 9, 50).to(dtype), torch.linspace(0, 1, 12)
    assert are_near((logits, {0: weights * 1.004}), (logits, {0: weights})) is is_rounding
    assert are_near((logits * 1.004, {0: weights}), (logits, {0: weights})) is is_rounding
    assert not are_near((logits * 1.1, {0: weights}), (logits, {0: weights}))
    assert not are_near((logits, {0: weights * 1.1}), (logits, {0: weights}))


@pytest.mark.usefixtures("traced")
def test_what_memory_runs_out_of_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(graph: Any, inputs: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(compiler, "BACKEND", full)
    with pytest.raises(MemoryError, match="no room"):
        stepped(tiniest_model(), COMPILED)


@pytest.mark.usefixtures("traced")
def test_a_compilation_is_no_part_of_the_step_that_waited_for_it() -> None:
    session, _ = stepped(model := tiniest_model(), EAGER)
    session = Session(replace(model, runners=Runners(model.runners.decoder)), COMPILED)
    session.submit(Prompt(token_ids=prompt_ids(PROMPT)))
    began = time.perf_counter()
    times = [session.step().timings for _ in range(3)]
    took_ms = (time.perf_counter() - began) * 1e3
    compile_ms = times[1].compile_ms
    assert [each.compile_ms for each in times] == [0.0, compile_ms, 0.0]
    assert 0 < compile_ms <= took_ms - sum(each.total_ms for each in times)
    assert compile_ms <= took_ms - sum(each.wall_ms for each in times)


@pytest.mark.usefixtures("traced")
def test_going_back_and_on_counts_the_same_rows() -> None:
    """A step after going back writes where the tokens end, whatever the number on the device was."""
    model = tiniest_model()
    session, records = stepped(model, COMPILED)
    went = session.go_to(records[2].step)
    assert session.sequence(0).num_tokens == records[2].sequences[0].num_tokens, went
    again = [session.step() for _ in range(STEPS - 3)]
    for one, two in zip(again, records[3:], strict=True):
        assert one.checksums == two.checksums
    assert {record.runner for record in again} == {"transformers+compile"}


@pytest.mark.usefixtures("traced")
def test_a_model_whose_step_was_compiled_is_let_go_with_its_session() -> None:
    def compiled() -> weakref.ref[Any]:
        model = random_model({**config_dict("llama"), "num_hidden_layers": 1}, 0.15)
        _, records = stepped(model, COMPILED)
        assert records[-1].runner == "transformers+compile"
        return weakref.ref(model.model)

    held = compiled()
    gc.collect()
    assert held() is None
