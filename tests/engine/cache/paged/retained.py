"""Paged sessions under each rule."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cache.paged.cache import PagedCache
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

RULES = {
    "window": RetentionSpec("window", window=10),
    "sinks+window": RetentionSpec("sinks+window", sinks=2, window=9),
    "h2o": RetentionSpec("h2o", budget=12),
    "snapkv": RetentionSpec("snapkv", budget=12, window=4),
    "tova": RetentionSpec("tova", budget=12),
    "knorm": RetentionSpec("knorm", budget=12, sinks=1),
    "keydiff": RetentionSpec("keydiff", budget=10),
    "random": RetentionSpec("random", ratio=0.5, seed=3),
}


BY_RULE = pytest.mark.parametrize("name", RULES)


def session_of(
    retention: RetentionSpec, model: LoadedModel | None = None, chunk: int = 8, prompt: int = 21, **more: Any
) -> tuple[Session, int]:
    spec = CacheSpec("paged", retention=retention, **{"page_size": 4, **more})
    session = Session(model or model_of("llama"), spec, prefill_chunk=chunk)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(prompt)))
    session.force(seq_id, prompt_ids(60, seed=1))
    return session, seq_id


def paged(session: Session, seq_id: int) -> PagedCache:
    cache = session.cache_of(seq_id)
    assert isinstance(cache, PagedCache)
    return cache


SPECS = {
    **{name: CacheSpec("paged", page_size=4, retention=rule) for name, rule in RULES.items()},
    "one": CacheSpec("paged", page_size=1, retention=RULES["tova"]),
    "int8": CacheSpec("paged", page_size=4, retention=RULES["h2o"], codec=uniform("int8")),
    "tight": CacheSpec("paged", page_size=4, retention=RULES["knorm"], num_pages=24),
}
