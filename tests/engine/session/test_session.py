"""The session: what a step records, how it stops, how it goes back, and that a failed step changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import Cancelled, InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import AttentionRequest
from tests.engine.faults import Injected, counting, failing_at
from tests.engine.tiny import model_of, prompt_ids

LOSSLESS = [name for name, preset in PRESETS.items() if preset.lossless]
GROWING = CacheSpec("growing")


def started(
    architecture: str = "llama", cache: CacheSpec = GROWING, length: int = 8, chunk: int = 128, **sampling: Any
) -> tuple[Session, int]:
    session = Session(model_of(architecture), cache, prefill_chunk=chunk)
    return session, session.submit(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams(**sampling)))


# ---- a failed step changes nothing -------------------------------------------------------------------------------


def facts(session: Session) -> dict[str, object]:
    """All of a session's state but the tensors."""
    return {
        "step": session.last_step,
        "sequences": {
            s.seq_id: (s.mark(), tuple(s.token_ids), s.num_preemptions)
            for s in (live.sequence for live in session.live)
        },
        "state": [(i.state, i.stop) for i in session.sequences],
        "journal": len(session.history.journal),
        "has_work": session.has_work,
        "attention": sorted(session.history.attention._entries),
        "logits": sorted(session.history.logits._entries),
        "bytes": (session.history.attention.num_bytes, session.history.logits.num_bytes),
    }


def tensors(session: Session) -> dict[tuple[object, ...], torch.Tensor]:
    found: dict[tuple[object, ...], torch.Tensor] = {}
    for seq_id in session.live.ids:
        newest = session.logits(seq_id)
        if newest is not None:
            found[seq_id, "logits"] = newest.clone()
        if session.live.get(seq_id).is_stale:
            continue  # computed again, to the bit, before the next step
        cache = session.cache_of(seq_id)
        found[seq_id, "length"] = torch.tensor(cache.num_tokens)
        for layer in range(len(cache.layers)):
            rows = cache.rows(layer)
            if rows is not None and rows.keys.shape[2]:
                found[seq_id, layer, "keys", rows.first] = rows.keys.clone()
                found[seq_id, layer, "values", rows.first] = rows.values.clone()
    return found


def stale(session: Session) -> set[int]:
    """Sequences whose caches are to be filled again."""
    return {live.seq_id for live in session.live if live.is_stale}


