"""Conditions on real steps of tiny models: each quantity has the value that the step's own numbers give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from msgspec.structs import replace

from engine.counted import significant
from engine.history.conditions import RECENT, ConditionEvaluator, recorded_attention
from engine.look.measures import norm_ratio, norms_before
from engine.predict.capacity import setting_of
from engine.session.conditions import SessionSurroundings, check_can_hold, hits_at, measured, not_compared
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.condition import TokenSpan, parsed
from engine.spec.sampling import Prompt
from engine.wire.breakpoints import AttentionPlace, MeasureAttention
from engine.wire.pages import PageAllocated, PageEvicted, PageShared
from engine.wire.records import NonFinite, SequenceStep, StepRecord
from tests.engine.session.sessions import started
from tests.engine.tiny import model_of, prompt_ids

STEPS = 30
PAGED = CacheSpec("paged", page_size=4)
STREAMING = cache_named("streamingllm")
STREAMING = replace(STREAMING, retention=replace(STREAMING.retention, sinks=2, window=6))


def held_at(session: Session, text: str, steps: int = STEPS) -> tuple[list[int], list[StepRecord]]:
    """The steps of a run at which a condition held, and all steps."""
    held, records = [], []
    while session.has_work and len(records) < steps:
        record = session.step()
        records.append(record)
        held += [hit.step for hit in hits_at(session, record, [(None, text)])]
    return held, records


def steps_where(records: Iterable[StepRecord], is_so: Callable[[SequenceStep], bool]) -> list[int]:
    return [record.step for record in records if any(map(is_so, record.sequences))]


def middle(values: Iterable[float | None]) -> float:
    known = sorted(value for value in values if value is not None)
    return (known[len(known) // 2 - 1] + known[len(known) // 2]) / 2


def probability(part: SequenceStep) -> float:
    return next(each.prob for each in part.candidates if each.token_id == part.sampled)


def margin(part: SequenceStep) -> float:
    return part.candidates[0].prob - part.candidates[1].prob


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entropy", lambda part: part.entropy),
        ("probability", probability),
        ("margin", margin),
        ("surprisal", lambda part: max(s for s in part.surprisal if s is not None)),
        ("tokens", lambda part: part.num_tokens),
    ],
)
def test_numbers_of_a_sequence_are_compared(name: str, value: Callable[[SequenceStep], float]) -> None:
    _, records = held_at(started(temperature=1.0)[0], "step < 0")
    limit = middle(value(record.sequences[0]) for record in records)
    held, again = held_at(started(temperature=1.0)[0], f"{name} > {limit!r}")
    expected = steps_where(again, lambda part: value(part) > limit)
    assert held == expected
    assert 0 < len(expected) < STEPS


def test_conditions_on_the_chosen_token_do_not_hold_for_a_chunk_that_chooses_none() -> None:
    session, _ = started(length=20, chunk=8)
    held, records = held_at(session, "entropy >= 0 or not entropy >= 0", 5)
    assert [record.sequences[0].sampled is None for record in records] == [True, True, False, False, False]
    assert held == [2, 3, 4]


def test_tokens_are_found_by_id_when_they_are_chosen_and_when_they_are_computed() -> None:
    session, seq_id = started()
    session.step()
    session.force(seq_id, (5, 6, 7))
    held, records = held_at(session, "fed = 6", 8)
    assert held == [2]
    assert records[1].sequences[0].token_ids == (6,)
    chosen = held_at(started()[0], "step < 0", 5)[1][4].sequences[0].sampled
    held, again = held_at(started()[0], f"token = {chosen}", 12)
    assert held == steps_where(again, lambda part: part.sampled == chosen) != []


def test_a_pattern_holds_where_its_match_ends_and_not_again() -> None:
    session, seq_id = started()
    session.force(seq_id, (5, 6, 7, 5, 6, 8))
    held, records = held_at(session, r'text ~ "<5><6>"', 8)
    ends = [r.step for r in records if r.sequences[0].forced and r.sequences[0].token_ids == (6,)]
    assert held == ends
    assert len(ends) == 2


def test_a_pattern_is_looked_for_in_a_prompt_when_it_is_computed() -> None:
    ids = prompt_ids(8)
    assert held_at(started()[0], f'text ~ "<{ids[3]}><{ids[4]}>"', 4)[0] == [0]


def test_a_hostile_pattern_is_given_up_and_the_run_goes_on() -> None:
    session, _ = started()
    too_slow, text = set[str](), r'text ~ "(.|..)+\d{9}$"'
    hits = [hits_at(session, session.step(), [(1, text)], too_slow=too_slow) for _ in range(12)]
    assert hits == [[]] * 12
    assert too_slow == {r"(.|..)+\d{9}$"}
    assert session.last_step == 11


def test_attention_is_the_mass_of_the_newest_row() -> None:
    session, seq_id = started()
    held, expected = [], []
    for _ in range(STEPS):
        record = session.step()
        rows = session.history.attention_at(seq_id, record.step)
        masses = np.concatenate([row[:, 2:5].sum(-1).numpy() for row in rows.values()])
        mean = float(masses.mean())
        hits = hits_at(session, record, [(None, f"attention(2-4) > {mean - 1e-6!r}")])
        hits += hits_at(session, record, [(None, f"attention(2-4) > {mean + 1e-6!r}")])
        hits += hits_at(session, record, [(None, f"peak_attention(2-4) >= {float(masses.max()) - 1e-6!r}")])
        held.append(len(hits))
        expected.append(2)
    assert held == expected


def test_heads_that_a_layer_does_not_have_attend_to_nothing() -> None:
    session, _ = started()
    record = session.step()
    part = record.sequences[0]
    assert part.attention is not None
    for span, name in ((TokenSpan(), "first_mass"), (RECENT, "recent_mass")):
        mass = getattr(part.attention, name).copy()
        mass[0, 1:] = np.nan  # the first layer has one head
        found = recorded_attention(record, replace(part, attention=replace(part.attention, **{name: mass})), span)
        assert found is not None
        assert (found.mean, found.peak) == pytest.approx((np.nanmean(mass), np.nanmax(mass)))


def test_attention_of_dropped_tokens_is_none_and_that_of_the_last_is_all() -> None:
    session, seq_id = started(cache=STREAMING, length=12)
    for _ in range(8):
        record = session.step()
    part = record.sequences[0]
    around = SessionSurroundings(session, not_compared)
    gone = around.attention(record.step, part, TokenSpan(2, 8))
    assert gone is not None
    assert gone.peak < 1e-6
    everything = around.attention(record.step, part, TokenSpan(newest=100))
    assert everything is not None
    assert everything.mean == pytest.approx(1.0, abs=1e-5)
    assert around.attention(record.step, part, TokenSpan(part.num_tokens, part.num_tokens)) is None
    place = AttentionPlace(record.step, seq_id, part.num_tokens)
    answer = measured(session, MeasureAttention((place, replace(place, step=99)), (TokenSpan(newest=100),)))
    assert [(mass.step, round(mass.mean, 5)) for mass in answer.masses] == [(record.step, 1.0)]


def test_pages_are_counted_as_their_events_are() -> None:
    def two() -> Session:
        session = Session(model_of("llama"), PAGED)
        for _ in range(2):
            session.submit(Prompt(token_ids=prompt_ids(13)))
        return session

    for name, kind in (("pages_allocated", PageAllocated), ("pages_shared", PageShared)):
        held, records = held_at(two(), name, 12)
        counts = [sum(isinstance(event, kind) for event in record.page_events) for record in records]
        assert held == [record.step for record, count in zip(records, counts, strict=True) if count]
        assert 0 < len(held) < len(records)


def test_a_full_pool_evicts_pages_and_preempts() -> None:
    session = Session(model_of("llama"), replace(PAGED, num_pages=12))
    for seed in range(3):
        session.submit(Prompt(token_ids=prompt_ids(10, seed)))
    held, records = held_at(session, "preempted or pages_evicted", 60)
    expected = [
        record.step
        for record in records
        if record.preempted or any(isinstance(event, PageEvicted) for event in record.page_events)
    ]
    assert held == expected != []
    assert any(record.preempted for record in records)


def test_dropped_rows_are_counted_by_token() -> None:
    held, records = held_at(started(cache=STREAMING, length=4)[0], "rows_evicted = 1", 12)
    drops = {record.step: {int(p) for e in record.evictions for p in e.positions} for record in records}
    assert held == [step for step, positions in drops.items() if len(positions) == 1] != []


def test_bytes_and_steps_are_those_of_the_record() -> None:
    _, records = held_at(started()[0], "step < 0", 10)
    stored = records[6].num_bytes.stored
    assert held_at(started()[0], f"stored >= {stored}", 10)[0] == [6, 7, 8, 9]
    assert held_at(started()[0], f"reserved < {stored} or step = 3", 10)[0] == [
        r.step for r in records if r.num_bytes.reserved < stored or r.step == 3
    ]
    session = started()[0]
    assert hits_at(session, records[6], [(1, "stored > 0")])[0].value == f"stored {stored / 1024:.1f} KiB"


def test_what_is_not_finite_is_counted() -> None:
    session, _ = started()
    record = session.step()
    bad = replace(record, non_finite=(NonFinite("keys", 0, 1, 3, 4), NonFinite("logits", None, None, 7, 2)))
    assert hits_at(session, bad, [(1, "nonfinite = 6")])[0].value == "nonfinite 6"
    assert not hits_at(session, record, [(1, "nonfinite")])


def test_a_token_chosen_from_logits_that_are_not_finite_matches_no_condition_on_tokens() -> None:
    session, _ = started()
    record = session.step()
    part = replace(record.sequences[0], sampled=0, sampled_text="zero")
    asked = [(1, "token = 0"), (2, 'text ~ "zero"')]
    for stop, held in ((None, [1, 2]), ("non-finite logits", [])):
        told = replace(record, sequences=(replace(part, stop=stop),))
        assert [hit.breakpoint_id for hit in hits_at(session, told, asked)] == held


def test_a_norm_is_compared_with_the_median_of_its_head() -> None:
    session, _ = started(length=10)
    seen = []
    for _ in range(STEPS):
        record = session.step()
        stats = record.sequences[0].rows
        assert stats is not None
        new = np.concatenate([stats.key_norm, stats.value_norm], 1)
        before = np.concatenate(seen, -1)[..., -64:] if seen else new
        ratio = float((new / np.median(before, -1)[..., None]).max())
        above, below = (f"norm > {ratio * factor!r}" for factor in (0.9999, 1.0001))
        assert [hit.breakpoint_id for hit in hits_at(session, record, [(1, above), (2, below)])] == [1]
        seen.append(new)


def test_few_rows_have_no_median() -> None:
    held, _ = held_at(started(length=2)[0], "norm > 0", 12)
    assert held == [6, 7, 8, 9, 10, 11]  # two tokens of the prompt and six computed since are eight


def test_norms_are_compared_on_whatever_path_a_step_comes() -> None:
    """The same step after going back, on a branch beside it and in a fork is as far from the rows before it."""
    session, seq_id = started(length=10)
    records = [session.step() for _ in range(STEPS)]
    session.go_to(records[2].step)
    session.force(seq_id, records[3].sequences[0].token_ids)
    again = session.step().sequences[0]
    assert again.norm_ratio == records[3].sequences[0].norm_ratio is not None
    stats = [record.sequences[0].rows for record in records[:3]]
    assert again.norm_ratio == norm_ratio(again.rows, norms_before(stats[::-1]))  # type: ignore[arg-type]


def test_a_comparison_says_whether_it_differs() -> None:
    session, seq_id = started()
    record = session.step()
    for answer, held in ((True, 1), (False, 0), (None, 0)):
        found = hits_at(session, record, [(1, "differs")], lambda step, of, answer=answer: answer)  # type: ignore[misc]
        assert len(found) == held
        assert all(hit.seq_id == seq_id for hit in found)


def test_in_a_batch_the_sequence_for_which_a_condition_holds_is_named_with_its_values() -> None:
    session = Session(model_of("llama"), cache_named("growing"))
    for seed in range(3):
        session.submit(Prompt(token_ids=prompt_ids(6 + seed, seed)))
    for _ in range(3):
        session.step()
    record = session.step()
    assert [part.num_tokens for part in record.sequences] == [7, 8, 9]
    (hit,) = hits_at(session, record, [(4, "tokens = 8 and entropy > 0")])
    assert (hit.breakpoint_id, hit.seq_id, hit.step) == (4, 1, 3)
    assert hit.value == f"tokens 8 · entropy {significant(record.sequences[1].entropy, 4)}"
    assert not hits_at(session, record, [(4, "tokens = 8 and sequence = 2")])


def test_what_can_never_hold_is_refused_in_a_session() -> None:
    session, _ = started()
    setting = setting_of(session.model.info, session.cache, is_compared=False)
    with pytest.raises(ValueError, match="has no pages"):
        check_can_hold("pages_evicted", setting)
    with pytest.raises(ValueError, match="0 to 128 tokens"):
        check_can_hold("tokens > 128", setting)
    check_can_hold("tokens >= 128", setting)


def test_a_nan_is_no_number_to_compare() -> None:
    session, _ = started()
    record = session.step()
    part = replace(record.sequences[0], entropy=math.nan)
    judge = ConditionEvaluator(SessionSurroundings(session, not_compared))
    for text in ("entropy > 1", "not entropy > 1"):
        assert judge.verdict(parsed(text), replace(record, sequences=(part,))).holds is None
