"""The commands on a session: submit a prompt, remove, stop and force sequences, change their sampling, continue a
conversation, begin, delete and join branches, undo an edit, change the cache mode. Each is done or changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.chat.template import Encoded, Rendered, encode_chat
from engine.counted import counted
from engine.errors import Check, InputError
from engine.history.history import History
from engine.history.state import Move, SequenceState, num_common
from engine.history.tree import referred_to
from engine.model.loader import LoadedModel
from engine.predict.capacity import cache_capacity, is_endless
from engine.session.driver import convert
from engine.session.edits import edits_of, recompute_with_edits
from engine.session.mode import CacheMode
from engine.session.sampler import check_stop_strings
from engine.session.states import LiveSequence, atomic, close_all, exchange
from engine.spec.cache import CacheSpec
from engine.spec.sampling import TURN_ENDS, Chat, Prompt, SamplingParams
from engine.wire.commands import BeginBranch, PreviewPrompt
from engine.wire.events import ForkMade, Previewed
from engine.wire.pages import ContinuedFrom
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
    TokensForced,
)

if TYPE_CHECKING:
    from engine.session.session import Session


@atomic
def submit(session: Session, prompt: Prompt, chat: Chat | None = None) -> int:
    """Add a sequence, which the next steps prefill, and return its `seq_id`. `chat`: the conversation that the token
    ids were rendered from."""
    model, live, history = session.model, session.live, session.history
    encoded, seq_id = encode(model, prompt), live.next_id
    check_stop_strings(model, prompt.sampling)
    ids = with_start(model, prompt, encoded.token_ids)
    sampling, chat = (prompt.sampling or SamplingParams()).ending_at(encoded.turn_end), chat or prompt.chat
    cache = live.mode.new_cache(seq_id, len(ids))
    begun = SequenceState.of_prompt(ids, sampling, chat).moved(Move(history.path.newest, 0, live.mode.spec))
    made = LiveSequence(seq_id, begun, cache, note=encoded.note)
    live.add(made)
    live.mode.check_fits(len(ids), cache)
    history.changes.append(sequence_added(made))
    return seq_id


def sequence_added(live: LiveSequence) -> SequenceAdded:
    """The history's entry for a new sequence."""
    return SequenceAdded(live.seq_id, tuple(live.sequence.token_ids), live.sequence.sampling, live.sequence.chat)


def change(session: Session, live: LiveSequence, made: Change) -> None:
    """Apply a change to a live sequence, and note it in the history."""
    live.sequence = live.sequence.apply(made)
    session.history.changes.append(made)


@atomic
def remove(session: Session, seq_id: int) -> None:
    """Remove a sequence. Its rows are kept for going back, like kept states; its pages can still be prefix hits."""
    removed = session.restorer.state_of(seq_id)
    detach(session, seq_id)
    session.kept.keep_removed(removed)


def detach(session: Session, seq_id: int) -> None:
    """Remove a sequence from the live ones; whoever calls this owns its cache from then on."""
    session.live.detach(seq_id)
    session.history.surprisal.remove(seq_id)
    session.history.changes.append(SequenceRemoved(seq_id))


@atomic
def stop(session: Session, seq_id: int) -> None:
    """Stop a sequence where it stands; one that has ended keeps its reason."""
    live = session.live.get(seq_id)
    if live.sequence.stop is None:
        change(session, live, SequenceStopped(seq_id))


@atomic
def force(session: Session, seq_id: int, token_ids: tuple[int, ...]) -> None:
    """Schedule these tokens next; the first replaces the token already chosen. `InputError` where there is no room."""
    ids, live = encode(session.model, Prompt(token_ids=token_ids)).token_ids, session.live.get(seq_id)
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
    """Change the sampling of a sequence. A token chosen but not yet computed is chosen again, unless it was forced. The
    logit bias stays if the new sampling has none, and so does the text that ends an answer."""
    check_stop_strings(session.model, sampling)
    live = session.live.get(seq_id)
    before = live.sequence
    for end in TURN_ENDS if before.chat is not None else ():
        sampling = sampling.ending_at(end) if end in before.sampling.stop else sampling
    sampling = sampling if sampling.bias else replace(sampling, bias=before.sampling.bias)
    change(session, live, SamplingChanged(seq_id, sampling))
    live.choose_again(session.live.mode, session.text_of)


