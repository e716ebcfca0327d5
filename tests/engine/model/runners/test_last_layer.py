"""The last layer of a chunk is computed for its newest token, and for the others once somebody asks, however late."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model import batch
from engine.model.runners import decoder
from engine.model.runners.decoder import DeferredOutputs
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.records import StepRecord
from tests.engine.tiny import model_of, prompt_ids

LENGTH, CHUNK = 20, 10
SPECS = {
    "growing": CacheSpec(),
    "dynamic": CacheSpec("dynamic"),
    "static": CacheSpec("static", max_length=64),
    "paged": CacheSpec("paged", page_size=4, num_pages=40),
    "none": CacheSpec("none"),
}


def prefilled(
    spec: CacheSpec, monkeypatch: pytest.MonkeyPatch, *, defers_last_layer: bool, by_layer: bool = False
) -> tuple[Session, list[StepRecord]]:
    monkeypatch.setattr(decoder, "MIN_DEFERRED_PRODUCTS", 0 if defers_last_layer else 10**18)
    session = Session(model_of("llama"), spec, prefill_chunk=CHUNK)
    session.captured.set(session.captured.level, by_layer=by_layer)
    session.submit(Prompt(token_ids=prompt_ids(LENGTH)))
    records = []
    while session.is_prefilling:
        records.append(session.step())
    return session, records


@pytest.mark.parametrize("is_late", [False, True], ids=["inside", "later"])
@pytest.mark.parametrize("name", SPECS)
def test_rows_are_the_same_to_the_last_bit_and_all_else_within_rounding(
    name: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later the cache may hold other rows: what the layer read is kept as it was."""
    monkeypatch.setattr(batch, "PRODUCTS_IN_STEP", 0 if is_late else 10**18)
    monkeypatch.setattr(batch, "SLICE_LOGITS", 3 * 128)
    model_of("llama")  # is tried when it is made
    found, made = [], list[DeferredOutputs]()

    def later(*parts: Any) -> DeferredOutputs:
        made.append(DeferredOutputs(*parts))
        return made[-1]

    monkeypatch.setattr(decoder, "DeferredOutputs", later)
    for defers_last_layer in (False, True):
        session, records = prefilled(SPECS[name], monkeypatch, defers_last_layer=defers_last_layer)
        logits, weights = session.logits(0), session.history.attention.get((records[-1].step, 0))
        held = [rows for layer in range(len(session.cache_of(0).layers)) if (rows := session.cache_of(0).rows(layer))]
        kept = [tensor.clone() for rows in held for tensor in (rows.keys, rows.values)]
        with torch.inference_mode():
            for rows in held:
                rows.keys.zero_()
        late = list(session.history.surprisal.finish())
        assert bool(late) == is_late
        values = [v for r in records for v in session.history.surprisal.filled(r).sequences[0].surprisal][1:]
        assert logits is not None
        assert weights is not None
        found.append((logits, torch.stack(list(weights.values())), torch.tensor(values), kept, len(made)))
    (*numbers, rows, num_later), (*apart, apart_rows, num_apart) = found
    assert (num_later, num_apart) == (0, 1 if name == "none" else 2), "one a chunk"
    torch.testing.assert_close(apart, numbers, rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, rows, apart_rows))


def test_a_rule_that_watches_every_query_has_nothing_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CacheSpec(retention=RetentionSpec("h2o", budget=12))
    at_once, _ = prefilled(spec, monkeypatch, defers_last_layer=False)
    session, _ = prefilled(spec, monkeypatch, defers_last_layer=True)
    mine, other = session.logits(0), at_once.logits(0)
    assert mine is not None
    assert other is not None
    assert torch.equal(mine, other)


def test_whether_layers_are_timed_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[DeferredOutputs]()

    def later(*parts: Any) -> DeferredOutputs:
        made.append(DeferredOutputs(*parts))
        return made[-1]

    monkeypatch.setattr(decoder, "DeferredOutputs", later)
    alone, _ = prefilled(SPECS["growing"], monkeypatch, defers_last_layer=True)
    session, records = prefilled(SPECS["growing"], monkeypatch, defers_last_layer=True, by_layer=True)
    mine, other = session.logits(0), alone.logits(0)
    assert mine is not None
    assert other is not None
    assert torch.equal(mine, other)
    assert len(made) == 4, "one a chunk, timed or not"
    times = records[-1].timings.layers
    assert times is not None
    assert min(times.attention_ms) > 0, "the last layer is timed as the others are"
