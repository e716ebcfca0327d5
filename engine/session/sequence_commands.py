"""Commands on single sequences: submit, remove, halt, force tokens, change the sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.history.state import SequenceState
from engine.session.atomic import atomic
from engine.session.edits.apply import choose_again
from engine.session.live import LiveSequence
from engine.session.prompt import encode, encode_prompt, with_start
from engine.session.stop_strings import check_stop_strings
from engine.spec.chat import TURN_ENDS, Chat
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.changes import Change, SamplingChanged, SequenceAdded, SequenceRemoved, SequenceStopped, TokensForced

if TYPE_CHECKING:
    from engine.session.session import Session


@atomic
def submit(session: Session, prompt: Prompt, chat: Chat | None) -> int:
    """Add a sequence and return its `seq_id`. `chat`: the conversation that the token ids were rendered from."""
    model, live, history = session.model, session.live, session.history
    encoded, seq_id = encode_prompt(model, prompt), live.next_id
    check_stop_strings(model, prompt.sampling)
    ids = with_start(model, prompt, encoded.token_ids)
    sampling, chat = (prompt.sampling or SamplingParams()).ending_at(encoded.turn_end), chat or prompt.chat
    cache = live.mode.new_cache(seq_id, len(ids))
    made = LiveSequence(seq_id, SequenceState.of_prompt(ids, sampling, chat), cache, note=encoded.note)
    live.add(made)
    live.mode.check_fits(len(ids), cache)
    history.journal.note_start(seq_id, live.mode.spec)
    history.changes.append(added(made))
    return seq_id


def added(live: LiveSequence) -> SequenceAdded:
    """The history's entry for a new sequence."""
    return SequenceAdded(live.seq_id, tuple(live.sequence.token_ids), live.sequence.sampling, live.sequence.chat)


def change(session: Session, live: LiveSequence, made: Change) -> None:
    """Apply a change to a live sequence, and note it in the history."""
    live.sequence = live.sequence.apply(made)
    session.history.changes.append(made)


@atomic
def remove(session: Session, seq_id: int) -> None:
    """Remove a sequence; its rows are kept for going back."""
    removed = session.state_of(seq_id)
    session.live.detach(seq_id)
    session.history.surprisal.remove(seq_id)
    session.history.changes.append(SequenceRemoved(seq_id))
    session.kept.keep_removed(removed)


@atomic
def halt(session: Session, seq_id: int) -> None:
    """Stop a sequence where it stands; one that has ended keeps its reason."""
    live = session.live.get(seq_id)
    if live.sequence.stop is None:
        change(session, live, SequenceStopped(seq_id))


@atomic
def force(session: Session, seq_id: int, token_ids: tuple[int, ...]) -> None:
    """Feed these tokens next; the first replaces the token already chosen. `InputError` where there is no room."""
    ids, live = encode(session.model, Prompt(token_ids=token_ids)), session.live.get(seq_id)
    sequence = live.sequence
    full = None if sequence.is_prefilling else session.live.mode.full_at(sequence.num_tokens, live.cache)
    if full is not None:
        raise InputError(
            f"Sequence {seq_id} has no room for another token ({full}): go back, or take a "
            f"{'larger cache' if full == 'cache full' else 'cache that keeps a window'}."
        )
    change(session, live, TokensForced(seq_id, tuple(ids)))


@atomic
def set_sampling(session: Session, sampling: SamplingParams, seq_id: int) -> None:
    """Change the sampling of a sequence. A token chosen but not yet fed is chosen again, unless it was forced. The
    logit bias stays if the new sampling has none, and so does the text that ends an answer."""
    check_stop_strings(session.model, sampling)
    live = session.live.get(seq_id)
    before = live.sequence
    for end in TURN_ENDS if before.chat is not None else ():
        sampling = sampling.ending_at(end) if end in before.sampling.stop else sampling
    sampling = sampling if sampling.bias else replace(sampling, bias=before.sampling.bias)
    change(session, live, SamplingChanged(seq_id, sampling))
    choose_again(live, session.live.mode, session.text_of)
