"""The truth about a mode is measured on the live session, agrees with doing the thing itself, and alters nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from engine.analysis.damage import damage_map
from engine.analysis.parity import live_parity, verdict
from engine.analysis.regret import rank_correlation, regret
from engine.analysis.trial import Trial, divergence, exact_logits, newest_logits, scratch_cache, trial_of
from engine.analysis.what_if import shifts, what_if
from engine.cache.compressed.cache import CompressedCache
from engine.cache.compressed.stores import RowStore
from engine.client.thread import ThreadClient
from engine.errors import InputError
from engine.session.rerun import fill
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding, uniform
from engine.spec.model import ModelSpec
from engine.spec.presets import PRESETS
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.spec.tuning import tuned
from engine.wire.commands import CheckParity, LoadModel, MapDamage, MeasureRegret, Run, SubmitPrompt, Sweep, WhatIf
from engine.wire.records import Candidate, DamageMap, Failed, ParityReport, Regret, Swept, WhatIfAnswer
from tests.engine.cache.compressed.test_retention import assert_same, state_of
from tests.engine.tiny import model_of, prompt_ids, write_config

WINDOW = RetentionSpec("sinks+window", sinks=2, window=10)


def started(spec: CacheSpec | None = None, steps: int = 8, architecture: str = "llama") -> tuple[Session, int]:
    session = Session(model_of(architecture), spec or CacheSpec(), prefill_chunk=16)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.force(seq_id, prompt_ids(30, seed=1))
    for _ in range(steps):
        session.step()
    return session, seq_id


def run_of(session: Session, request: WhatIf) -> WhatIfAnswer:
    """What the other cache gave when it was really run."""
    *_, last = what_if(session, request)
    assert isinstance(last, WhatIfAnswer)
    assert not last.is_estimate
    return last


def answer(session: Session, request: MeasureRegret) -> Regret:
    *_, last = regret(session, request)
    assert isinstance(last, Regret)
    return last


def checked(session: Session, request: CheckParity) -> ParityReport:
    *_, last = live_parity(session, request)
    assert isinstance(last, ParityReport)
    return last


# ---- what if -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec(codec=uniform("int8")),
        CacheSpec(codec=uniform("kivi-2", 16, 16)),
        CacheSpec(retention=WINDOW),
        CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=10, rerotate=True)),
        *(CacheSpec(retention=RetentionSpec(name, budget=12)) for name in ("h2o", "snapkv", "tova", "knorm", "random")),  # type: ignore[arg-type]
    ],
    ids=lambda spec: spec.codec.keys.name + "/" + spec.retention.name,
)
def test_what_if_answers_and_alters_nothing(spec: CacheSpec) -> None:
    session, seq_id = started()
    before, step = state_of(session, seq_id), session.last_step
    found = run_of(session, WhatIf(seq_id, spec))
    assert_same(state_of(session, seq_id), before)
    assert (session.last_step, session.cache) == (step, CacheSpec())
    assert found.kl > 0
    assert found.kv_bytes < found.exact_bytes
    newest = session.logits(seq_id)
    assert newest is not None
    assert found.before[0].token_id == int(newest.argmax()), "the forward of a trial is the live one"
    assert 0.2 < found.kept_ratio <= 1


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec(codec=uniform("int8")),
        CacheSpec(codec=uniform("fp8")),
        CacheSpec(codec=uniform("kivi-2", 16, 16)),
        CacheSpec(codec=uniform("int8"), retention=RetentionSpec("h2o", budget=12)),
        CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=10, rerotate=True)),
        CacheSpec(retention=RetentionSpec("tova", ratio=0.6)),
    ],
    ids=lambda spec: spec.codec.keys.name + "/" + spec.retention.name,
)
def test_what_if_tells_what_a_run_of_the_mode_itself_gives(spec: CacheSpec) -> None:
    session, seq_id = started()
    foretold = run_of(session, WhatIf(seq_id, spec))
    itself, _ = started(spec)
    newest, exact = itself.logits(seq_id), session.logits(seq_id)
    assert newest is not None
    assert exact is not None
    assert float((newest - exact).abs().max()) > 0.01, "the mode changes something"
    raw = newest.log_softmax(-1)
    for candidate in foretold.after:
        assert candidate.logprob == pytest.approx(float(raw[candidate.token_id]), abs=1e-4)


def test_shifts_follow_every_listed_token_from_rank_to_rank() -> None:
    before = torch.tensor([0.9, 0.02, 0.05, 0.02, 0.01]).log()
    after = torch.tensor([0.1, 0.3, 0.05, 0.3, 0.25]).log()
    listed = [(Candidate(i, "", 0.0, 0.0, 0.0),) for i in (0, 3)]
    found = shifts(before, after, listed[0], listed[1] + listed[0], str)
    assert [(s.token_id, s.text, s.rank_before, s.rank_after) for s in found] == [(0, "0", 0, 3), (3, "3", 3, 1)]
    assert [s.prob_before for s in found] == pytest.approx([0.9, 0.02])
    assert [s.prob_after for s in found] == pytest.approx([0.1, 0.3])


def test_what_if_of_a_budget_beyond_the_context_changes_nothing() -> None:
    session, seq_id = started()
    found = run_of(session, WhatIf(seq_id, CacheSpec(retention=RetentionSpec("knorm", budget=500))))
    assert (found.kl, found.top1_changed, found.kept_ratio) == (0.0, False, 1.0)
    assert found.max_abs_logit_diff < 1e-5


@pytest.mark.parametrize(
    ("live", "tried", "said"),
    [
        (CacheSpec(retention=WINDOW), CacheSpec(codec=uniform("int8")), "has dropped rows"),
        (CacheSpec(), CacheSpec("paged"), "exact"),
        (CacheSpec("dynamic"), CacheSpec(codec=uniform("kivi-2")), "do not divide"),
    ],
)
def test_what_cannot_be_tried_is_refused(live: CacheSpec, tried: CacheSpec, said: str) -> None:
    session, seq_id = started(live)
    with pytest.raises(InputError, match=said):
        run_of(session, WhatIf(seq_id, tried))


# ---- parity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "dynamic", "static", "growing", "paged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "falcon"])
def test_lossless_modes_are_within_rounding_at_every_step(name: str, architecture: str) -> None:
    session, seq_id = started(PRESETS[name].spec, architecture=architecture)
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "within rounding"
    assert found.layer is None
    assert found.top1_agreement == 1
    assert found.positions.tolist() == [15, 31, 39, 40, 41, 42, 43, 44] or name == "none"
    assert float(found.kl.max()) < 1e-6


def test_a_wrong_row_is_found_where_it_is() -> None:
    session, seq_id = started()
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 1, 17] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "departs"
    assert (found.layer, found.tensor, found.position) == (1, "values", 17)
    assert float(found.max_abs_logit_diff[-1]) > found.tolerance > float(found.max_abs_logit_diff[:-1].max())


def test_the_first_wrong_row_is_the_one_that_is_named() -> None:
    """Of a wrong value at 3 and a wrong key at 9 of one layer, and a wrong key at 1 of a later one: the first."""
    session, seq_id = started()
    with torch.inference_mode():
        for layer, tensor, position in ((0, "keys", 9), (0, "values", 3), (1, "keys", 1)):
            rows = session.cache_of(seq_id).rows(layer)
            assert rows is not None
            getattr(rows, tensor)[0, 1, position] += 0.5
    found = checked(session, CheckParity(seq_id))
    assert (found.layer, found.tensor, found.position) == (0, "values", 3)


@pytest.mark.parametrize(
    ("differences", "may_differ", "is_row_wrong", "said"),
    [
        ([1e-5, 1e-5], [0, 0], False, "within rounding"),
        ([1e-5, 1e-5], [0, 0], True, "departs"),  # logits of few bits may hide a wrong row
        ([1e-5, 1e-5], [1, 0], True, "departs"),  # nor does an earlier lossy step excuse it
        ([1.0, 1e-5], [1, 0], True, "departs"),
        ([1.0, 1e-5], [1, 0], False, "lossy, as asked"),
        ([1.0, 1.0], [1, 0], False, "departs"),
        ([np.inf, 1e-5], [0, 1], False, "departs"),
        ([np.nan, 1e-5], [0, 1], False, "departs"),
    ],
)
def test_what_departs(differences: list[float], may_differ: list[int], is_row_wrong: bool, said: str) -> None:
    assert verdict(np.array(differences), np.array(may_differ), 1e-3, is_row_wrong) == said


@pytest.mark.parametrize("spec", [CacheSpec(codec=uniform("int8")), CacheSpec(retention=WINDOW)])
def test_lossy_modes_depart_as_asked(spec: CacheSpec) -> None:
    session, seq_id = started(spec)
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "lossy, as asked"
    assert found.layer == (0 if not spec.codec.is_exact else 1), "rows of the first layer depend on nothing dropped"
    session.forget_history()
    with pytest.raises(InputError, match="step first"):
        checked(session, CheckParity(seq_id))


@pytest.mark.parametrize("name", ["dynamic", "paged", "static", "allocated"])
def test_two_lossless_modes_are_within_rounding(name: str) -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    found = checked(session, CheckParity(seq_id, PRESETS[name].spec))
    assert_same(state_of(session, seq_id), before)
    assert found.verdict == "within rounding"
    assert found.layer is None
    assert found.steps.tolist() == list(range(8)) or name == "allocated"
    assert found.positions.tolist()[-6:] == [39, 40, 41, 42, 43, 44]
    assert not found.may_differ.any()


def test_a_lossless_cache_against_a_lossy_one_differs_as_asked() -> None:
    session, seq_id = started()
    found = checked(session, CheckParity(seq_id, CacheSpec(codec=uniform("int8"))))
    assert found.verdict == "lossy, as asked"
    assert found.may_differ.all()
    assert (found.layer, found.tensor, found.position) == (0, "keys", 0)
    dropped = checked(session, CheckParity(seq_id, CacheSpec(retention=WINDOW)))
    assert dropped.verdict == "lossy, as asked"
    assert dropped.layer == 1, (
        "the rows of the first layer do not depend on what was dropped; dropped rows are no error"
    )


def test_the_same_lossy_mode_on_both_sides_agrees() -> None:
    session, seq_id = started(CacheSpec(retention=WINDOW))
    found = checked(session, CheckParity(seq_id, CacheSpec(retention=WINDOW)))
    assert found.verdict == "within rounding"
    assert found.layer is None


def test_steps_of_an_earlier_lossy_mode_differ_as_asked() -> None:
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert found.verdict == "lossy, as asked"
    assert float(found.max_abs_logit_diff[-1]) <= found.tolerance
    assert found.layer is None, "the rows were computed anew"


def test_a_wrong_row_of_an_exact_mode_departs_though_earlier_steps_were_lossy() -> None:
    """The growing cache was filled anew, so its rows are judged, even before it has made a step that differs."""
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    session.step()
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.keys[0, :, 9] = 7.0
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert float(found.max_abs_logit_diff[-1]) <= found.tolerance < float(found.max_abs_logit_diff[:-1].max())
    assert (found.layer, found.tensor, found.position) == (1, "keys", 9)
    assert found.verdict == "departs"


def test_a_lossless_step_that_differs_departs_beside_lossy_ones() -> None:
    """Steps of int8 differ as asked; one of the growing cache that differs as well does not."""
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 0, 5] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert float(found.max_abs_logit_diff[:8].max()) > found.tolerance < float(found.max_abs_logit_diff[8])
    assert found.verdict == "departs"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"values": 3, "keys": 9}, ("values", 3)),
        ({"values": 9, "keys": 3}, ("keys", 3)),
        ({"values": 6, "keys": 6}, ("keys", 6)),
    ],
)
def test_the_first_wrong_row_of_a_layer_is_told_whichever_tensor_it_is_in(
    wrong: dict[str, int], expected: tuple[str, int]
) -> None:
    session, seq_id = started()
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    with torch.inference_mode():
        for name, position in wrong.items():
            getattr(rows, name)[0, 1, position] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert (found.layer, found.tensor, found.position) == (0, *expected)


def test_parity_against_another_mode_can_be_given_up_or_refused() -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    pieces = live_parity(session, CheckParity(seq_id, PRESETS["paged"].spec))
    assert [next(pieces), next(pieces)] == [(0, 45), (16, 45)]
    pieces.close()  # type: ignore[attr-defined]
    assert_same(state_of(session, seq_id), before)
    with pytest.raises(InputError, match="holds 20"):
        checked(session, CheckParity(seq_id, CacheSpec("static", max_length=20)))
    with pytest.raises(InputError, match="full after 42 of 45"):
        checked(session, CheckParity(seq_id, CacheSpec("static", max_length=42)))


# ---- damage ------------------------------------------------------------------------------------------------------


def test_the_damage_map_measures_what_reading_back_shows() -> None:
    session, seq_id = started()
    codec = CodecSpec(Coding("int8"), Coding("kivi-2", 16, 16))
    found = damage_map(session, MapDamage(seq_id, codec, max_columns=1000))
    assert found.tokens_per_column == 1
    assert found.keys.by_token.shape == (2, 2, session.sequence(seq_id).num_tokens - 1)
    assert found.keys.by_channel.shape == (2, 2, 16)
    assert float(found.keys.by_token.max()) < 0.02 < float(found.values.by_token.max())
    assert float(found.values.by_token[:, :, -16:].max()) == 0, "the residual is exact"
    assert float(found.keys.cosine.min()) > 0.999 > float(found.values.cosine.min())
    assert found.attention.shape == (2, 4)
    assert 0 < float(found.attention.max()) < 1
    assert found.kl > 0
    assert found.kl_by_layer.shape == (2,)
    assert found.plan == ()
    assert found.kv_bytes < found.exact_bytes


def test_a_plan_keeps_to_its_budget_and_is_a_codec_that_runs() -> None:
    session, seq_id = started()
    exact = damage_map(session, MapDamage(seq_id, uniform("int8"))).exact_bytes
    last = 0.0
    for part in (1.0, 0.7, 0.45, 0.3):
        found = damage_map(session, MapDamage(seq_id, uniform("int8"), budget_bytes=int(exact * part)))
        assert found.plan_bytes is not None
        assert found.plan_bytes <= exact * part
        assert found.plan_codec is not None
        assert found.plan_kl is not None
        assert found.plan_kl >= last
        last = found.plan_kl
    Session(session.model, CacheSpec(codec=found.plan_codec))
    with pytest.raises(InputError, match="Raise the budget"):
        damage_map(session, MapDamage(seq_id, uniform("int8"), budget_bytes=100))
    with pytest.raises(InputError, match="damages nothing"):
        damage_map(session, MapDamage(seq_id, CodecSpec(layers=(LayerCoding(0),))))


# ---- regret ------------------------------------------------------------------------------------------------------


def test_regret_is_what_forgetting_a_page_does() -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    found = answer(session, MeasureRegret(seq_id, CacheSpec(retention=RetentionSpec("tova", budget=12)), page_size=5))
    assert_same(state_of(session, seq_id), before)
    count = session.sequence(seq_id).num_tokens - 1
    assert found.positions.tolist() == list(range(0, count, 5))
    assert len(found.kl) == len(found.scores) == len(found.positions)
    assert float(found.kl.min()) >= 0
    # each page gone by itself: the same as feeding the newest token to a cache of the other rows
    for number, first in enumerate(found.positions.tolist()):
        assert float(found.kl[number]) == pytest.approx(
            without_rows(session, seq_id, first, first + 5), rel=1e-3, abs=1e-6
        )


def without_rows(session: Session, seq_id: int, start: int, stop: int) -> float:
    """KL of the next token where rows `start … stop` are not there: kept by position in a cache of their own."""
    trial = trial_of_session(session, seq_id)
    kept = [n for n in range(trial.num_tokens - 1) if not start <= n < stop]
    cache = CompressedCache(CacheSpec(retention=RetentionSpec("knorm", budget=99)), session.model.model.config, 128, 0)
    fill(cache, trial.rows, 0, trial.num_tokens - 1)
    with torch.inference_mode():
        for _, layer in cache.compressed_layers:
            slots = torch.tensor(kept).expand(layer.num_heads, -1)
            assert isinstance(layer.key_store, RowStore)
            assert isinstance(layer.value_store, RowStore)
            layer.key_store, layer.value_store = layer.key_store.kept(slots), layer.value_store.kept(slots)
            layer.positions, layer.held = slots, len(kept)
    return divergence(exact_logits(trial), newest_logits(trial, cache))


def trial_of_session(session: Session, seq_id: int) -> Trial:
    pieces = trial_of(session, seq_id, False)
    with pytest.raises(StopIteration) as end:
        next(pieces)
    trial = end.value.value
    assert isinstance(trial, Trial)
    return trial


@pytest.mark.parametrize("name", ["h2o", "snapkv", "tova"])
def test_a_rule_has_not_seen_the_query_that_it_is_judged_by(name: str) -> None:
    """Two sequences that differ in their newest token alone: the rule ranks, and keeps, the same rows of both."""
    spec = CacheSpec(retention=RetentionSpec(name, budget=12))  # type: ignore[arg-type]
    (one, seq_id), (other, _) = started(), started()
    for session, token in ((one, 5), (other, 90)):
        session.force(seq_id, (token,))
        session.step()
    found, again = (answer(session, MeasureRegret(seq_id, spec)) for session in (one, other))
    assert found.kl.tolist() != again.kl.tolist()
    assert found.scores.tolist() == again.scores.tolist()
    for mine, theirs in zip(
        *(scratch_cache(trial_of_session(s, seq_id), spec).compressed_layers for s in (one, other)), strict=True
    ):
        assert torch.equal(mine[1].all_positions(), theirs[1].all_positions())


def test_h2o_is_ranked_by_what_every_query_before_the_newest_gave() -> None:
    """Accumulated as the live cache itself accumulates it, not by one query alone."""
    spec = CacheSpec(retention=RetentionSpec("h2o", budget=100))
    session, seq_id = started(spec)
    cache = session.cache_of(seq_id)
    assert isinstance(cache, CompressedCache)
    before = [layer.memory.clone() for _, layer in cache.compressed_layers if layer.memory is not None]
    session.step()
    ranks = [memory.argsort(1).argsort(1).float().mean(0) / (memory.shape[1] - 1) for memory in before]
    found = answer(session, MeasureRegret(seq_id, spec))
    assert found.scores.tolist() == pytest.approx(torch.stack(ranks).mean(0).tolist(), abs=0.02)


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([0.1, 0.2, 9.0])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([9.0, 0.2, 0.1])) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0]), np.array([9.0])) == 0
    assert rank_correlation(np.zeros(4), np.arange(4.0)) == 0
    tied = rank_correlation(np.array([0.0, 0.0, 0.0, 1.0]), np.array([3.0, 1.0, 2.0, 4.0]))
    assert tied == rank_correlation(np.array([0.0, 0.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])), (
        "ties have no order"
    )


# ---- why evicted -------------------------------------------------------------------------------------------------


def test_an_eviction_tells_the_scores_of_those_that_stayed() -> None:
    session, _ = started(CacheSpec(retention=RetentionSpec("knorm", budget=30, sinks=2, window=3)), steps=0)
    for _ in range(3):
        record = session.step()
    assert {e.kv_head for e in record.evictions} == {0, 1}
    for eviction in record.evictions:
        survivors = eviction.survivors
        assert (survivors.on_merit, survivors.protected) == (25, 5)
        assert len(survivors.quantiles) == 17
        assert survivors.quantiles[0] == eviction.lowest_kept
        assert (np.diff(survivors.quantiles) >= 0).all()
        assert float(eviction.scores.max()) <= float(survivors.quantiles[0])


def test_a_window_keeps_nothing_on_merit() -> None:
    session, _ = started(CacheSpec(retention=WINDOW), steps=0)
    for _ in range(3):
        record = session.step()
    (eviction, *_) = record.evictions
    assert (eviction.survivors.on_merit, eviction.survivors.protected) == (0, 12)
    assert eviction.survivors.quantiles.size == 0
    assert eviction.lowest_kept is None


# ---- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in PRESETS if n not in ("kivi-4", "kivi-2")])
def test_every_gap_has_a_name(name: str) -> None:
    session, _ = started(PRESETS[name].spec)
    for layer in session.bytes().layers:
        within = sum(gap.num_bytes for gap in layer.gaps if gap.part == "reserved")
        assert layer.reserved - layer.stored == within
        assert all(gap.num_bytes > 0 for gap in layer.gaps)


def test_kivi_names_scales_residual_and_the_copy_that_attention_reads() -> None:
    session, _ = started(tuned(PRESETS["kivi-4"].spec, group=16, residual=16))
    (layer, _) = session.bytes().layers
    gaps = {gap.name: gap.num_bytes for gap in layer.gaps}
    count = 45
    assert gaps["dequantised copy"] == count * 2 * (16 + 16) * 4
    assert gaps["exact residual"] == ((count % 16) + 16) * 2 * 16 * 4
    assert gaps["scales and offsets"] == (32 + 29) * 2 * 16 // 16 * 4


# ---- over the wire -----------------------------------------------------------------------------------------------


def test_the_loop_answers_every_question_about_the_truth(tmp_path: Any) -> None:
    config = write_config("llama", tmp_path)
    loop = ThreadClient()
    loop.send(LoadModel(ModelSpec(f"shape:{config}", dtype="float32", num_threads=1), CacheSpec()))
    loop.send(SubmitPrompt(Prompt(token_ids=prompt_ids(20))))
    loop.send(Run(3))
    wanted = {WhatIfAnswer, ParityReport, DamageMap, Regret, Swept}
    found: set[type] = set()
    try:
        deadline = time.monotonic() + 60
        asked = False
        while found < wanted and time.monotonic() < deadline:
            for event in loop.drain():
                assert not isinstance(event, Failed), event
                found |= {type(event)} & wanted
                if getattr(event, "step", None) == 1 and not asked and hasattr(event, "timings"):
                    asked = True
                    loop.send(WhatIf(0, CacheSpec(codec=uniform("int8"))))
                    loop.send(CheckParity(0))
                    loop.send(MapDamage(0, uniform("int8")))
                    loop.send(MeasureRegret(0, PRESETS["h2o"].spec, 4))
                    loop.send(Sweep(Prompt(token_ids=prompt_ids(9)), 2, (("growing", CacheSpec()),)))
            time.sleep(0.01)
    finally:
        assert loop.close(20)
    assert found == wanted


def test_parity_after_a_change_to_a_lossy_mode_calls_its_rows_lossy() -> None:
    """No step ran in that mode yet, but the rows that are compared are written in it."""
    session = Session(model_of("llama"), CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(12)))
    session.step()
    session.set_cache(PRESETS["int8"].spec)
    report = checked(session, CheckParity(0))
    assert isinstance(report, ParityReport)
    assert report.verdict == "lossy, as asked"
    assert report.tensor == "keys"


def test_parity_of_a_sequence_that_gave_its_pages_up_is_refused_until_it_is_read_again() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=9))
    for seed in range(2):
        session.submit(Prompt(token_ids=prompt_ids(10, seed)))
        session.force(seed, prompt_ids(20, seed=9 + seed))
    preempted: tuple[int, ...] = ()
    while not preempted:
        preempted = session.step().preempted
    assert session.sequence(preempted[0]).num_tokens == 0
    with pytest.raises(InputError, match="waits for room in the page pool"):
        list(live_parity(session, CheckParity(preempted[0])))
    assert isinstance(list(live_parity(session, CheckParity(1 - preempted[0])))[-1], ParityReport)
