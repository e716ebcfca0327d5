"""The surprisal of a prompt's tokens, of any architecture and any length, in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import Cancelled
from engine.history import history as late_surprisal
from engine.model import batch
from engine.model.batch import Surprisal
from engine.model.loader import LoadedModel
from engine.model.trial_forwards import decoder_of, is_head_apart
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.wire.records import StepRecord
from tests.engine.largest import largest_tensor
from tests.engine.tiny import CONFIGS, model_of, prompt_ids


@pytest.mark.parametrize("architecture", CONFIGS)
def test_it_is_that_of_the_models_own_logits_whatever_the_head_does_to_them(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens at a time, with an architecture's caps and scales of logits, and a model that is as it was after."""
    monkeypatch.setattr(batch, "SLICE_LOGITS", 3 * 128 + 5)
    model, ids = model_of(architecture), prompt_ids(12)
    logprobs = model.reference_logits(torch.tensor([ids])).float().log_softmax(-1)
    session = Session(model, CacheSpec(), prefill_chunk=7)
    session.submit(Prompt(token_ids=ids))
    found = []
    while session.is_prefilling:
        found += session.step().sequences[0].surprisal
    expected = [-float(logprobs[i, t]) for i, t in enumerate(ids[1:])]
    assert found[0] is None
    assert found[1:] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.1, "tokens differ"
    assert "forward" not in vars(model.model.get_decoder())


