"""What a cache says that it takes, against every storage that can be reached from it, whatever holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.cache.compressed.cache import CompressedCache
from engine.cache.contract import HeldBytes
from engine.cache.paged.cache import PagedCache
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import prompt_ids, uneven_model

H2O = RetentionSpec("h2o", budget=12, sinks=1)
SPECS = {
    "h2o": CacheSpec(retention=H2O),
    "h2o int8": CacheSpec(retention=H2O, codec=uniform("int8")),
    "snapkv": CacheSpec(retention=RetentionSpec("snapkv", budget=12, window=4)),
    "rotated": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=9, rerotate=True)),
    "fp8": CacheSpec(codec=uniform("fp8-head")),
    "kivi": CacheSpec(codec=CodecSpec(Coding("kivi-4", 8, 16), Coding("kivi-2", 16, 16))),
    "k and v apart": CacheSpec(codec=CodecSpec(Coding("int8"), Coding("fp8"))),
}


def storages(thing: Any, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of every storage that a thing holds, by whatever way."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing.untyped_storage().data_ptr(), thing.untyped_storage().nbytes()
    elif isinstance(thing, dict):
        for each in thing.values():
            yield from storages(each, seen)
    elif isinstance(thing, list | tuple | deque | set):
        for each in thing:
            yield from storages(each, seen)
    elif type(thing).__module__.startswith("engine.cache.") and hasattr(thing, "__dict__"):
        yield from storages(vars(thing), seen)


def total(*things: Any) -> int:
    return sum(dict(pair for thing in things for pair in storages(thing, set())).values())


def stepped(spec: CacheSpec, num_steps: int) -> Session:
    session = Session(uneven_model(), spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(21)))
    session.force(0, prompt_ids(80, seed=1))
    for _ in range(num_steps):
        session.step()
    return session


@pytest.mark.parametrize("num_steps", [2, 3, 12, 50])
@pytest.mark.parametrize("name", SPECS)
def test_all_that_a_layer_holds_is_told_once(name: str, num_steps: int) -> None:
    """While the prompt is read, when it has just ended, a few steps on and far behind what rows were dropped."""
    cache = stepped(SPECS[name], num_steps).cache_of(0)
    assert isinstance(cache, CompressedCache)
    for index, layer in cache.compressed_layers:
        held: HeldBytes = cache.all_bytes()[index]
        of_rows = total(layer.key_store, layer.value_store) + total(layer.positions)
        assert held.reserved + layer.key_store.spare_bytes + layer.value_store.spare_bytes == of_rows
        assert held.positions == total(layer.positions)
        assert held.scores == (0 if layer.memory is None else layer.memory.nbytes)
        mine = [step.layers.get(index) for step in cache.lost.since(0)]
        assert held.lost - layer.key_store.spare_bytes - layer.value_store.spare_bytes == total(mine)
        assert held.stored == layer.coded_bytes.total <= held.reserved


def test_all_that_a_rule_holds_beside_its_pages_is_told() -> None:
    cache = stepped(CacheSpec("paged", page_size=4, retention=H2O), 14).cache_of(0)
    assert isinstance(cache, PagedCache)
    assert cache.keeper is not None
    assert cache.lost_bytes == total(cache.lost.since(0)) > 0
    scores = [held.scores for held in cache.all_bytes()]
    assert scores == [memory.nbytes for memory in cache.keeper.memory.values() if memory is not None]
    assert len(scores) == 3
