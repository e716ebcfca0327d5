"""What edits change about the next token: the choices that were measured after the newest, and the bias of logits."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from app.models import Models
from app.models.sequence_status import selected_info
from engine.spec.edit import BiasLogits
from engine.wire.records import SequenceStep


def after_edit(models: Models, part: SequenceStep, fed: int) -> tuple[int, SequenceStep] | None:
    """The edit that was made last since the step `fed`, which fed the selected sequence, and what that step says of the
    next token with what is true since in its place. None where nothing was edited since, or not measured."""
    now = models.selection.now
    edits = [made for made in models.edits.on_path(now.step) if made.step > fed and made.edit.seq_id == now.seq_id]
    measured = models.edits.measured(edits[-1].step) if edits else None
    if measured is None or not measured.after:
        return None
    info = selected_info(models)
    sampled = info.sampled if info is not None and now.step is None else measured.after[0].token_id
    texts = {one.token_id: one.text for one in (*part.candidates, *measured.after)}
    text = part.sampled_text if sampled == part.sampled else texts.get(sampled or 0, f"#{sampled}")
    told = replace(part, candidates=measured.after, entropy=measured.entropy, sampled=sampled, sampled_text=text)
    return measured.step, told


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