def force_text(session: Session, seq_id: int, text: str) -> None:
    """Schedule the tokens of a text next, without special tokens; see `force`."""
    force(session, seq_id, encode_forced(session.model, text))


def lift_limits(session: Session) -> None:
    """Let sequences go on that ended with as many tokens as were asked for."""
    for live in [live for live in session.live if live.sequence.stop == "length"]:
        set_sampling(session, replace(live.sequence.sampling, max_new_tokens=None), live.seq_id)


MAX_LINE = 160  # characters of a template line that are reported


@atomic
def continue_with(session: Session, seq_id: int, prompt: Prompt) -> int:
    """Replace a sequence by a new one for `prompt`, which keeps the rows as far as the tokens of both agree; returns
    the new `seq_id`. On failure raises and changes nothing. The state before stays in the history."""
    parent, mode = session.live.get(seq_id), session.live.mode
    check_stop_strings(session.model, prompt.sampling)
    encoded = encode(session.model, prompt)
    mode.check_fits(len(encoded.token_ids), parent.cache)
    before = session.restorer.state_of_newest_step() if len(session.live) == 1 else None
    reuse = reuse_of(session, parent, encoded)
    sampling = (prompt.sampling or SamplingParams()).ending_at(encoded.turn_end)
    child, reuse = _with_rows(session, encoded, reuse, sampling, prompt.chat)
    live = session.live.get(child)
    live.continued, live.note = reuse, encoded.note
    if before is not None:  # it is the only sequence: its rows are kept with the whole state
        session.kept.keep(before)
        detach(session, seq_id)
    else:
        session.remove(seq_id)
    return child


def _with_rows(
    session: Session, encoded: Encoded, reuse: ContinuedFrom, sampling: SamplingParams, chat: Chat | None
) -> tuple[int, ContinuedFrom]:
    """Add the new sequence, with the rows that can be kept; its id and the reuse. Where the rows cannot be copied it
    has none, and the reuse says why."""
    ids, known = tuple(encoded.token_ids), len(session.history.changes)
    if reuse.num_reused:
        try:
            child = session.fork(reuse.parent, None, reuse.num_reused).child
        except InputError as error:
            del session.history.changes[known:]
            reuse = replace(reuse, num_reused=0, why=f"its rows could not be copied: {str(error).rstrip('.')}")
        else:
            append_prompt(session, child, ids[reuse.num_reused :], sampling, chat)
            return child, reuse
    return session.submit(Prompt(token_ids=ids, sampling=sampling), chat), reuse


def append_prompt(
    session: Session, seq_id: int, token_ids: tuple[int, ...], sampling: SamplingParams, chat: Chat | None
) -> None:
    """Append tokens to a sequence as part of its prompt. Raises `InputError` for too many tokens and for ids outside
    the vocabulary."""
    live = session.live.get(seq_id)
    encode(session.model, Prompt(token_ids=token_ids))
    session.live.mode.check_fits(len(live.sequence.token_ids) + len(token_ids), live.cache)
    change(session, live, PromptAppended(seq_id, token_ids, sampling, chat))


# ---- what the prompt and the sequence have in common -------------------------------------------------------------


