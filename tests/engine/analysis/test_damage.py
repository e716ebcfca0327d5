"""What a codec does to rows, attention and the next token, layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.analysis.what_if import attention_shift, only_layer, planned_codings, suggested, tensor_damage
from engine.cache.attention_probe import Probe
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding, uniform
from engine.wire.measurements import LayerPlanStep, MapDamage
from tests.engine.analysis.live import damage_map, started


def test_the_damage_map_measures_what_reading_back_shows() -> None:
    session, seq_id = started()
    codec = CodecSpec(Coding("int8"), Coding("kivi-2", 16, 16))
    found = damage_map(session, MapDamage(seq_id, codec, max_columns=1000))
    assert found.tokens_per_column == 1
    assert found.keys.by_token.shape == (2, 2, session.sequence(seq_id).num_tokens - 1)
    assert found.keys.by_channel.shape == (2, 2, 16)
    assert float(found.keys.by_token.max()) < 0.02 < float(found.values.by_token.max())
    assert float(found.values.by_token[:, :, -16:].max()) == 0, "the residual is exact"
    assert found.attention.shape == (2, 4)
    assert 0 < float(found.attention.max()) < 1
    assert found.kl > 0
    assert found.num_rows == session.sequence(seq_id).num_tokens - 1, "those that were coded, without the newest"
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
    for number, layer in enumerate(found.layers):
        alone = damage_map(session, MapDamage(seq_id, only_layer(uniform("int8"), layer)))
        assert alone.kl == pytest.approx(found.kl_by_layer[number], rel=1e-6)
    again = damage_map(session, MapDamage(seq_id, found.plan_codec))
    assert (again.kl, again.kv_bytes) == (pytest.approx(found.plan_kl, rel=1e-6), found.plan_bytes)


def test_errors_are_root_mean_squares_in_parts_of_a_heads_size() -> None:
    """Two layers of other heads and channels, seven rows in columns of three."""
    made = torch.Generator().manual_seed(3)
    pairs = []
    for heads, dims in ((2, 4), (1, 6)):
        true = torch.randn(1, heads, 7, dims, generator=made)
        pairs.append((true, true + 0.1 * torch.randn(1, heads, 7, dims, generator=made)))
    found = tensor_damage(pairs, 3)
    assert found.by_token.shape == (2, 2, 3)
    assert found.by_channel.shape == (2, 2, 6)
    for layer, (true, read) in enumerate(pairs):
        for head in range(true.shape[1]):
            exact, error = true[0, head].numpy(), (read - true)[0, head].numpy()
            size = np.sqrt((exact**2).mean())
            columns = [np.sqrt((error[start : start + 3] ** 2).mean()) / size for start in (0, 3, 6)]
            assert found.by_token[layer, head] == pytest.approx(columns, rel=1e-5)
            channels = np.sqrt((error**2).mean(0)) / size
            assert found.by_channel[layer, head, : true.shape[3]] == pytest.approx(channels, rel=1e-5)
            assert found.max_abs[layer, head] == pytest.approx(np.abs(error).max())
    assert np.isnan(found.by_token[1, 1]).all()
    assert np.isnan(found.by_channel[0, :, 4:]).all()


def test_attention_that_moves_counts_once() -> None:
    """A tenth goes from one row to another in one head; another looks at other rows altogether."""
    before = Probe(weights={0: torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]), 2: torch.ones(1, 2, 1)})
    after = Probe(weights={0: torch.tensor([[[0.6, 0.4, 0.0], [0.0, 0.5, 0.5]]]), 2: torch.ones(1, 2, 1)})
    assert attention_shift(before, after, (0, 1, 2)).tolist() == [pytest.approx([0.1, 1.0]), [0, 0]]


def test_a_plan_takes_bits_where_a_byte_costs_least() -> None:
    def step(layer: int, name: str, kl: float, num_bytes: int) -> LayerPlanStep:
        return LayerPlanStep(LayerCoding(layer, Coding(name), Coding(name)), kl, num_bytes)  # type: ignore[arg-type]

    choices = {
        0: [step(0, "exact", 0.0, 100), step(0, "int8", 0.5, 50), step(0, "kivi-4", 0.6, 30)],
        3: [step(3, "exact", 0.0, 100), step(3, "int8", 0.1, 50), step(3, "kivi-4", 2.0, 30)],
    }

    def names(budget: int) -> list[str]:
        return [each.coding.keys.name for each in suggested(choices, budget)]

    assert names(200) == ["exact", "exact"]
    assert names(199) == ["exact", "int8"], "a tenth for fifty bytes"
    assert names(149) == ["kivi-4", "int8"], "six tenths for seventy are less a byte than five for fifty"
    assert names(80) == ["kivi-4", "int8"]
    assert names(79) == ["kivi-4", "kivi-4"]
    with pytest.raises(InputError, match="smallest takes 60"):
        suggested(choices, 59)


def test_a_planned_group_is_the_widest_that_divides_the_channels() -> None:
    def planned(name: str, dims: int, residual: int | None) -> tuple[int | None, int | None] | None:
        found = planned_codings(name, dims, residual)
        return None if found is None else (found[0].group, found[1].residual)

    assert planned("kivi-4", 64, 64) == (32, 64)
    assert planned("kivi-4", 48, 64) == (16, 64)
    assert planned("kivi-2", 24, None) is None, "sixteen codes to a word, and eight channels to a group"
    assert planned("kivi-4", 24, 16) == (8, 16)
    assert planned("kivi-4", 64, 16) == (32, planned("kivi-4", 64, None)[1]), "no residual of half a group"  # type: ignore[index]
