"""A stop string ends a sequence with the token that completes it, wherever the borders of tokens are."""

from __future__ import annotations

from functools import cache

import pytest

from engine.errors import InputError
from engine.model.loader import LoadedModel, load
from engine.session.sampler import ends_in
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED, ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.effort import effort
from tests.engine.session.sessions import started

PROMPT = "Once upon a time"


@cache
def bundled() -> LoadedModel:
    return load(ModelSpec(BUNDLED, device="cpu", num_threads=1))


def session_with(*stop: str, prompt: str = PROMPT, spec: CacheSpec | None = None) -> tuple[Session, int]:
    session = Session(bundled(), spec or CacheSpec("growing"))
    return session, session.submit(Prompt(text=prompt, sampling=SamplingParams(stop=stop)))


def generated(session: Session, seq_id: int, most: int = 40) -> str:
    """The text that a sequence generates until it ends, the token that was chosen last included."""
    for _ in range(most):
        if not session.has_work:
            break
        session.step()
    sequence = session.sequence(seq_id)
    ids = [*sequence.token_ids[sequence.num_prompt_tokens :], sequence.sampled]
    return str(session.model.tokenizer.decode(ids, clean_up_tokenization_spaces=False))  # type: ignore[union-attr]


def test_substrings_of_what_is_generated_end_it_where_they_are_complete() -> None:
    whole = generated(*session_with(), most=14)
    for start in range(0, len(whole) - 3, effort(8, 1)):
        for length in (1, 2, 5, 9):
            stop = whole[start : start + length]
            session, seq_id = session_with(stop)
            text = generated(session, seq_id, most=14)
            end = whole.index(stop) + len(stop)
            assert whole.startswith(text)
            assert len(text) >= end
            assert stop in text
            assert session.sequence(seq_id).stop == "stop string"
            ids = session.sequence(seq_id).token_ids
            before = bundled().tokenizer.decode(ids[session.sequence(seq_id).num_prompt_tokens :])  # type: ignore[union-attr]
            assert stop not in before


def test_a_stop_string_in_the_prompt_ends_nothing() -> None:
    session, seq_id = session_with("upon", "time", "e,")
    generated(session, seq_id, most=6)
    assert session.sequence(seq_id).stop is None


def test_it_is_in_the_record_of_the_step_and_a_forced_token_goes_on() -> None:
    session, seq_id = session_with(",")
    record = session.step()
    assert record.sequences[0].sampled_text == ","
    assert record.sequences[0].stop == "stop string"
    assert not session.has_work
    session.force_text(seq_id, " and the")
    session.step()
    assert session.sequence(seq_id).stop is None
    session.set_sampling(SamplingParams(stop=(" a",)), seq_id)
    assert session.has_work


def test_new_stop_strings_hold_from_the_next_token_on() -> None:
    session, seq_id = session_with()
    session.step()
    session.set_sampling(SamplingParams(stop=(",",)), seq_id)
    assert session.sequence(seq_id).stop == "stop string"
    session.set_sampling(SamplingParams(), seq_id)
    assert session.sequence(seq_id).stop is None


def test_half_a_character_completes_nothing_and_its_last_byte_does() -> None:
    tokenizer = bundled().tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("日本", add_special_tokens=False)
    assert len(ids) > 2, "each is several tokens"
    before = tokenizer.encode("so", add_special_tokens=False)
    hits = [ends_in(("日", "本"), [*before, *ids[:n]], n, ids[n], tokenizer) for n in range(len(ids))]
    characters = [tokenizer.decode(ids[: n + 1]).rstrip("\ufffd") for n in range(len(ids))]
    ends = [len(now) > len(then) for then, now in zip(["", *characters], characters, strict=False)]
    assert hits == ends
    assert sum(hits) == 2


def test_a_sequence_resumed_after_a_stop_string_does_not_end_at_once() -> None:
    tokenizer = bundled().tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(" the cat sat", add_special_tokens=False)
    hits = [ends_in((" the",), ids[:n], n, ids[n], tokenizer) for n in range(len(ids))]
    assert sum(hits) == 1


def test_a_batch_ends_one_by_one() -> None:
    session = Session(bundled(), CacheSpec("paged", page_size=4))
    first = session.submit(Prompt(text=PROMPT, sampling=SamplingParams(stop=("little",))))
    other = session.submit(Prompt(text=PROMPT, sampling=SamplingParams()))
    for _ in range(12):
        session.step()
    assert session.sequence(first).stop == "stop string"
    assert session.sequence(other).stop is None
    assert session.sequence(first).num_tokens < session.sequence(other).num_tokens


def test_a_model_without_a_tokenizer_can_write_no_text() -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        started(stop=("a",))


@pytest.mark.parametrize("stop", [("",), ("a" * 201,), tuple("abcdefghijklmnopq"), ("\ud800",)])
def test_an_invalid_stop_string_is_refused_in_a_sentence(stop: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"stop string.*\.$"):
        SamplingParams(stop=stop)
