"""A rule of each kind, and sessions that drop rows by it."""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace

from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import HeadRequest
from tests.engine.tiny import model_of, prompt_ids

RULES = {
    "window": RetentionSpec("window", window=12),
    "sinks+window": RetentionSpec("sinks+window", sinks=2, window=10),
    "rerotated": RetentionSpec("sinks+window", sinks=2, window=10, rerotate=True),
    "h2o": RetentionSpec("h2o", budget=12),
    "snapkv": RetentionSpec("snapkv", budget=12, window=4),
    "tova": RetentionSpec("tova", budget=12),
    "knorm": RetentionSpec("knorm", budget=12, sinks=1),
    "keydiff": RetentionSpec("keydiff", budget=12),
    "random": RetentionSpec("random", ratio=0.5, seed=3),
}


def session_of(
    retention: RetentionSpec, model: LoadedModel | None = None, prompt: int = 20, **more: Any
) -> tuple[Session, int]:
    codec = more.pop("codec", None)
    spec = CacheSpec(retention=retention, **({"codec": codec} if codec else {}))
    session = Session(model or model_of("llama"), spec, prefill_chunk=more.pop("chunk", 8))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(prompt)))
    session.force(seq_id, prompt_ids(40, seed=1))
    return session, seq_id


def held_and_pictured(session: Session, seq_id: int) -> tuple[list[int], Any]:
    """Eight steps on: the positions that head 1 of layer 1 holds, and the picture of its keys, a column a token."""
    for _ in range(8):
        session.step()
    tokens = session.sequence(seq_id).num_tokens
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    assert rows.positions is not None
    return rows.positions[1].tolist(), session.take_picture(HeadRequest(seq_id, tokens, "keys", 1, 1, 0, tokens, 1000))


def roomy(rule: RetentionSpec) -> RetentionSpec:
    """The same rule with room for 100 rows, so that a short context loses none."""
    if rule.name in ("window", "sinks+window"):
        return replace(rule, window=100)
    return RetentionSpec(rule.name, ratio=0.0) if rule.name == "random" else RetentionSpec(rule.name, budget=100)


def assert_nothing_is_dropped(session: Session, seq_id: int, plain: Session, plain_id: int) -> None:
    """Nine steps drop no row, and end with the logits of a `plain` session without a rule."""
    for _ in range(9):
        assert not session.step().evictions
        plain.step()
    assert torch.equal(session.logits(seq_id), plain.logits(plain_id))  # type: ignore[arg-type]
