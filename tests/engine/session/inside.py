"""All that a session has inside, in words: where sequences stand and stood, what is kept and noted, rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, get_args

import torch
from msgspec import Struct

from engine.cache.contract import HeldBytes
from engine.cache.row_delta import RowDelta
from engine.history.journal import Move
from engine.history.state import SequenceState
from engine.session.live import LiveSequence
from engine.session.session import Session
from engine.spec.codec import Part
from engine.spec.presets import cache_name
from tests.engine.told import told


def inside(session: Session) -> dict[str, str]:
    """All of it, by the name of what it belongs to, so that two moments can be compared line by line."""
    found = dict(_of_session(session))
    for live in session.live:
        found |= {f"{name} of {live.seq_id}": words for name, words in _of_sequence(session, live)}
    for seq_id in range(session.live.next_id):
        found |= {f"{name} of {seq_id}": words for name, words in _of_history(session, seq_id)}
    return found


def _of_session(session: Session) -> Iterator[tuple[str, str]]:
    history, kept = session.history, session.kept
    yield "mode", f"{cache_name(session.cache)}, whole prompts {session.live.mode.feeds_whole_prompts}"
    yield "work", f"{session.has_work} prefilling {session.is_prefilling} waiting {session._scheduler.waiting}"
    yield "next step", f"{history.next_step} behind {history.last_step}, undone {history.undone}"
    yield "changes", " ".join(type(change).__name__ for change in history.changes)
    for name in ("attention", "logits", "rows"):
        log = getattr(history, name)
        yield name, f"{len(log._entries)} {[*log._entries][-3:]} {log.num_bytes}"
    late = history.surprisal
    yield (
        "late surprisal",
        f"{late.is_waiting} {late.num_bytes} {[(key, sorted(ids)) for key, _, ids in late.owners()]}",
    )
    yield "kept", f"{[state.step for state in kept]} {kept.row_bytes} {kept.num_bytes} {told(kept.sizes)}"
    yield "removed", f"{[(state.step, [*state.sequences], state.row_bytes) for state in kept.removed]}"
    yield from _of_tree(session)
    store = session.live.mode.store
    for number, group in enumerate(store.groups if store is not None else ()):
        pool = group.pool
        pages = [f"{pool.state(page)[:2]}{pool.ref_count(page)}" for page in range(1, pool.num_pages)]
        yield f"pool {number}", f"{' '.join(pages)} shared {pool.num_share_changes}, tables {len(group.tables)}"
    held = session.bytes()
    yield "bytes", f"looking {held.looking} kept {held.kept} next {session.ledger.next_step_bytes()}"
    yield "bytes of a layer", told(held.layers[-1])


def _of_tree(session: Session) -> Iterator[tuple[str, str]]:
    tree, last = session.history.tree, session.history.last_step
    if last is None:
        return
    yield "path", f"{tree.path(last)[-5:]} needs {tree.needed_for(last)[-7:]}, from the root {tree.has_root(last)}"
    node = tree.at(last).node
    parts = [_values(part) for part in node.work.parts] if node.work is not None else None
    yield "node", f"{node.step} after {node.parent}: {parts} {cache_name(node.cache)}"
    yield "notes", f"{[type(note).__name__ for note in tree.at(last).checkpoint.notes]}"


def _values(struct: Struct) -> tuple[Any, ...]:
    return tuple(getattr(struct, name) for name in struct.__struct_fields__)


def _of_sequence(session: Session, live: LiveSequence) -> Iterator[tuple[str, str]]:
    sequence, cache = live.sequence, live.cache
    newest = "no logits" if live.logits is None else told(live.logits.float().numpy())
    yield (
        "tokens",
        (
            f"{len(sequence.token_ids)}: {sequence.token_ids[-5:]} "
            f"{_mark(sequence)}, prompt {sequence.num_prompt_tokens}, {sequence.phase}"
            f"{' stale' * live.is_stale}{' logprobs' * (live.logprobs is not None)}, {newest}"
        ),
    )
    count = cache.num_tokens
    lengths = range(max(0, count - 6), count + 1)
    exact_from = {
        f"{part} {index}": found
        for index, layer in enumerate(cache.layers)
        for part in get_args(Part)
        if any(found := [layer.exact_from(n, part) for n in lengths])
    }
    yield (
        "cache",
        (
            f"{count} of {cache.capacity}, {cache.stored_bytes} stored, {cache.journal_bytes} to go back, "
            f"ratio {cache.kept_ratio:.4f}, prompt ended {cache.prompt_ended_at}, restored {cache.num_restored}, "
            f"room behind {cache.can_write_ahead(count)}, edits {cache.by_hand.edits}, "
            f"knows {[n for n in lengths if cache.knows(n)]} exact from {exact_from}, "
            f"pages {astuple(cache.page_counts())} {cache.page_ids_at(count)} {cache.page_ids_at(max(0, count - 3))}"
        ),
    )
    index = len(cache.layers) - 1
    changes = cache.changes_since(max(0, count - 2))
    yield (
        "rows",
        (
            f"{_rows(live, index)} | {_held(cache.all_bytes()[index])} | "
            f"{'not known' if changes is None else _delta(changes[index])}"
        ),
    )


def _held(held: HeldBytes) -> str:
    return ", ".join(f"{name} {value}" for name, value in held._asdict().items() if value)


def _delta(delta: RowDelta) -> str:
    went = [told(positions.numpy()) for positions in delta.evicted]
    named = ((name, getattr(delta, name)) for name in ("written", "rewritten_keys", "rewritten_values", "left_window"))
    return f"{', '.join(f'{name} {run.start}-{run.stop}' for name, run in named if run)} evicted {went}"


def _rows(live: LiveSequence, index: int) -> str:
    rows = None if live.is_stale else live.cache.rows(index)
    if rows is None:
        return "none"
    positions = "" if rows.positions is None else f" at {rows.positions.tolist()}"
    all_final = [live.cache.num_final(part, live.cache.num_tokens) for part in get_args(Part)]
    final = [of_part[index] if of_part else 0 for of_part in all_final]
    return f"from {rows.first} to {rows.stop}{positions} {_sums(rows.keys)} {_sums(rows.values)} final {final}"


def _sums(rows: torch.Tensor) -> str:
    return told(rows.float().numpy())


def _of_history(session: Session, seq_id: int) -> Iterator[tuple[str, str]]:
    journal, history = session.history.journal, session.history
    steps = journal.steps
    birth, last = journal.birth(seq_id), steps[-1] if steps else -1
    moves = " ".join(map(_move, journal.all_moves(seq_id)))
    yield (
        "past",
        (
            f"{'' if birth is None else astuple(birth)} {moves} in this mode {len(journal.moves(seq_id))}, "
            f"fed at {[journal.fed_at(seq_id, step) for step in steps[-3:]]} "
            f"lengths {journal.fed_lengths(seq_id)[-5:]} "
            f"owners {[journal.owner(seq_id, step) for step in steps[-3:]]}"
        ),
    )
    mark = journal.mark(seq_id, last)
    if mark is None:
        return
    count, early = mark.num_tokens, steps[max(0, len(steps) - 4)]
    yield (
        "asked",
        (
            f"{len(mark.token_ids)}/{mark.num_tokens} "
            f"{history.tree.fed_at(seq_id, last)} with others {history.tree.is_fed_with_others(seq_id, last)} "
            f"holds {journal.holds(seq_id, early, max(0, count - 3))} moved {journal.has_moved(seq_id, early)} "
            f"step at {[history.step_at(seq_id, n) for n in (1, count - 2, count)]} "
            f"with {[history.step_with(seq_id, n) for n in (1, count - 2, count + 9)]} "
            f"logged {[(each.step, each.num_tokens) for each in history.logged_logits(seq_id)][-4:]} "
            f"{history.logged_steps(seq_id, max(0, count - 3), session.cache)} "
            f"attention {[*history.attention_with(seq_id, count)]} {[*history.attention_at(seq_id, last)]} "
            f"written {[*history.written_rows(seq_id, max(0, count - 1))]}"
        ),
    )


def _mark(mark: SequenceState) -> str:
    forced = list(mark.forced.token_ids[mark.forced.start :])
    sampling = f"{mark.sampling.temperature:g} {mark.sampling.seed} {mark.sampling.max_new_tokens}"
    return (
        f"{len(mark.token_ids)}/{mark.num_tokens} {mark.sampled}{' forced' * mark.sampled_is_forced} then {forced} "
        f"{mark.stop} {sampling} {mark.num_preemptions}"
    )


def _move(move: Move) -> str:
    kind = "copied" if move.is_converted else "anew"
    return f"({move.step} {move.num_tokens} {cache_name(move.cache)} {kind} had {move.had} known {move.known_below})"