def same(one: dict[tuple[object, ...], torch.Tensor], other: dict[tuple[object, ...], torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def prepared(architecture: str, cache: str, phase: str) -> Session:
    """A session about to do its first chunk, its second, a decode step, or a decode step of two sequences."""
    session, first = started(architecture, PRESETS[cache].spec, chunk=5)
    session.force(first, prompt_ids(20, seed=3))
    for _ in range({"first chunk": 0, "second chunk": 1, "decode": 3, "two sequences": 3}[phase]):
        session.step()
    if phase == "two sequences":
        second = session.submit(Prompt(token_ids=prompt_ids(6, seed=4)))
        session.force(second, prompt_ids(20, seed=5))
        for _ in range(3):
            session.step()
    return session


CASES = [
    *(("llama", cache, phase) for cache in LOSSLESS for phase in ("first chunk", "second chunk", "decode")),
    *(("llama", cache, "two sequences") for cache in ("growing", "dynamic", "static", "paged")),
    *((name, cache, "decode") for name in ("lfm2", "mistral", "gpt_oss") for cache in ("growing", "dynamic", "paged")),
    ("lfm2", "paged", "second chunk"),
    ("mistral", "static", "second chunk"),
]


@pytest.mark.parametrize(("architecture", "cache", "phase"), CASES)
def test_a_step_that_fails_anywhere_changes_nothing(architecture: str, cache: str, phase: str) -> None:
    """Every call of the engine's and the model's own functions fails once; then the step goes as if nothing had."""
    session, twin = prepared(architecture, cache, phase), prepared(architecture, cache, phase)
    with counting() as clean:
        expected = twin.step()
    every = 1 if cache == "growing" and architecture == "llama" else 4
    before, held = facts(session), tensors(session)
    number, outcome = 1, failing_at(1, session.step)
    while isinstance(outcome, Injected):
        assert facts(session) == before, f"call {number} of {clean.seen}, {outcome}"
        now = tensors(session)
        assert same({k: v for k, v in held.items() if k in now or k[0] not in stale(session)}, now), str(outcome)
        number += every
        outcome = failing_at(number, session.step) if number <= clean.seen else session.step()
    assert number > clean.seen * 0.8, "some calls happen only once, but not so many"
    record = outcome
    assert [s.token_ids for s in record.sequences] == [s.token_ids for s in expected.sequences]
    assert [s.sampled for s in record.sequences] == [s.sampled for s in expected.sequences]
    for one, other in zip(record.sequences, expected.sequences, strict=True):
        assert [x is None for x in one.surprisal] == [x is None for x in other.surprisal]
        assert [x or 0.0 for x in one.surprisal] == pytest.approx([x or 0.0 for x in other.surprisal], abs=1e-4)
    assert record.step == expected.step
    assert same(tensors(session), tensors(twin))
    assert record.num_bytes.stored == expected.num_bytes.stored


@pytest.mark.parametrize("cache", ["growing", "dynamic", "static", "paged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])  # through the decoder; through transformers
def test_a_prefill_that_is_cancelled_between_two_layers_changes_nothing(architecture: str, cache: str) -> None:
    """At every look in turn, in the second chunk of three; then it goes as if nothing had been."""
    session, twin = (prepared(architecture, cache, "second chunk") for _ in range(2))
    before, held = facts(session), tensors(session)
    looks: list[int] = []
    twin.step(lambda: looks.append(0))
    assert len(looks) >= 2, "one of every layer"
    for last in range(1, len(looks) + 1):
        remaining = iter(range(1, last))

        def check(remaining: Iterator[int] = remaining) -> None:
            if next(remaining, None) is None:
                raise Cancelled

        with pytest.raises(Cancelled):
            session.step(check)
        assert facts(session) == before
        now = tensors(session)
        assert same({k: v for k, v in held.items() if k in now or k[0] not in stale(session)}, now)
    session.step()
    assert same(tensors(session), tensors(twin))
    newest, expected = session.logits(0), twin.logits(0)
    assert newest is not None
    assert expected is not None
    assert torch.equal(newest, expected)


def test_a_decode_step_is_not_interrupted() -> None:
    session, _ = started()
    session.step()
    session.step(lambda: pytest.fail("a decode step is short"))


def test_a_prompt_that_is_refused_changes_nothing() -> None:
    session, seq_id = started()
    session.step()
    before = facts(session)
    for prompt in (prompt_ids(129), (5, 128), (-1,)):
        with pytest.raises(InputError):
            session.submit(Prompt(token_ids=prompt))
    with pytest.raises(InputError, match="no tokenizer"):
        session.submit(Prompt(text="text"))
    assert facts(session) == before
    assert [i.seq_id for i in session.sequences] == [seq_id]


def test_a_cache_that_is_refused_leaves_the_old_one() -> None:
    session, seq_id = started(length=20)
    session.step()
    held = tensors(session)
    for spec in (
        CacheSpec("static", max_length=10),
        CacheSpec("static", max_length=1000),
        CacheSpec("paged", num_pages=2),
    ):
        with pytest.raises(InputError):
            session.set_cache(spec)
        assert session.cache == GROWING
        assert same(tensors(session), held)
    session.step()
    assert session.sequence(seq_id).num_tokens == 21


@pytest.mark.parametrize("cache", [n for n in LOSSLESS if n != "growing"])
def test_a_change_of_cache_that_fails_leaves_the_old_one(cache: str) -> None:
    session, _ = started("mistral", length=20, chunk=6)
    for _ in range(4):
        session.step()
    before, held = facts(session), tensors(session)
    number, outcome = 1, failing_at(1, lambda: session.set_cache(PRESETS[cache].spec))
    while isinstance(outcome, Injected):
        assert session.cache == GROWING, str(outcome)
        assert facts(session) == before, str(outcome)
        assert same(tensors(session), held), str(outcome)
        number += 5
        outcome = failing_at(number, lambda: session.set_cache(PRESETS[cache].spec))
    assert session.cache == PRESETS[cache].spec
    session.step()


# ---- sequences ---------------------------------------------------------------------------------------------------


def test_several_sequences_do_not_disturb_each_other() -> None:
    session = Session(model_of("llama"), GROWING, prefill_chunk=4)
    prompts = [prompt_ids(n, seed=n) for n in (3, 9, 6)]
    ids = [session.submit(Prompt(token_ids=p)) for p in prompts]
    for seq_id in ids:
        session.force(seq_id, prompt_ids(6, seed=50 + seq_id))
    while any(session.sequence(i).num_tokens < len(p) + 4 for i, p in zip(ids, prompts, strict=True)):
        record = session.step()
        if record.phase == "prefill":
            assert len(record.sequences) == 1
    for seq_id, prompt in zip(ids, prompts, strict=True):
        alone = Session(model_of("llama"), GROWING, prefill_chunk=4)
        own = alone.submit(Prompt(token_ids=prompt))
        alone.force(own, prompt_ids(6, seed=50 + seq_id))
        while alone.sequence(own).num_tokens < session.sequence(seq_id).num_tokens:
            alone.step()
        mine, theirs = session.logits(seq_id), alone.logits(own)
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


def test_a_removed_sequence_is_gone() -> None:
    session, seq_id = started()
    session.step()
    session.remove(seq_id)
    assert session.sequences == ()
    assert session.bytes().stored == 0
    for ask in (session.remove, session.cache_of, session.sequence, lambda i: session.force(i, (3,))):
        with pytest.raises(InputError, match="no sequence 0"):
            ask(seq_id)
    with pytest.raises(InputError, match="nothing to do"):
        session.step()


def test_rewinding_to_before_a_sequence_began_starts_it_again() -> None:
    session, first = started()
    session.step()
    second = session.submit(Prompt(token_ids=prompt_ids(5, seed=2)))
    session.step()
    session.rewind(0)
    assert session.sequence(second).num_tokens == 0
    assert session.sequence(first).num_tokens == 8
    assert session.step().sequences[0].seq_id == second


# ---- stopping ----------------------------------------------------------------------------------------------------


def logits_for(token_id: int) -> Any:
    def forward(self: Any, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = torch.zeros(1, ids.shape[1], 128)
        logits[0, -1, token_id] = 9.0
        return logits

    return forward


def test_end_of_text_stops_and_a_forced_token_goes_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = started(cache=CacheSpec("none"))
    (end,) = session.model.end_ids
    monkeypatch.setattr(type(session.model), "forward", logits_for(end))
    record = session.step()
    assert record.sequences[0].sampled == end
    assert record.sequences[0].stop == "end of text"
    assert not session.has_work
    assert session.sequences[0].state == "finished"
    with pytest.raises(InputError):
        session.step()
    session.force(seq_id, (9,))
    assert session.has_work
    record = session.step()
    assert record.sequences[0].token_ids == (9,)
    assert record.sequences[0].forced
    assert not session.has_work, "the model says again that the text ends"


def test_a_forced_token_wakes_a_stopped_sequence() -> None:
    session, seq_id = started()
    session.step()
    session.halt(seq_id)
    assert not session.has_work
    session.force(seq_id, (9,))
    assert session.step().sequences[0].token_ids == (9,)


@pytest.mark.parametrize("cache", LOSSLESS)
def test_the_context_is_full_and_nothing_is_cut_silently(cache: str) -> None:
    session, seq_id = started(cache=PRESETS[cache].spec, length=126)
    session.force(seq_id, prompt_ids(20, seed=1))
    stops = [session.step().sequences[0].stop for _ in range(3)]
    assert stops == [None, None, "context full"]
    assert session.sequence(seq_id).num_tokens == session.model.max_length == 128
    assert not session.has_work
    with pytest.raises(InputError, match="no room"):
        session.force(seq_id, (9,))


def test_a_full_static_cache_says_so_and_a_larger_one_goes_on() -> None:
    session, seq_id = started(cache=CacheSpec("static", max_length=10))
    session.force(seq_id, prompt_ids(20, seed=1))
    assert [session.step().sequences[0].stop for _ in range(3)] == [None, None, "cache full"]
    session.set_cache(GROWING)
    assert session.has_work
    assert session.step().sequences[0].num_tokens == 11


# ---- choosing ----------------------------------------------------------------------------------------------------


def test_sampling_repeats_after_going_back_and_with_the_seed() -> None:
    def tokens(session: Session, seq_id: int) -> list[int]:
        while session.sequence(seq_id).num_tokens < 24:
            if not session.has_work:
                session.force(seq_id, (7,))
            session.step()
        return session.sequence(seq_id).token_ids

    session, seq_id = started(temperature=1.5, seed=11, top_k=50)
    first = list(tokens(session, seq_id))
    session.rewind(4)
    assert tokens(session, seq_id) == first
    again, other = started(temperature=1.5, seed=11, top_k=50), started(temperature=1.5, seed=12, top_k=50)
    assert tokens(*again) == first
    assert tokens(*other) != first


def test_another_temperature_chooses_the_waiting_token_again_but_never_a_forced_one() -> None:
    session, seq_id = started(temperature=0.0)
    greedy = session.step().sequences[0].sampled
    drawn = set()
    for seed in range(40):
        session.set_sampling(SamplingParams(temperature=5.0, seed=seed), seq_id)
        drawn.add(session.sequence(seq_id).sampled)
    assert len(drawn) > 3
    session.set_sampling(SamplingParams(), seq_id)
    assert session.sequence(seq_id).sampled == greedy
    session.force(seq_id, (99,))
    session.set_sampling(SamplingParams(temperature=5.0), seq_id)
    assert session.sequence(seq_id).sampled == 99


def test_forced_tokens_are_fed_in_order_before_the_samplers() -> None:
    session, seq_id = started(chunk=3)
    session.force(seq_id, (40, 41))  # while the prompt is still being read
    while session.is_prefilling:
        session.step()
    assert session.step().sequences[0].token_ids == (40,)
    session.force(seq_id, (50, 51, 52))
    fed = [session.step().sequences[0] for _ in range(4)]
    assert [f.token_ids[0] for f in fed[:3]] == [50, 51, 52]
    assert [f.forced for f in fed] == [True, True, True, False]
    for bad in ((128,), (-1,)):
        with pytest.raises(InputError, match="outside the vocabulary"):
            session.force(seq_id, bad)


def test_a_preempted_sequence_keeps_its_forced_tokens() -> None:
    spec = CacheSpec("paged", page_size=4, num_pages=8)
    session = Session(model_of("llama"), spec)
    ids = [session.submit(Prompt(token_ids=prompt_ids(7, seed=n))) for n in (1, 2)]
    forced = [prompt_ids(12, seed=10 + n) for n in ids]
    for seq_id, tokens in zip(ids, forced, strict=True):
        session.force(seq_id, tokens)
    preempted = 0
    for _ in range(60):
        if not session.has_work:
            break
        preempted += len(session.step().preempted)
        for seq_id, tokens in zip(ids, forced, strict=True):
            if session.sequence(seq_id).num_tokens >= 15:
                session.halt(seq_id)
            fed = tuple(session.sequence(seq_id).token_ids[7:])
            assert fed[:12] == tokens[: len(fed)]
    assert preempted, "the pool was large enough after all"


# ---- recording ---------------------------------------------------------------------------------------------------


def test_a_record_says_what_was_measured() -> None:
    session, seq_id = started(length=6)
    record = session.step()
    part = record.sequences[0]
    held = session.cache_of(seq_id).rows(1)
    assert part.rows is not None
    assert held is not None
    assert part.rows.key_norm[1] == pytest.approx(held.keys[0].norm(dim=-1).numpy(), abs=1e-5)
    assert part.rows.value_max[1] == pytest.approx(held.values[0].amax((1, 2)).numpy(), abs=1e-6)
    assert not part.rows.key_norm.flags.writeable
    logprobs = session.model.reference_logits(torch.tensor([prompt_ids(6)])).log_softmax(-1)
    expected = [-float(logprobs[i, t]) for i, t in enumerate(prompt_ids(6)[1:])]
    assert part.surprisal[0] is None
    assert part.surprisal[1:] == pytest.approx(expected, abs=1e-4)
    assert part.sampled == int(logprobs[-1].argmax())
    assert record.timings.total_ms > 0
    assert record.num_bytes.stored == record.num_bytes.predicted == part.stored_bytes == 2 * 2 * 2 * 6 * 16 * 4
    assert record.random_weights


@pytest.mark.parametrize("chunk", [1, 2, 4, 128])
def test_surprisal_does_not_depend_on_the_chunks(chunk: int) -> None:
    session, _ = started(length=9, chunk=chunk)
    parts = []
    while session.is_prefilling:
        parts += session.step().sequences[0].surprisal
    whole, _ = started(length=9)
    expected = whole.step().sequences[0].surprisal
    assert parts[0] is None
    assert parts[1:] == pytest.approx(expected[1:], abs=1e-4)


@pytest.mark.parametrize("cache", ["growing", "dynamic", "static", "paged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3_text"])
def test_stored_bytes_are_those_predicted(architecture: str, cache: str) -> None:
    session, seq_id = started(architecture, PRESETS[cache].spec, length=12, chunk=5)
    session.force(seq_id, prompt_ids(20, seed=1))
    for _ in range(12):
        num_bytes = session.step().num_bytes
        for layer in num_bytes.layers:
            assert layer.stored == layer.predicted, layer
            assert layer.reserved >= layer.stored


@pytest.mark.parametrize("tensor", ["keys", "values"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("cache", ["growing", "dynamic", "static", "none", "paged"])
def test_numbers_that_are_none_are_located(tensor: str, bad: float, cache: str) -> None:
    """One weight of one layer's projection turns bad: the record names tensor, layer, head and every position."""
    session, _ = started(cache=PRESETS[cache].spec, length=5)
    model = session.model.model
    layer, head = 1, 1
    projection = model.model.layers[layer].self_attn
    weight = (projection.k_proj if tensor == "keys" else projection.v_proj).weight
    row = head * 16 + 3
    original = weight.detach()[row].clone()
    try:
        with torch.no_grad():
            weight[row] = bad
        record = session.step()
    finally:
        with torch.no_grad():
            weight[row] = original
    found = [p for p in record.non_finite if p.tensor == tensor]
    assert {(p.layer, p.kv_head) for p in found} == {(layer, head)}
    assert [p.position for p in found] == list(range(5))
    if tensor == "values":  # torch's kernel may let a bad key fall out of its softmax
        (logits,) = [p for p in record.non_finite if p.tensor == "logits"]
        assert (logits.layer, logits.kv_head, logits.position) == (None, None, 4)
        assert math.isnan(record.sequences[0].entropy or 0.0)


def test_a_bad_row_is_found_behind_a_window_that_dropped_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk longer than the window leaves only its last rows in transformers' sliding layer."""
    session, seq_id = started("mistral", CacheSpec("dynamic"), length=20)
    real = session.model.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = real(*args, **kwargs)
        held = session.cache_of(seq_id).rows(1)
        assert held is not None
        assert held.first == 13
        with torch.inference_mode():
            held.keys[0, 1, 4, 2] = math.nan
        return logits

    monkeypatch.setattr(type(session.model), "forward", forward)
    (place,) = session.step().non_finite
    assert (place.tensor, place.layer, place.kv_head, place.position, place.count) == ("keys", 1, 1, 17, 1)


def test_attention_of_past_steps_stays_until_it_is_rewound() -> None:
    session, seq_id = started(length=6)
    for _ in range(4):
        session.step()
    piece = session.take_slice(AttentionRequest(seq_id, 2, 1, 100))
    assert piece.provenance == "recorded"
    assert piece.query_position == 7
    assert list(piece.positions) == list(range(8))
    assert np.allclose(piece.weights.sum(-1), 1.0, atol=1e-5)
    session.rewind(1)
    assert "no longer kept" in session.take_slice(AttentionRequest(seq_id, 2, 1, 100)).note


def test_no_step_to_go_back_to() -> None:
    session, _ = started()
    for step in (0, -1, 5):
        with pytest.raises(InputError, match="no step"):
            session.rewind(step)
    session.step()
    with pytest.raises(InputError, match="no step 1"):
        session.rewind(1)


@pytest.mark.parametrize("cache", ["dynamic", "static", "paged", "none"])
def test_a_rewind_whose_replay_fails_has_gone_back_all_the_same(cache: str) -> None:
    """A window that has moved on must be computed again; when that fails, the next step does it."""
    session, twin = prepared("mistral", cache, "decode"), prepared("mistral", cache, "decode")
    for _ in range(8):
        session.step()
        twin.step()
    twin.rewind(3)
    with pytest.MonkeyPatch.context() as patch:

        def fail(*args: object) -> None:
            raise MemoryError("no room")

        patch.setattr("engine.session.replay.Replay.refill", fail)
        how = session.rewind(3)
    assert ("next step" in how) == bool(stale(session))
    assert bool(stale(session)) == (cache != "paged")
    assert session.last_step == twin.last_step == 3
    assert session.step().sequences[0].token_ids == twin.step().sequences[0].token_ids
    assert same(tensors(session), tensors(twin))