def reuse_of(session: Session, parent: LiveSequence, encoded: Encoded) -> ContinuedFrom:
    """How many rows of a sequence a prompt would keep, and the first token at which the two differ.

    Token ids are compared, as in the prefix cache of pages. The last token of a prompt is always computed, since its
    logits are needed.
    """
    ids, cached = encoded.token_ids, parent.sequence.token_ids[: parent.sequence.num_tokens]
    num_equal = num_common(ids, cached)
    why = why_no_rows(session)
    num_reused = 0 if why else min(num_equal, len(ids) - 1)
    if num_equal == len(cached):
        return ContinuedFrom(parent.seq_id, len(cached), num_reused, why=why)
    text_of, here = session.text_of, ids[num_equal] if num_equal < len(ids) else None
    line = encoded.line_of(num_equal) if here is not None else None
    return ContinuedFrom(
        parent.seq_id,
        len(cached),
        num_reused,
        num_equal,
        None if here is None else (here, text_of(here)),
        (cached[num_equal], text_of(cached[num_equal])),
        0 if line is None else line.number,
        "" if line is None else line.text[:MAX_LINE],
        why,
    )


def why_no_rows(session: Session) -> str:
    """Why no rows can be kept for a longer prompt in this cache mode; empty where they can."""
    mode = session.live.mode
    if mode.spec.recomputes:
        return "this mode keeps nothing between two steps"
    if not mode.spec.is_append_only:
        return "this mode codes or evicts rows when a prompt has ended, and a longer prompt ends elsewhere"
    if session.model.start_id is not None:
        return "an encoder reads a prompt as a whole, and every row depends on all of it"
    if mode.computes_whole_prompts:
        return "a recurrent state has read the tokens one after the other, and a prompt is read into it at once"
    return ""


def preview(session: Session, command: PreviewPrompt) -> Previewed:
    """The tokens of a prompt that is being typed, how many rows of the sequence `command.after` it would keep, and the
    text that this sequence has generated."""
    encoded = encode(session.model, command.prompt)
    ids, answer, reuse = tuple(encoded.token_ids), "", None
    if command.after is not None and command.after in session.live.ids:  # it may have been removed meanwhile
        reuse = reuse_of(session, session.live.get(command.after), encoded)
        answer = generated_text(session, command.after)
    return Previewed(ids, tuple(map(session.text_of, ids)), encoded.rendered.text, encoded.note, answer, reuse)


def generated_text(session: Session, seq_id: int) -> str:
    """The text that a sequence has generated, including the token chosen but not yet computed, without special tokens
    and without the text that ends a turn, if that ended it."""
    sequence, tokenizer = session.sequence(seq_id), session.model.tokenizer
    ids = sequence.token_ids[sequence.num_prompt_tokens :]
    if sequence.sampled is not None:
        ids = [*ids, sequence.sampled]
    if tokenizer is None or not ids:
        return ""
    text, before = (str(tokenizer.decode(part, skip_special_tokens=True)) for part in (ids, ids[:-1]))
    if sequence.stop == "stop string" and sequence.chat is not None:
        for end in set(TURN_ENDS).intersection(sequence.sampling.stop):
            place = text.find(end, max(0, len(before) - len(end) + 1))  # one that the last token completes
            text = text[:place] if place >= 0 else text
    return text


def branch(session: Session, command: BeginBranch, check: Check | None = None) -> str | None:
    """Go to a step and begin another branch of a sequence there. Returns in words how the rows came, or None if the
    branch begins at the live state. Raises and changes nothing on failure."""
    ids = tuple(encode(session.model, Prompt(token_ids=command.token_ids)).token_ids) if command.token_ids else ()
    if command.text:
        ids = encode_forced(session.model, command.text)
    if not ids and command.sampling is None:
        raise InputError("A branch begins with another token, a text or another sampling: give one of them.")
    check_stop_strings(session.model, command.sampling)
    if command.step is None:
        begin_branch(session, command, ids)
        return None
    state = session.history.tree.at(command.step).states.get(command.seq_id)
    if state is None:
        raise InputError(f"Sequence {command.seq_id} was not there at step {command.step}: choose another step.")
    check_room(session, command, state, ids)
    return session.go_to(command.step, check, lambda: begin_branch(session, command, ids))


