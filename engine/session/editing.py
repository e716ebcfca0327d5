"""Edits of the cache by hand. They are made on copies of the live sequences: a failed edit changes nothing, and the
state before is kept unchanged, so that undo is immediate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.cache.contract import HeldRows
from engine.cache.paged.pool import PoolExhausted
from engine.errors import InputError
from engine.history.state import ALL_TOKENS, Move
from engine.session.atomic import atomic
from engine.session.change_mode import set_mode
from engine.session.edits.apply import EditOutcome, apply_edit, changes_rows
from engine.session.edits.numbers import RowsFrom, RowsOfStep
from engine.session.live import LiveSequence, close_all, on_failure
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.edit import BiasLogits, Edit, Overwrite, ReplaceTokens
from engine.wire.events import NodeAdded
from engine.wire.measurements import EditMeasured
from engine.wire.records import EditMade, Provenance
from engine.wire.tree import Node

if TYPE_CHECKING:
    from engine.session.session import Session

Check = Callable[[], None] | None


@atomic
def make_edit(session: Session, edit: Edit, check: Check = None) -> tuple[NodeAdded, EditMeasured]:
    """Make an edit as a node of its own in the history; earlier changes since the newest step become another node
    before it. Returns the node and what the edit did to the next token. Raises and changes nothing on failure."""
    session.kept.trim()  # each edit keeps a state, and no step comes between
    moved = keep_rows(session, edit)
    with ExitStack() as open_files:
        copies, edited = edited_copies(session, edit, source_of(session, edit, open_files, check), check)
    how = f"{moved}{edited.took_ms:.0f} ms, {edited.why_unmeasured or f'measured in {edited.measured_ms:.0f} ms'}"
    texts = tuple(map(session.text_of, edit.token_ids)) if isinstance(edit, ReplaceTokens) else ()
    measured = measured_at(session.history.next_step, edit, edited, provenance_of_rows(session, edit))
    node = take_edited(session, edit, copies, edited, is_node=True)  # nothing that can fail comes behind it
    assert node is not None, "an edit is a change"
    session.history.added.remove(node)
    added = NodeAdded(node, is_live=True, how=how, kl=edited.kl, texts=texts)
    return added, replace(measured, step=node.step)


def keep_rows(session: Session, edit: Edit) -> str:
    """Move a session whose mode keeps no rows into the growing one, if the edit changes rows; returns that in words."""
    if not session.cache.recomputes or not changes_rows(edit):
        return ""
    edit.check(session.model.info.geometry, session.sequence(edit.seq_id).num_tokens)
    label = cache_label(session.cache)
    how = set_mode(session, CacheSpec())
    return f"{label} keeps no rows to edit: moved to {cache_label(session.cache)}, {how} · "


@atomic
def repeat_edit(session: Session, edit: Edit) -> EditMeasured:
    """Repeat a recorded edit, as one of the changes of the node that is being replayed. Returns what it did to the next
    token, which no session file contains."""
    with ExitStack() as open_files:
        copies, edited = edited_copies(session, edit, source_of(session, edit, open_files, None), None)
    provenance = provenance_of_rows(session, edit)
    take_edited(session, edit, copies, edited, is_node=False)
    return measured_at(session.history.next_step, edit, edited, provenance)


def provenance_of_rows(session: Session, edit: Edit) -> Provenance:
    """What the rows are that an edit is about to change."""
    return session.rows_at(edit.seq_id, session.sequence(edit.seq_id).num_tokens).provenance


def measured_at(step: int, edit: Edit, edited: EditOutcome, provenance: Provenance) -> EditMeasured:
    """What the edit at node `step` did to the next token."""
    return EditMeasured(
        step=step,
        seq_id=edit.seq_id,
        kl=edited.kl,
        before=edited.before,
        after=edited.after,
        took_ms=edited.took_ms,
        measured_ms=edited.measured_ms,
        kept=edited.kept,
        provenance=provenance,
        entropy=edited.entropy,
    )


def edited_copies(
    session: Session, edit: Edit, source: RowsFrom | None, check: Check
) -> tuple[dict[int, LiveSequence], EditOutcome]:
    """Copies of all live sequences, with the edit made on one of them, and the outcome of the edit. The live sequences
    stay as they are."""
    mode, copies = session.live.mode, dict[int, LiveSequence]()
    session.sequence(edit.seq_id)  # raises where it does not exist
    try:
        for live in session.live:
            copies[live.seq_id] = copy_of(session, live)
        return copies, apply_edit(session.model, mode, copies[edit.seq_id], edit, session.text_of, source, check)
    except PoolExhausted as error:
        raise InputError(f"An edit copies what it changes, and the page pool has no room ({error}).") from None


def copy_of(session: Session, live: LiveSequence) -> LiveSequence:
    """A copy of a sequence with its own rows; pages are shared until one of the two writes to them."""
    session.refresh(live)
    cache = session.live.mode.new_cache(live.seq_id, live.sequence.num_prompt_tokens)
    count = live.cache.num_tokens
    if count and not cache.fork_from(live.cache, count, as_itself=True):
        raise InputError(f"The rows of sequence {live.seq_id} cannot be copied in this mode, so they are not edited.")
    return live.copied(cache)


def take_edited(
    session: Session, edit: Edit, copies: dict[int, LiveSequence], edited: EditOutcome, *, is_node: bool
) -> Node | None:
    """Make the edited copies the live sequences, and keep the state before. With `is_node` the edit becomes a node of
    the history, which is returned; earlier changes become a node before it. On failure the session is as before, and
    the caller still owns the copies."""
    history, mode = session.history, session.live.mode
    old = {each.seq_id: each for each in session.live}
    with on_failure(lambda: history.drop_logs(edit.seq_id)):
        if is_node:
            session.add_changes()
        before = session.restorer.state_of_newest_step()
        if before is not None:
            session.kept.keep(before)
        session.live.replace(mode, copies)
        live = copies[edit.seq_id]
        note(session, edit, live, edited, had=old[edit.seq_id].sequence.num_tokens)
        live.sequence = live.sequence.edited(edit, history.next_step)
        history.changes.append(EditMade(edit))
        node = session.add_changes(is_empty_allowed=True) if is_node else None
    if before is None:
        close_all(old)
    return node


def note(session: Session, edit: Edit, live: LiveSequence, edited: EditOutcome, had: int) -> None:
    """Note that rows were edited by hand when the sequence had `had` tokens, so that earlier states are known only if
    they end before the first of them; and log the newest logits and attention, which the edit has changed."""
    if isinstance(edit, BiasLogits) or not live.cache.by_hand:
        return
    at, first = live.cache.by_hand.edits[-1]
    num_same = edit.position if isinstance(edit, ReplaceTokens) else ALL_TOKENS
    newest = session.history.journal.newest
    live.sequence = live.sequence.moved(Move(newest, at, session.cache, True, max(had, at), first + 1, num_same))
    if live.logits is not None:
        session.history.log(edit.seq_id, live.logits, edited.attention)


# ---- rows from a file or another state ---------------------------------------------------------------------------


def source_of(session: Session, edit: Edit, open_files: ExitStack, check: Check) -> RowsFrom | None:
    """Where an edit takes rows from; None where it takes none."""
    if not isinstance(edit, Overwrite):
        return None
    if edit.from_file is not None:
        if session.open_rows is None:
            raise InputError("Rows of a file cannot be read here: name a step or a sequence.")
        return open_files.enter_context(session.open_rows(edit.from_file))
    seq_id = edit.seq_id if edit.from_seq_id is None else edit.from_seq_id
    if edit.from_step is None:
        cache, where = session.cache_of(seq_id), f"cache of sequence {seq_id}"
    else:
        state = session.restorer.state_at(edit.from_step, check)
        open_files.callback(state.close)
        if seq_id not in state.sequences:
            raise InputError(f"Sequence {seq_id} was not there at step {edit.from_step}: choose another step.")
        cache, where = state.sequences[seq_id].cache, f"cache as it was after step {edit.from_step}"
    if why := cache.why_no_edit():
        raise InputError(f"The cache mode of that step {why}: choose another step.")
    held: dict[int, HeldRows] = {}
    for index in range(len(cache.layers)):
        if (rows := cache.rows(index)) is not None:
            held[index] = rows
    return RowsOfStep(held, where)
