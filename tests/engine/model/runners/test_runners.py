"""Which runner computes a step: chosen, recorded, and the same again when the step is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from engine.errors import InputError
from engine.model import attention
from engine.model.batch import Batch
from engine.model.runners import decoder
from engine.model.runners.decoder import PART, product
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.tree import PlannedStep
from tests.engine.tiny import model_of, prompt_ids


def session_of(name: str = "llama") -> Session:
    model = model_of(name)
    session = Session(replace(model, runners=Runners(model.runners.decoder)), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(5)))
    return session


def test_a_record_names_what_computed_it_and_a_choice_counts_from_the_next_step() -> None:
    session = session_of()
    assert session.step().runner == "fused"
    session.model.runners.choose("transformers")
    assert session.step().runner == "transformers"
    session.model.runners.choose("auto")
    assert session.step().runner == "fused"
    handle = session.model.model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert session.step().runner == "transformers"
    handle.remove()
    assert session_of("gpt2").step().runner == "transformers"


def test_a_step_is_repeated_by_the_runner_that_computed_it() -> None:
    session = session_of()
    session.step()
    session.model.runners.choose("transformers")
    record = session.step()
    session.model.runners.choose("auto")
    session.go_to(0)
    repeated = session.stepper.repeat(PlannedStep.of(record))
    assert (repeated.runner, session.model.runners.chosen) == ("transformers", "auto")
    assert repeated.checksums == record.checksums
    assert session.step().runner == "fused"


def test_a_runner_that_the_model_cannot_have_is_refused_with_the_reason() -> None:
    session = session_of("gpt2")
    with pytest.raises(InputError, match="The runner 'fused' cannot compute this model: it needs a decoder of Llama's"):
        session.model.runners.choose("fused")
    assert session.model.runners.state.chosen == "auto"
    assert dict(session.model.runners.state.refused).keys() == {"fused", "graph", "compile"}
    assert not session_of().model.runners.state.refused
    with pytest.raises(InputError, match="Unknown runner 'fast': choose one of auto, transformers, fused"):
        session.model.runners.choose("fast")
    with pytest.raises(InputError, match="Unknown runner"):
        ModelSpec(runner="fast")  # type: ignore[arg-type]


def test_what_was_chosen_before_loading_and_cannot_be_is_said_once() -> None:
    wanted = Runners(None, "fused")
    assert wanted.note.startswith("no fused decoder for this model, which runs through transformers: it needs")
    assert not Runners(None, "transformers").note
    logits = torch.ones(1, 1, 3)
    result = wanted.run(Batch(torch.ones(1, 1, dtype=torch.long), DynamicCache()), lambda batch: logits)
    assert (result.logits is logits, result.runners) == (True, ("transformers",))


def batch_of(name: str, lengths: list[int], page_size: int = 4) -> Session:
    model = model_of(name)
    session = Session(replace(model, runners=Runners(model.runners.decoder)), CacheSpec("paged", page_size=page_size))
    for seed, length in enumerate(lengths):
        session.submit(Prompt(token_ids=prompt_ids(length, seed)))
    while session.is_prefilling:
        session.step()
    return session


@pytest.mark.parametrize("long", [attention.LONG_CONTEXT, 6])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_several_sequences_are_computed_together_and_each_reads_its_own_rows(
    name: str, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths at every edge of a page, of which some lie in one run and one does not. Long ones are gathered in memory
    that is used again."""
    for module in (attention, decoder):
        monkeypatch.setattr(module, "LONG_CONTEXT", long)
    lengths = [3, 4, 5, 11]
    together, padded = batch_of(name, lengths), batch_of(name, lengths)
    padded.model.runners.choose("transformers")
    assert together.model.runners.decoder is not None
    assert together.model.runners.decoder.takes_batches
    for session in (together, padded):
        session.remove(1)  # its pages are taken next, in another order than they lie
        session.submit(Prompt(token_ids=prompt_ids(9, 7)))
        session.step()
    for _ in range(6):
        one, other = together.step(), padded.step()
        assert (one.runner, other.runner) == ("fused", "transformers")
        for mine, theirs in zip(one.sequences, other.sequences, strict=True):
            assert mine.sampled == theirs.sampled
            assert mine.attention is not None
            assert theirs.attention is not None
            assert mine.attention.first_mass == pytest.approx(theirs.attention.first_mass, abs=1e-5)
        for seq_id in together.live.ids:
            mine_now, theirs_now = together.logits(seq_id), padded.logits(seq_id)
            assert mine_now is not None
            assert theirs_now is not None
            assert torch.allclose(mine_now, theirs_now, atol=1e-5)
    for seq_id in together.live.ids:
        for layer in range(2):
            rows, others = together.cache_of(seq_id).rows(layer), padded.cache_of(seq_id).rows(layer)
            assert rows is not None
            assert others is not None
            assert torch.allclose(rows.keys, others.keys, atol=1e-5)
            assert torch.allclose(rows.values, others.values, atol=1e-5)


@pytest.mark.parametrize("count", [1, 4, 8, 15, 16])
def test_the_product_of_a_few_tokens_is_made_in_parts_and_the_same(count: int) -> None:
    rows, weight = torch.randn(count, 1, 64), torch.randn(2 * PART + 7, 64)
    torch.testing.assert_close(product(rows, weight), torch.nn.functional.linear(rows, weight))


def test_what_is_compiled_for_pages_goes_where_all_is_compiled_and_its_seconds_are_counted() -> None:
    runners, told = Runners(None), list[str]()

    def beside(work: Callable[[], None]) -> None:
        told.append("beside")
        work()

    def fails() -> None:
        raise ValueError("no kernel")

    runners.compiling = beside
    runners.pages.compiling(lambda: told.append("a kernel"))
    once = runners.compile_s
    assert once > 0
    with pytest.raises(ValueError, match="no kernel"):
        runners.pages.compiling(fails)
    assert runners.compile_s > once
    assert told == ["beside", "a kernel", "beside"]
