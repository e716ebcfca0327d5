"""What each rule gives a row, in numbers that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.cache.compressed.retention import LayerView, rule_of
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import AttentionRequest
from tests.engine.tiny import model_of, prompt_ids


def view(keys: list[list[list[float]]], layer: int = 0) -> LayerView:
    """Keys `[H_kv, S, D]` at positions 0 … S - 1."""
    tensor = torch.tensor(keys)
    positions = torch.arange(tensor.shape[1]).expand(tensor.shape[0], -1)
    return LayerView(layer, tensor, positions, None, None)


def test_keydiff_compares_directions_and_not_lengths() -> None:
    """The mean is of keys of length 1: a long key must not pull it towards itself."""
    scores = rule_of(RetentionSpec("keydiff", budget=2)).score(view([[[100.0, 0.0], [0.0, 1.0], [0.0, 1.0]]]))
    mean = torch.tensor([1.0, 2.0]) / 3
    expected = [-mean[0] / mean.norm(), -mean[1] / mean.norm(), -mean[1] / mean.norm()]
    assert scores[0].tolist() == pytest.approx([float(e) for e in expected])
    assert scores[0, 0] > scores[0, 1], "the one that points elsewhere stays"


def test_knorm_scores_by_length_alone() -> None:
    scores = rule_of(RetentionSpec("knorm", budget=2)).score(
        view([[[3.0, 4.0], [0.0, -1.0]], [[0.0, 2.0], [6.0, 8.0]]])
    )
    assert scores.tolist() == [[-5.0, -1.0], [-2.0, -10.0]]


def test_chance_differs_by_layer_head_position_and_seed() -> None:
    same = [[[0.0]] * 64] * 2

    def drawn(layer: int, seed: int) -> torch.Tensor:
        return rule_of(RetentionSpec("random", budget=2, seed=seed)).score(view(same, layer))

    one = drawn(0, 0)
    assert torch.equal(one, drawn(0, 0))
    assert len(one[0].unique()) == 64
    for other in (one.flip(0), drawn(1, 0), drawn(0, 1)):
        assert int((one == other).sum()) == 0
    assert 0 <= float(one.min()) < 0.1
    assert 0.9 < float(one.max()) <= 1


@pytest.mark.parametrize("layout", [{}, {"layout": "paged", "page_size": 4}], ids=["rows", "pages"])
def test_heavy_hitters_carry_what_each_row_that_is_left_has_received(layout: dict[str, Any]) -> None:
    """Computed token by token, so that the newest query's attention is all the attention there was."""
    spec = CacheSpec(retention=RetentionSpec("h2o", budget=12, sinks=1), **layout)
    session = Session(model_of("llama"), spec, prefill_chunk=1)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(17)))
    session.force(seq_id, prompt_ids(30, seed=1))
    received = [torch.zeros(2, 40) for _ in range(2)]
    while session.sequence(seq_id).num_tokens < 36:
        session.step()
        kept = session.cache_of(seq_id).stored(session.sequence(seq_id).num_tokens)
        for layer, stored in kept.layers.items():
            row: Any = session.take_picture(AttentionRequest(seq_id, session.last_step or 0, layer, 1000))
            weights = torch.tensor(row.weights).nan_to_num(0.0).view(2, 2, -1).mean(1)  # of two heads each
            received[layer][:, torch.tensor(row.positions)] += weights
            places = stored.positions if stored.positions is not None else torch.arange(stored.num_rows).expand(2, -1)
            assert stored.memory is not None
            assert torch.allclose(stored.memory, received[layer].gather(1, places), atol=1e-5)
    assert kept.layers[1].num_rows < 17