@pytest.mark.parametrize("layout", ["growing", "none"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_the_logits_of_a_long_prompt_are_never_held_at_once(
    architecture: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one chunk or in whole; an eighth of its logits at a time."""
    monkeypatch.setattr(batch, "SLICE_LOGITS", 12 * 128)
    session = Session(model_of(architecture), CacheSpec(layout))  # type: ignore[arg-type]
    session.submit(Prompt(token_ids=prompt_ids(96)))
    with largest_tensor() as largest:
        record = session.step()
    assert len(record.sequences[0].surprisal) == 96
    assert largest.made(12, 128)
    assert not any(largest.made(n, 128) for n in range(13, 97))


def test_it_is_given_up_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SLICE_LOGITS", 2 * 128)
    calls = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        calls.append(rows.shape[1])
        return torch.zeros(1, rows.shape[1], 128)

    def check() -> None:
        if len(calls) == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        Surprisal(prompt_ids(9), 128).read(torch.zeros(1, 9, 64), head, check)
    assert calls == [2, 2]


def test_a_padded_vocabulary_is_no_surprise() -> None:
    """Ids that no token has stand at minus infinity."""
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [1.0, 1.0, -torch.inf]]])
    of = Surprisal((1, 0), 3)
    of.read(torch.zeros(1, 2, 4), lambda rows: logits[:, : rows.shape[1]])
    assert of.values == pytest.approx([0.6931472])


@pytest.fixture
def in_threes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SLICE_LOGITS", 3 * 128)


@pytest.fixture
def late(in_threes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chunk is too long for its step."""
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 0)


def prefilled(model: LoadedModel, cache: CacheSpec, length: int = 20) -> tuple[Session, list[StepRecord]]:
    session = Session(model, cache, prefill_chunk=9)
    session.submit(Prompt(token_ids=prompt_ids(length)))
    records = []
    while session.is_prefilling:
        records.append(session.step())
    return session, records


def values_of(records: list[StepRecord]) -> list[float | None]:
    return [value for record in records for value in record.sequences[0].surprisal]


@pytest.mark.parametrize("layout", ["growing", "none"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_computed_later_it_is_the_same_to_the_last_bit(
    architecture: str, layout: str, in_threes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record leaves all open but the first tokens of chunks, whose logits are there; slices come in order."""
    model, cache = model_of(architecture), CacheSpec(layout)  # type: ignore[arg-type]
    _, inside = prefilled(model, cache)
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 0)
    session, records = prefilled(model, cache)
    kept, begins = session.history.surprisal, {record.sequences[0].first_position for record in records}
    assert values_of(records) == [value if i in begins else None for i, value in enumerate(values_of(inside))]
    assert kept.num_bytes == (20 - len(records)) * 64 * 4
    found = [(each.step, each.first_position, len(each.values)) for each in kept.finish()]
    if begins == {0, 9, 18}:
        assert found == [(0, 1, 3), (0, 4, 3), (0, 7, 2), (1, 10, 3), (1, 13, 3), (1, 16, 2), (2, 19, 1)]
    assert not kept.is_waiting
    assert kept.num_bytes == 0
    filled = [kept.filled(record) for record in records]
    assert values_of(filled) == values_of(inside)
    assert None not in values_of(filled)[1:]


def test_what_waits_is_counted_as_held_for_looking(late: None) -> None:
    session, records = prefilled(model_of("llama"), CacheSpec())
    before = session.bytes().looking
    own_norms = 2 * 2 * 2 * 2 * 4  # of keys and values in two layers and heads, of the two rows of the last chunk
    assert records[-1].num_bytes.looking == before - own_norms, "those of its own rows are logged with the record"
    list(session.history.surprisal.finish())
    assert before - session.bytes().looking == (8 + 8 + 1) * 64 * 4


def test_a_short_chunk_is_computed_in_its_step(in_threes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of its multiplications: 8 tokens of 64 numbers, times 128 tokens that there are."""
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 8 * 64 * 128)
    assert not prefilled(model_of("llama"), CacheSpec(), 9)[0].history.surprisal.is_waiting
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 8 * 64 * 128 - 1)
    assert prefilled(model_of("llama"), CacheSpec(), 9)[0].history.surprisal.is_waiting


def test_where_too_much_waits_it_is_computed_in_its_step(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_surprisal, "MAX_BYTES", 8 * 64 * 4)
    session, records = prefilled(model_of("llama"), CacheSpec())
    assert session.history.surprisal.num_bytes == 8 * 64 * 4
    assert None not in values_of(records[1:])


def test_slices_are_small_enough_for_a_command_to_wait_for_one() -> None:
    """A head of 576 x 49,152: multiplications, and rows of at least 8 whatever the head."""
    rows: list[int] = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(hidden.shape[1])
        return torch.zeros(1, hidden.shape[1], 49_152)

    waits = Surprisal([5] * 102, 49_152, may_wait=True)
    waits.read(torch.zeros(1, 102, 576), head)
    while waits.is_waiting:
        waits.advance()
    assert rows == [70, 31]
    assert waits.values == pytest.approx([10.8027] * 101, abs=1e-4)
    rows.clear()
    Surprisal([5] * 18, 49_152).read(torch.zeros(1, 18, 1 << 16), head)
    assert rows == [8, 8, 1]


def test_what_was_computed_after_is_kept_by_going_back_and_found_once_more_on_another_branch(late: None) -> None:
    session, records = prefilled(model_of("llama"), CacheSpec())
    list(session.history.surprisal.finish())
    first = [session.history.surprisal.filled(record) for record in records]
    session.go_to(0)
    assert not session.history.surprisal.is_waiting
    again = [records[0], session.step(), session.step()]
    assert session.history.surprisal.filled(again[1]).sequences[0].surprisal[1] is None, "it is another step"
    stays = [session.history.surprisal.filled(record) for record in records]
    assert values_of(stays) == values_of(first), "what was found stays"
    waiting = session.history.surprisal.num_bytes
    session.go_to(1)
    assert session.history.surprisal.num_bytes == waiting
    list(session.history.surprisal.finish())
    assert values_of([session.history.surprisal.filled(record) for record in again]) == values_of(first)


def test_a_removed_sequence_is_dropped_unless_a_fork_has_its_tokens(late: None) -> None:
    session, _ = prefilled(model_of("llama"), CacheSpec())
    session.fork(0, 0)
    session.remove(0)
    assert [(each.step, each.seq_id) for each in session.history.surprisal.finish()] == [(0, 0)] * 3
    session, _ = prefilled(model_of("llama"), CacheSpec())
    session.remove(0)
    assert not session.history.surprisal.is_waiting


def test_a_step_that_fails_leaves_nothing_waiting(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(model_of("llama"), CacheSpec(), prefill_chunk=9)
    session.submit(Prompt(token_ids=prompt_ids(20)))
    session.step()
    held = session.history.surprisal.num_bytes
    monkeypatch.setattr(session.history, "add", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.step()
    assert session.history.surprisal.num_bytes == held


def test_a_slice_that_fails_gives_its_chunk_up_and_no_other(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = prefilled(model_of("llama"), CacheSpec())
    kept = session.history.surprisal
    kept.advance()
    with monkeypatch.context() as patch:
        patch.setattr(batch, "cross_entropy", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            kept.advance()
    assert {each.step for each in kept.finish()} == {1, 2}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_head_is_found_to_be_apart(architecture: str) -> None:
    model = model_of(architecture)
    assert model.has_head_apart
    assert is_head_apart(model.model)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: unspecified launch failure")]
)
def test_memory_that_ran_out_says_nothing_about_a_model(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    geometry = model.info.geometry

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(model.model, "forward", fail)
    for trial in (is_head_apart, lambda tried: decoder_of(tried, geometry)):
        with pytest.raises(type(error), match=str(error)):
            trial(model.model)


@pytest.mark.parametrize("layout", ["growing", "none"])
@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "mamba"])
def test_a_head_that_cannot_be_applied_apart_is_not(
    architecture: str, layout: str, late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose logits depend on more than the last layer's output: they are its own, computed in the step."""
    model, ids = model_of(architecture), torch.tensor([prompt_ids(20)])
    own = model.model.forward

    def forward(input_ids: torch.Tensor, **arguments: Any) -> Any:
        output = own(input_ids, **arguments)
        output.logits = output.logits + input_ids[:, -output.logits.shape[1] :, None] * torch.arange(128) * 1e-3
        return output

    monkeypatch.setattr(model.model, "forward", forward)
    assert not is_head_apart(model.model)
    monkeypatch.setattr(model, "has_head_apart", False)
    logprobs = model.reference_logits(ids).float().log_softmax(-1)
    session, records = prefilled(model, CacheSpec(layout))  # type: ignore[arg-type]
    assert not session.history.surprisal.is_waiting
    expected = [-float(logprobs[i, t]) for i, t in enumerate(prompt_ids(20)[1:])]
    assert values_of(records)[1:] == pytest.approx(expected, abs=1e-4)
