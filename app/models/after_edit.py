"""What edits change about the next token: its candidates as measured after the newest edit, and the logit biases."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from app.models import Models
from app.models.sequence_status import selected_info
from engine.spec.edit import BiasLogits
from engine.wire.records import SequenceStep


def after_edit(models: Models, part: SequenceStep, fed: int) -> tuple[int, SequenceStep] | None:
    """The newest edit on the selected sequence since the step `fed`, which fed it last, as the number of its node; and
    that step's part with the candidates, entropy and sampled token measured after the edit. None if nothing was edited
    since or it was not measured."""
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
    """The logit bias that is in force at the live step for a sequence; an empty one if there is none."""
    found = [made.edit for made in models.edits.on_path() if isinstance(made.edit, BiasLogits)]
    return next((edit for edit in reversed(found) if edit.seq_id == seq_id), BiasLogits(seq_id))


def with_bias(now: BiasLogits, token_ids: Iterable[int], amount: float) -> BiasLogits:
    """`now` with `amount` added to the logits of these tokens, in place of any earlier bias on them."""
    biases = {**dict(now.biases), **dict.fromkeys(token_ids, amount)}
    return replace(now, biases=tuple(biases.items()))


def with_ban(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """`now` with these tokens banned as well."""
    return replace(now, banned=tuple(dict.fromkeys((*now.banned, *token_ids))))


def with_only(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """`now` with the choice restricted to these tokens."""
    return replace(now, only=tuple(dict.fromkeys(token_ids)))


def without(now: BiasLogits, token_id: int) -> BiasLogits:
    """`now` without any bias, ban or restriction on one token."""
    biases = tuple(pair for pair in now.biases if pair[0] != token_id)
    banned = tuple(other for other in now.banned if other != token_id)
    only = tuple(other for other in now.only if other != token_id)
    return replace(now, biases=biases, banned=banned, only=only)