@atomic
def begin_branch(session: Session, command: BeginBranch, ids: tuple[int, ...]) -> None:
    """Give a live sequence another sampling, other next tokens, or both."""
    if command.sampling is not None:
        session.set_sampling(command.sampling, command.seq_id)
    if ids:
        session.force(command.seq_id, ids)


def check_room(session: Session, command: BeginBranch, state: SequenceState, ids: tuple[int, ...]) -> None:
    """Raise `InputError` before going to a step at which the sequence has no room for another token."""
    assert command.step is not None
    info, longest = session.model.info, session.model.max_length
    spec = session.history.tree.at(command.step).node.cache
    capacity = cache_capacity(spec, longest, info.geometry)
    is_full = state.num_tokens >= longest and not is_endless(spec, info)
    is_full |= capacity is not None and state.num_tokens >= capacity
    if ids and not state.is_prefilling and is_full:
        raise InputError(f"Sequence {command.seq_id} has no room for another token there: choose an earlier step.")


def delete_branch(session: Session, step: int) -> tuple[int, ...]:
    """Delete a step and all its descendants; returns the deleted steps. Raises `InputError` where the live state is
    among them, or another branch refers to one of them (a fork, or an edit that took rows)."""
    history = session.history
    history.tree.at(step)
    steps = set(history.tree.below(step))
    if history.last_step in steps:
        raise InputError(f"The live step came of step {step}: go to another branch first, then delete this one.")
    asking = [(m.node.step, m.node.changes) for m in history.tree if m.node.step not in steps]
    for other, changes in [*asking, (history.next_step, tuple(history.changes))]:
        if taken := steps.intersection(referred_to(changes)):
            raise InputError(f"Step {other} of another branch has taken something from step {min(taken)}: keep it.")
    forgotten = history.forget_branch(step)
    session.kept.drop_missing(history.tree)
    return forgotten


def undo_edit(session: Session, check: Check | None = None) -> str:
    """Go to the state before the newest edit on the live path; returns in words how the rows came."""
    history = session.history
    edited = (s for s in reversed(history.path.steps) if is_edit(session, s))
    edit = next(edited, None)
    if edit is None:
        raise InputError("There is no edit to undo on the way to this step.")
    back_to = history.last_step if not history.changes else history.next_step
    assert back_to is not None
    undone = history.tree.parent(edit), back_to
    how = session.go_to(undone[0], check)
    history.undone.append(undone)
    return how


def redo_edit(session: Session, check: Check | None = None) -> str:
    """Go to where the last undo came from; if that is not known, to the newest edit made at the live node. Returns in
    words how the rows came."""
    history = session.history
    is_known = bool(history.undone) and history.undone[-1][0] == history.last_step
    edits = [step for step in history.tree.children_of(history.last_step) if is_edit(session, step)]
    if history.changes or not (is_known or edits):
        raise InputError("There is no undone edit to return to: something was done since, or nothing was undone.")
    how = session.go_to(history.undone[-1][1] if is_known else edits[-1], check)
    if is_known:
        history.undone.pop()
    return how


def is_edit(session: Session, step: int) -> bool:
    """Whether the node of a step is an edit by hand."""
    return any(isinstance(change, EditMade) for change in session.history.tree.at(step).node.changes)


@atomic
def join(session: Session, steps: tuple[int, ...]) -> tuple[ForkMade, ...]:
    """Fork the sequences of these steps into the live state, those that it does not have already. All of them, or an
    `InputError` and none."""
    asked = [(seq_id, step) for step in dict.fromkeys(steps) for seq_id in missing(session, step)]
    if not asked:
        where = " and ".join(f"step {step}" for step in steps) or "no step"
        raise InputError(f"The live step has every sequence of {where} as it stands there: choose another branch.")
    return tuple(session.fork(seq_id, step) for seq_id, step in asked)


