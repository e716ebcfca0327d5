"""What a record says of a step: rows, surprisal, bytes, attention, numbers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.history.conditions import RECENT, recorded_attention
from engine.model.batch import Batch, Result
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.condition import TokenSpan
from engine.spec.sampling import Prompt
from engine.wire.pictures import AttentionRequest
from tests.engine.session.sessions import started
from tests.engine.tiny import prompt_ids


def test_a_record_says_what_was_measured() -> None:
    session, seq_id = started(length=6)
    record = session.step()
    part = record.sequences[0]
    held = session.cache_of(seq_id).rows(1)
    assert part.rows is not None
    assert held is not None
    assert part.rows.key_norm[1] == pytest.approx(held.keys[0].norm(dim=-1).numpy(), abs=1e-5)
    assert part.rows.value_norm[1] == pytest.approx(held.values[0].norm(dim=-1).numpy(), abs=1e-5)
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


@pytest.mark.parametrize("tensor", ["keys", "values"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("cache", ["growing", "dynamic", "static", "none", "paged"])
def test_numbers_that_are_none_are_located(tensor: str, bad: float, cache: str) -> None:
    """One weight of one layer's projection becomes NaN: the record names tensor, layer, head and every position."""
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
    if tensor == "values":  # torch's kernel may leave a NaN key out of its softmax
        (logits,) = [p for p in record.non_finite if p.tensor == "logits"]
        assert (logits.layer, logits.kv_head, logits.position) == (None, None, 4)
        assert math.isnan(record.sequences[0].entropy or 0.0)


def test_a_bad_row_is_found_behind_a_window_that_dropped_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk longer than the window leaves only its last rows in transformers' sliding layer."""
    session, seq_id = started("mistral", CacheSpec("dynamic"), length=20)
    real = session.model.forward

    def forward(self: Any, batch: Batch) -> Result:
        result = real(batch)
        held = session.cache_of(seq_id).rows(1)
        assert held is not None
        assert held.first == 13
        with torch.inference_mode():
            held.keys[0, 1, 4, 2] = math.nan
        return result

    monkeypatch.setattr(type(session.model), "forward", forward)
    (place,) = session.step().non_finite
    assert (place.tensor, place.layer, place.kv_head, place.position, place.count) == ("keys", 1, 1, 17, 1)


def test_attention_of_past_steps_stays_until_it_is_rewound() -> None:
    session, seq_id = started(length=6)
    for _ in range(4):
        session.step()
    piece = session.take_picture(AttentionRequest(seq_id, 2, 1, 100))
    assert piece.provenance == "recorded"
    assert piece.query_position == 7
    assert list(piece.positions) == list(range(8))
    assert np.allclose(piece.weights.sum(-1), 1.0, atol=1e-5)
    session.go_to(1)
    assert "no longer kept" in session.take_picture(AttentionRequest(seq_id, 2, 1, 100)).note


def test_a_preemption_is_recorded_once_by_the_step_that_needed_the_room() -> None:
    session, _ = started(cache=CacheSpec("paged", page_size=4, num_pages=8), length=9)
    session.submit(Prompt(token_ids=prompt_ids(9, 1)))
    records = [session.step() for _ in range(12)]
    given_way = [seq_id for record in records for seq_id in record.preempted]
    assert given_way
    for info in session.sequences:
        assert given_way.count(info.seq_id) == info.num_preemptions


def test_a_waiting_sequence_has_no_row_and_has_not_ended() -> None:
    session, _ = started()
    waits, stopped = (session.submit(Prompt(token_ids=prompt_ids(5, seed))) for seed in (1, 2))
    session.stop(stopped)
    assert [session.step().waiting for _ in range(3)] == [(waits,), (), ()]


@pytest.mark.parametrize(("cache", "is_told"), [("growing", True), ("h2o", False)])
def test_attention_sums_of_a_record_cover_all_rows_or_are_absent(cache: str, is_told: bool) -> None:
    """Where rows were dropped, the first row and the last sixteen are not the first token and the last sixteen."""
    session, _ = started(cache=PRESETS[cache].spec)
    record = session.step()
    part = record.sequences[0]
    assert part.attention is not None
    for span, mass in ((TokenSpan(), part.attention.first_mass), (RECENT, part.attention.recent_mass)):
        found = recorded_attention(record, part, span)
        assert (found is not None) is is_told
        if found is not None:
            assert (found.mean, found.peak) == (pytest.approx(float(mass.mean())), pytest.approx(float(mass.max())))
    assert recorded_attention(record, part, TokenSpan(1, 2)) is None
