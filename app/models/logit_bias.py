"""The bias of logits that holds for a sequence, and the same with one thing more: an edit replaces the one before."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from app.models import Models
from engine.spec.edit import BiasLogits


def current_bias(models: Models, seq_id: int) -> BiasLogits:
    """What the newest edit says that the live step stands on; an empty one where there is none."""
    found = [made.edit for made in models.edits.on_path() if isinstance(made.edit, BiasLogits)]
    return next((edit for edit in reversed(found) if edit.seq_id == seq_id), BiasLogits(seq_id))


def with_bias(now: BiasLogits, token_ids: Iterable[int], amount: float) -> BiasLogits:
    """Add to the logits of tokens, in place of what was added to them before."""
    biases = {**dict(now.biases), **dict.fromkeys(token_ids, amount)}
    return replace(now, biases=tuple(biases.items()))


def with_ban(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """Never choose these tokens either."""
    return replace(now, banned=tuple(dict.fromkeys((*now.banned, *token_ids))))


def with_only(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """Choose none but these tokens."""
    return replace(now, only=tuple(dict.fromkeys(token_ids)))


def without(now: BiasLogits, token_id: int) -> BiasLogits:
    """Leave one token to the model again."""
    biases = tuple(pair for pair in now.biases if pair[0] != token_id)
    banned = tuple(other for other in now.banned if other != token_id)
    only = tuple(other for other in now.only if other != token_id)
    return replace(now, biases=biases, banned=banned, only=only)
