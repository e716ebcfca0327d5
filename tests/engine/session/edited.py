"""Sequences of tiny models that are edited, and what attention must read then, computed apart from the engine."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from engine.cache.layers.build import cache_argument
from engine.model.tokenizer import TokenTexts
from engine.session.edits import EditOutcome, RowsFrom, apply_edit
from engine.session.session import Session
from engine.session.states import LiveSequence
from engine.spec.cache import CacheSpec
from engine.spec.edit import Edit
from tests.engine.session.sessions import started
from tests.engine.tiny import prompt_ids


def running(cache: CacheSpec, architecture: str = "llama", length: int = 40, num_steps: int = 4) -> tuple[Session, int]:
    """A session that has read a prompt and decoded some forced tokens."""
    session, seq_id = started(architecture, cache, length=length)
    session.force(seq_id, prompt_ids(60, seed=3))
    for _ in range(1 + num_steps):
        session.step()
    return session, seq_id


def copy_of(session: Session, seq_id: int) -> LiveSequence:
    """A copy of the sequence with the same rows in a cache of its own."""
    live = session.live.get(seq_id)
    cache = session.live.mode.new_cache(seq_id, session.sequence(seq_id).num_prompt_tokens)
    assert cache.fork_from(live.cache, live.cache.num_tokens)
    return LiveSequence(seq_id, live.sequence.forked(), cache, live.logits, live.logprobs)


def edit_copy(session: Session, edit: Edit, source: RowsFrom | None = None) -> tuple[LiveSequence, EditOutcome]:
    live = copy_of(session, edit.seq_id)
    return live, apply_edit(session.model, session.live.mode, live, edit, TokenTexts(None), source)


def rows_of(live: LiveSequence) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """K and V `[H_kv, S, D]` by layer, as attention reads them."""
    found = {}
    for index in range(len(live.cache.layers)):
        held = live.cache.rows(index)
        if held is not None:
            found[index] = held.keys[0].clone(), held.values[0].clone()
    return found


@torch.inference_mode()
def logits_over(
    session: Session, rows: dict[int, tuple[torch.Tensor, torch.Tensor]], token_ids: list[int]
) -> torch.Tensor:
    """Logits that transformers computes for the last token, given the rows of all tokens before it."""
    model = session.model
    cache = DynamicCache(config=model.model.config)
    for index, (keys, values) in rows.items():
        cache.update(keys[None], values[None], index)
    ids = torch.tensor([token_ids[-1:]])
    return model.model(ids, **{cache_argument(model.model): cache}, use_cache=True).logits[0, -1]  # type: ignore[no-any-return]


def edit_live(session: Session, edit: Edit, source: RowsFrom | None = None) -> EditOutcome:
    """Make an edit in place."""
    live = session.live.get(edit.seq_id)
    return apply_edit(session.model, session.live.mode, live, edit, session.text_of, source)
