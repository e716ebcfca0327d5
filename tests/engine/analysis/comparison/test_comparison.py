"""Two runs on the same tokens: what is told of each step, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.analysis import comparison as start
from engine.analysis.comparison import Comparison, ComparisonFollower, FileRun, LiveRun, step_of
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, cache_named
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import StartComparison
from engine.wire.comparison import OtherRun
from engine.wire.pictures import (
    HeadRequest,
)
from tests.engine.analysis.comparison.comparisons import KIVI, compared, comparison_of
from tests.engine.analysis.live import started
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("name", ["none", "dynamic", "static", "paged", "offloaded"])
def test_lossless_modes_do_not_part(name: str) -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, PRESETS[name].spec)
    steps = compared(comparison)
    assert [step.num_tokens for step in steps][-5:] == [41, 42, 43, 44, 45]
    assert not any(step.is_beyond_rounding for step in steps)
    assert all(step.top1_agrees and step.kl is not None and step.kl < 1e-6 for step in steps)
    assert comparison.scan().first is None


def test_a_lossy_mode_parts_and_the_first_row_is_named_with_its_numbers() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, cache_named("int8"))
    steps = compared(comparison)
    assert steps[-1].is_beyond_rounding
    assert steps[-1].kl is not None
    assert steps[-1].kl > 0
    first = comparison.scan().first
    assert first is not None
    assert (first.position, first.layer) == (0, 0)
    mine, theirs = (run.source(45).rows(first.layer, first.tensor) for run in (comparison.a, comparison.b))
    assert mine is not None
    assert theirs is not None
    place = (first.kv_head, first.position, first.channel)
    assert first.number == pytest.approx(float(mine.numbers[place]))
    assert first.other_number == pytest.approx(float(theirs.numbers[place]))
    assert first.error > first.tolerance


def test_one_wrong_number_is_found_where_it_stands() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, CacheSpec())
    compared(comparison)
    rows = comparison.b.source(45).rows(1, "values")
    assert rows is not None
    with torch.inference_mode():
        rows.numbers[1, 17, 3] += 5.0
    first = comparison.scan().first
    assert first is not None
    assert (first.layer, first.tensor, first.kv_head, first.position, first.channel) == (1, "values", 1, 17, 3)
    assert first.other_number - first.number == pytest.approx(5.0)


def test_b_goes_on_with_a_and_back_where_a_took_another_way() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, KIVI)
    compared(comparison)
    session.step()
    assert [step.num_tokens for step in compared(comparison)] == [46]
    session.go_to(session.history.step_at(seq_id, 43) or 0)
    assert compared(comparison) == []
    assert comparison.steps[-1].num_tokens == 43
    assert comparison.b.num_tokens == 46  # it waits
    session.force(seq_id, (7, 8))
    session.step()
    session.step()
    assert [step.num_tokens for step in compared(comparison)] == [44, 45]
    assert comparison.b.token_ids == comparison.a.token_ids
    assert comparison.b.token_ids[43:] == [7, 8]


def test_after_a_change_of_mode_the_rows_are_compared_as_they_are_held_now() -> None:
    session, seq_id = started()
    session.set_cache(PRESETS["int8"].spec)
    comparison = comparison_of(session, seq_id, CacheSpec())
    (now,) = compared(comparison)
    assert (now.num_tokens, now.is_beyond_rounding) == (45, None), "no step was taken in this mode yet"
    assert compared(comparison) == []
    session.step()
    assert [(step.num_tokens, step.is_beyond_rounding) for step in compared(comparison)] == [(46, True)]


def test_what_a_step_cost_is_told_of_the_side_that_it_was_measured_on() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, cache_named("int8"))
    (a_ms, b_ms), (a_bytes, b_bytes) = compared(comparison)[-1].ms, comparison.steps[-1].kv_bytes
    assert (a_ms, a_bytes) == (None, None)  # nobody timed A
    assert b_ms is not None
    assert b_ms > 0
    assert b_bytes == comparison.b.session.bytes().stored  # type: ignore[attr-defined]


def test_the_newest_row_of_a_past_step_is_compared_as_well_as_that_of_now() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, cache_named("int8"))
    steps = {step.num_tokens: step for step in compared(comparison)}
    for count in (43, 45):
        for number in range(2):
            for part, told in (("keys", steps[count].keys), ("values", steps[count].values)):
                mine, theirs = (run.source(count).rows(number, part) for run in (comparison.a, comparison.b))  # type: ignore[arg-type]
                assert mine is not None
                assert theirs is not None
                true, row = (rows.numbers[:, count - 1] for rows in (mine, theirs))
                parts = (row - true).square().mean(-1).sqrt() / true.square().mean(-1).sqrt()
                assert told[number] == pytest.approx(float(parts.max()), rel=1e-4)
                assert told[number] > 0


def test_two_steps_of_one_run_differ_where_rows_were_coded_in_between() -> None:
    session, seq_id = started(KIVI, steps=20)
    past = LiveRun(session, seq_id, "step 10", until=45)
    comparison = Comparison(LiveRun(session, seq_id, "now"), past, session.text_of, compares_with_now=True)
    compared(comparison)
    assert (comparison.a.num_tokens, comparison.b.num_tokens, comparison.b.side().moves) == (57, 45, False)
    first = comparison.scan().first
    assert first is not None
    assert (first.position, first.tensor) == (29, "values")  # 16 rows of V were exact at 45, and are coded by now


def test_models_of_other_shapes_compare_their_logits_alone() -> None:
    session, seq_id = started()
    sequence = session.sequence(seq_id)
    follower = ComparisonFollower(model_of("gpt2"), CacheSpec(), sequence.token_ids[: sequence.num_prompt_tokens])
    comparison = Comparison(LiveRun(session, seq_id, "A"), follower.run, session.text_of, follower)
    steps = compared(comparison)
    assert steps[-1].is_beyond_rounding
    assert steps[-1].kl is not None
    assert np.isnan(steps[-1].keys).all()
    with pytest.raises(InputError, match="their K and V cannot be"):
        comparison.picture(HeadRequest(seq_id, 45, "keys", 0, 0, 0, 45, 100), "difference")


def test_a_row_that_is_no_number_is_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, CacheSpec())
    compared(comparison)
    session.step()
    follow = ComparisonFollower.follow

    def spoiled(follower: ComparisonFollower, *args: Any) -> Iterator[int]:
        for count in follow(follower, *args):
            rows = comparison.b.source(count).rows(1, "values")
            assert rows is not None
            with torch.inference_mode():
                rows.numbers[1, count - 1, 3] = torch.nan
            yield count

    monkeypatch.setattr(ComparisonFollower, "follow", spoiled)
    (step,) = compared(comparison)
    assert step.values[1] == np.inf
    assert step.is_beyond_rounding


def test_logits_that_are_no_numbers_are_infinitely_far() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, CacheSpec())
    compared(comparison)
    logits = comparison.b.logits(45)
    assert logits is not None
    with torch.inference_mode():
        logits[3] = torch.nan
    step = step_of(comparison.a, comparison.b, 45, comparison.tolerance, True, session.text_of)
    assert (step.kl, step.max_abs_logit_diff, step.is_beyond_rounding) == (np.inf, np.inf, True)


def test_steps_are_looked_for_once_and_not_for_each_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = started(steps=20)
    asked: list[int] = []
    monkeypatch.setattr(session.history, "step_at", lambda seq_id, count: asked.append(count))
    comparison = comparison_of(session, seq_id, CacheSpec())
    assert [step.step for step in compared(comparison)][-3:] == [17, 18, 19]
    assert asked == []


def test_the_other_run_keeps_no_hidden_states() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, CacheSpec())
    compared(comparison)
    assert isinstance(comparison.b, LiveRun)
    assert not comparison.b.session.history.surprisal.is_waiting
    assert session.history.surprisal.is_wanted


def test_another_dtype_computes_where_the_run_does() -> None:
    session, seq_id = started()
    asked: list[ModelSpec] = []

    def load(spec: ModelSpec) -> LoadedModel:
        asked.append(spec)
        return session.model

    start.comparison_of(
        session, StartComparison(seq_id, OtherRun(CacheSpec(), ModelSpec("bundled", "bfloat16"))), load, None
    )  # type: ignore[arg-type]
    info = session.model.info
    assert (asked[0].dtype, asked[0].device, asked[0].num_threads) == ("bfloat16", info.device, info.num_threads)


def test_a_model_of_another_vocabulary_is_refused_before_it_reads_a_token() -> None:
    session, seq_id = started()
    info = session.model.info
    geometry = replace(info.geometry, vocab_size=20)  # most of the tokens have no meaning there
    other = SimpleNamespace(info=SimpleNamespace(geometry=geometry))
    asked = StartComparison(seq_id, OtherRun(CacheSpec(), ModelSpec("another")))
    with pytest.raises(InputError, match=r"vocabularies of 128 and 20 tokens: compare models that share one"):
        start.comparison_of(session, asked, lambda spec: other, None)  # type: ignore[arg-type,return-value]


def test_tokens_of_a_file_are_known_up_to_the_first_that_is_not() -> None:
    run = FileRun(SimpleNamespace(token_ids=[4, 5, -1, 6]))  # type: ignore[arg-type]
    assert run.token_ids == [4, 5]


def test_nothing_to_compare_is_said() -> None:
    session = Session(model_of("llama"), CacheSpec())
    seq_id = session.submit(Prompt(token_ids=prompt_ids(10)))
    follower = ComparisonFollower(session.model, CacheSpec(), prompt_ids(10))
    with pytest.raises(InputError, match="run a prompt first"):
        Comparison(LiveRun(session, seq_id, "A"), follower.run, session.text_of, follower)
