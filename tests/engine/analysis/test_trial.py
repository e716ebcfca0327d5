"""Other caches on the rows held now: what they would give, what they take, and how they are asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from engine.analysis.parity import live_parity
from engine.analysis.what_if import shifts
from engine.client.thread import ThreadClient
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.codec import uniform
from engine.spec.grid import SweepMode, SweepText
from engine.spec.model import ModelSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import LoadModel, Run, SubmitPrompt
from engine.wire.events import Failed
from engine.wire.measurements import (
    CheckParity,
    DamageMap,
    MapDamage,
    MeasureRegret,
    ParityReport,
    Regret,
    Sweep,
    Swept,
    WhatIf,
    WhatIfAnswer,
)
from engine.wire.records import Candidate
from tests.engine.analysis.live import WINDOW, checked, run_of, started
from tests.engine.cache.compressed.test_cache_going_back import assert_same, state_of
from tests.engine.tiny import model_of, prompt_ids, write_config


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
    assert (found.top1_changed, found.kept_ratio) == (False, 1.0)
    assert (found.kl, found.max_abs_logit_diff) == pytest.approx((0.0, 0.0), abs=1e-5)


@pytest.mark.parametrize(
    ("live", "tried", "said"),
    [
        (CacheSpec(), CacheSpec("paged"), "exact"),
        (CacheSpec("dynamic"), CacheSpec(codec=uniform("kivi-2")), "do not divide"),
    ],
)
def test_what_cannot_be_tried_is_refused(live: CacheSpec, tried: CacheSpec, said: str) -> None:
    session, seq_id = started(live)
    with pytest.raises(InputError, match=said):
        run_of(session, WhatIf(seq_id, tried))


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


def test_the_loop_answers_every_question_about_the_truth(tmp_path: Any) -> None:
    config = write_config("llama", tmp_path)
    loop = ThreadClient()
    loop.send(LoadModel(ModelSpec(f"shape:{config}", dtype="float32", num_threads=1), CacheSpec()))
    loop.send(SubmitPrompt(Prompt(token_ids=prompt_ids(20))))
    loop.send(Run(3))
    wanted = {WhatIfAnswer, ParityReport, DamageMap, Regret, Swept}
    found: set[type] = set()
    try:
        deadline = time.monotonic() + 300
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
                    loop.send(
                        Sweep(
                            (SweepText("prompt", Prompt(token_ids=prompt_ids(9))),),
                            2,
                            (SweepMode("growing", CacheSpec()),),
                        )
                    )
            time.sleep(0.01)
    finally:
        assert loop.close(300)
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