def missing(session: Session, step: int) -> list[int]:
    """The sequences of a step that the live state lacks: other ids, or the same ids with other tokens computed
    since."""
    history = session.history
    tree, live = history.tree, history.last_step
    there = tree.at(step).states
    taken = {
        (c.parent, c.step) for c in history.changes if isinstance(c, SequenceForked) and c.seq_id in session.live.ids
    }
    return [
        seq_id
        for seq_id in there
        if (seq_id, step) not in taken
        and not (seq_id in session.live.ids and is_as_computed(session, seq_id, step, live))
    ]


def is_as_computed(session: Session, seq_id: int, step: int, live: int | None) -> bool:
    """Whether the sequence was last computed by the same step at `step` and at `live`."""
    tree = session.history.tree
    return live is not None and tree.computed_by(seq_id, step) == tree.computed_by(seq_id, live)


# ---- another cache mode ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ConvertedCache:
    """The cache of one sequence in the new mode, whether its `num_tokens` rows were converted or computed anew, and how
    many were evicted at once. `is_edited_again`: edits by hand were made again on rows computed anew."""

    cache: SequenceCache
    num_tokens: int
    is_converted: bool
    num_evicted: int = 0
    is_edited_again: bool = False


@atomic
def set_cache(session: Session, spec: CacheSpec) -> str:
    """Change the cache mode of a session: convert every live sequence, then switch all of them; returns in words how.
    The state before is kept. All of it succeeds or nothing changes."""
    history, mode = session.history, CacheMode(session.model, spec)
    made: dict[int, ConvertedCache] = {}
    for each in session.live:
        try:
            made[each.seq_id] = convert_one(session.model, mode, each, history)
        except PoolExhausted as error:
            raise InputError(f"The pool cannot hold the live sequences ({error}): give it more pages.") from None
    if not made:
        mode.check()
    moved = {each.seq_id: each.copied(made[each.seq_id].cache) for each in session.live}
    for each in moved.values():
        one, newest, before = made[each.seq_id], history.path.newest, each.sequence.moves[-1].cache
        move = Move.to_mode(
            newest, one.num_tokens, before, spec, is_converted=one.is_converted, has_evicted=one.num_evicted > 0
        )
        each.sequence = structs.replace(each.sequence, stop=mode.stop_of(each.sequence, each.cache)).moved(move)
    how = change_in_words(spec, [*made.values()])
    left = exchange(session, mode, moved)
    history.changes.append(ModeChanged(spec))
    close_all(left)  # no state keeps these caches, but kept states may share their store
    return how


def convert_one(model: LoadedModel, mode: CacheMode, live: LiveSequence, history: History) -> ConvertedCache:
    """A new cache with the rows of one sequence, converted where possible, else computed from its tokens. Raises
    `InputError` where edits by hand cannot be made again."""
    sequence = live.sequence
    cache, count = mode.new_cache(live.seq_id, sequence.num_prompt_tokens), sequence.num_tokens
    mode.check_holds(live.seq_id, sequence, cache)
    evicted = None if live.is_stale else convert(live.cache, cache, sequence, count)
    is_edited_again = False
    if evicted is None:
        is_edited_again = compute_anew(model, cache, live, history)
    else:
        cache.by_hand = live.cache.by_hand
    cache.register_prefix(sequence.token_ids)
    return ConvertedCache(cache, count, evicted is not None, evicted or 0, is_edited_again)


