"""The edits of a sequence, made again while its tokens are computed into another cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.state import SequenceState
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.edits.apply import edit_cache, keep_first
from engine.session.edits.scratch import newest_logits
from engine.session.live import LiveSequence
from engine.spec.edit import BiasLogits, Edit, Overwrite, ReplaceTokens
from engine.wire.records import Change, EditMade


@dataclass(frozen=True)
class EditThen:
    """An edit of the live path, the node that it made (None: it is among the changes since the newest), and the
    sequence as it was before."""

    edit: Edit
    step: int | None
    before: SequenceState

    @property
    def is_prefill(self) -> bool:
        """Whether all rows from its position on were computed again."""
        return isinstance(self.edit, ReplaceTokens) and self.edit.how == "re-prefill"


@dataclass(frozen=True, eq=False)
class Computed:
    """Newest logits `[V]` with so many tokens, after a forward or after the edit that made the node `edit_step`; None
    where the newest token could not be computed again."""

    num_tokens: int
    logits: torch.Tensor | None
    edit_step: int | None = None


def edits_of(history: History, seq_id: int) -> list[EditThen]:
    """The edits on the live path that changed rows of a sequence, or of the one that it was forked from, in order."""
    found: list[EditThen] = []
    journal, parent = history.journal, None
    for step in [*journal.steps, None]:
        changes: tuple[Change, ...] = tuple(history.changes) if step is None else history.tree.at(step).node.changes
        owner, last = journal.owner(seq_id, step) if step is not None else (seq_id, None)
        if last == step and any(isinstance(each, EditMade) for each in changes):
            state = None if parent is None else journal.state(seq_id, parent)
            for change in changes:
                if not isinstance(change, EditMade) or change.edit.seq_id != owner or state is None:
                    continue
                if not isinstance(change.edit, BiasLogits):
                    found.append(EditThen(change.edit, step, state))
                state = state.apply(change)
        parent = step
    return found


def compute_with_edits(
    model: LoadedModel,
    live: LiveSequence,
    edits: list[EditThen],
    lengths_up_to: Callable[[SequenceState], list[int]],
) -> Iterator[Computed]:
    """Compute the tokens of a sequence into its cache, which is empty, in forwards that end at `lengths_up_to` a state
    of it, and make each edit when the sequence has the tokens that it had then. Raises `InputError` for an edit that
    cannot be made in this cache, or takes its rows from elsewhere."""
    cache, newest = live.cache, live.sequence
    _begin(cache, edits[0].before if edits else newest)
    for then in edits:
        live.sequence = then.before
        yield from _compute(model, cache, then.before, lengths_up_to(then.before))
        edit = then.edit
        if isinstance(edit, Overwrite):
            raise InputError(
                "Its rows came from another step or file: undo that edit first, or choose a mode that takes rows over."
            )
        if then.is_prefill:
            assert isinstance(edit, ReplaceTokens)
            edited = then.before.apply(EditMade(edit))
            if not keep_first(cache, edit.position):
                _begin(cache, edited)
            cache.by_hand = cache.by_hand.edited(edited.num_tokens, edit.position)
            continue
        edit_cache(model, live, edit, None)
        logits = newest_logits(model, cache, live.sequence.token_ids) if cache.num_tokens else None
        yield Computed(cache.num_tokens, logits, then.step)
    live.sequence = newest
    yield from _compute(model, cache, newest, lengths_up_to(newest))


def _begin(cache: SequenceCache, sequence: SequenceState) -> None:
    """Empty a cache, for the source of this sequence where an encoder reads one."""
    if cache.num_source:
        cache.num_source = sequence.num_prompt_tokens - 1
    cache.clear()


def _compute(
    model: LoadedModel, cache: SequenceCache, sequence: SequenceState, lengths: list[int]
) -> Iterator[Computed]:
    driver = Driver(model, cache, sequence.num_prompt_tokens, sequence.token_ids[: cache.num_tokens])
    if cache.num_source:  # the encoder reads its source in one forward
        lengths = [length for length in lengths if length >= sequence.num_prompt_tokens]
    for logits in driver.run(sequence.token_ids, lengths):
        yield Computed(len(driver.token_ids), logits)
