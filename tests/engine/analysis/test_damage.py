"""What a codec does to rows, attention and the next token, layer by layer."""

from __future__ import annotations

import pytest

from engine.analysis.damage import damage_map
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding, uniform
from engine.wire.measuring import MapDamage
from tests.engine.analysis.live import started


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