def compute_anew(model: LoadedModel, cache: SequenceCache, live: LiveSequence, history: History) -> bool:
    """Fill a cache with the tokens of a sequence; returns whether edits by hand were made again on the way, as they are
    where the cache keeps rows."""
    is_edited = bool(live.cache.by_hand) and not cache.spec.recomputes
    edits = edits_of(history, live.seq_id) if is_edited else []
    if is_edited and not edits:
        raise InputError(
            f"Rows of sequence {live.seq_id} were edited by hand before this session, and that mode computes them anew "
            "from the tokens: choose a mode that takes rows over."
        )
    lengths = history.path.forward_lengths(live.seq_id)
    try:
        for _ in recompute_with_edits(model, live.copied(cache), edits, lengths):
            pass
    except InputError as error:
        raise InputError(
            f"Rows of sequence {live.seq_id} were edited by hand, and that mode computes them anew from the tokens, "
            f"where an edit cannot be made again. {error}"
        ) from None
    return is_edited


def change_in_words(spec: CacheSpec, made: list[ConvertedCache]) -> str:
    """How the mode was changed, for the user."""
    if not made:
        return "from the next prompt on"
    if spec.recomputes:
        without = ", without the edits of its rows" if any(one.cache.by_hand for one in made) else ""
        return f"dropped the cache: every step recomputes from now on{without}"
    num_recomputed = sum(one.num_tokens for one in made if not one.is_converted)
    if num_recomputed:
        again = ", and made its edits again" if any(one.is_edited_again for one in made) else ""
        return f"re-prefilled {counted(num_recomputed, 'token')}{again}"
    parts = []
    if not spec.holds_exact_rows:
        parts.append("the rows held were quantised")
    if any(one.num_evicted for one in made):
        parts.append("rows over budget were evicted")
    return "converted without recomputing" + (f": {' and '.join(parts)}" if parts else "")


# ---- the token ids of prompts and of texts to force, checked against the vocabulary ----------------------------------


def encode(model: LoadedModel, prompt: Prompt) -> Encoded:
    """The token ids of a prompt, special tokens as the model's own tokenizer adds them, with the text that they stand
    for; a conversation is rendered by the model's chat template. Raises `InputError` for empty prompts and for ids
    outside the vocabulary."""
    vocab = model.vocab_size
    if prompt.token_ids is not None:
        for token_id in prompt.token_ids:
            if not 0 <= token_id < vocab:
                raise InputError(f"Token id {token_id} is outside the vocabulary of {vocab:,}: use 0 … {vocab - 1}.")
        return Encoded(list(prompt.token_ids), Rendered(""))
    if model.tokenizer is None:
        raise InputError(f"The model '{model.info.name}' has no tokenizer: give the prompt as token ids.")
    if prompt.chat is not None:
        encoded = encode_chat(model.tokenizer, prompt.chat, model.tokenize)
    else:
        encoded = Encoded(list(model.tokenize(prompt.text or "")["input_ids"]), Rendered(prompt.text or ""))
    ids = encoded.token_ids
    if not ids:
        raise InputError("The prompt has no tokens: type some text first.")
    if max(ids) >= vocab:
        raise InputError(
            f"The tokenizer gives token id {max(ids)}, outside the vocabulary of {vocab:,}: it belongs to another "
            "model; put the right one beside the config, or none."
        )
    return encoded


def first_ids(model: LoadedModel, prompt: Prompt) -> list[int]:
    """The first token ids of a sequence: those of the prompt and, for an encoder-decoder, the token that the decoder
    starts from."""
    return with_start(model, prompt, encode(model, prompt).token_ids)


def with_start(model: LoadedModel, prompt: Prompt, ids: list[int]) -> list[int]:
    """The ids of a prompt followed by the decoder's start token, if the model has one and the prompt does not end with
    it already."""
    return ids if model.start_id is None or prompt.has_start else [*ids, model.start_id]


def encode_forced(model: LoadedModel, text: str) -> tuple[int, ...]:
    """The token ids of a text to force, without special tokens."""
    if model.tokenizer is None:
        raise InputError(f"The model '{model.info.name}' has no tokenizer: force a token by its id, as in #77.")
    Prompt(text=text)  # checks the text
    ids = model.tokenize(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise InputError("The text to force is empty: type some text first.")
    return tuple(ids)
