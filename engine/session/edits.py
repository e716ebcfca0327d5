"""Edits of the cache by hand: from the command, to the rows that it writes, to what it did to the next token.

They are made on copies of the live sequences: a failed edit changes nothing, and the state before is kept unchanged, so
that undo is immediate."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowWrite
from engine.cache.contract import HeldRows
from engine.cache.layers.build import decoder_config
from engine.cache.layers.cross import CrossLayer, SourceCache
from engine.cache.layers.layer import ReadOnlyLayer, read_only_cache
from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import Check, InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.history.history import History
from engine.history.state import ALL_TOKENS, Move, SequenceState
from engine.look.candidates import kl_divergence
from engine.look.measures import nan_where_evicted
from engine.look.source import chosen, places_of, slots_of
from engine.model.batch import Batch
from engine.model.loader import LoadedModel
from engine.model.tokenizer import TokenTexts
from engine.session.chunks import PrefillPlan
from engine.session.driver import recompute
from engine.session.forward import weights_of_one
from engine.session.mode import CacheMode
from engine.session.sampler import choose, steered
from engine.session.scheduler import SequenceWork
from engine.session.states import LiveSequence, atomic, close_all, exchange
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.codec import PARTS, Part
from engine.spec.edit import AddNoise, BiasLogits, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Rows, Scale, Zero
from engine.wire.events import NodeAdded
from engine.wire.measurements import EditMeasured, KeptRows
from engine.wire.records import Candidate, Change, EditMade, read_only_floats

if TYPE_CHECKING:
    from engine.session.session import Session


@atomic
def make_edit(session: Session, edit: Edit, check: Check | None = None) -> tuple[NodeAdded, EditMeasured]:
    """Make an edit as a node of its own in the history; earlier changes since the newest step become another node
    before it. Returns the node and what the edit did to the next token. Raises and changes nothing on failure."""
    session.kept.trim()  # each edit keeps a state, and no step comes between
    moved = keep_rows(session, edit)
    session.add_changes()
    edited, measured, left = edit_live(session, edit, check)
    how = f"{moved}{edited.took_ms:.0f} ms, {edited.why_unmeasured or f'measured in {edited.measured_ms:.0f} ms'}"
    texts = tuple(map(session.text_of, edit.token_ids)) if isinstance(edit, ReplaceTokens) else ()
    node = session.add_changes(is_empty_allowed=True)
    assert node is not None, "an edit is a change"
    session.history.added.remove(node)
    added = NodeAdded(node, is_live=True, how=how, kl=edited.kl, texts=texts)
    close_all(left)  # nothing that can fail comes behind it
    return added, measured


@atomic
def repeat_edit(session: Session, edit: Edit) -> EditMeasured:
    """Repeat a recorded edit, as one of the changes of the node that is being replayed. Returns what it did to the next
    token, which no session file contains."""
    _, measured, left = edit_live(session, edit, None)
    close_all(left)
    return measured


def keep_rows(session: Session, edit: Edit) -> str:
    """Move a session whose mode keeps no rows into the growing one, if the edit changes rows; returns that in words."""
    if not session.cache.recomputes or not changes_rows(edit):
        return ""
    edit.check(session.model.info.geometry, session.sequence(edit.seq_id).num_tokens)
    label = cache_label(session.cache)
    how = session.set_cache(CacheSpec())
    return f"{label} keeps no rows to edit: moved to {cache_label(session.cache)}, {how} · "


def edit_live(
    session: Session, edit: Edit, check: Check | None
) -> tuple[EditOutcome, EditMeasured, dict[int, LiveSequence]]:
    """Make edited copies of the live sequences the live ones, with the edit as the newest change; the state before is
    kept. Returns the outcome, what of it is reported, and the sequences that are to be closed at last."""
    history = session.history
    with ExitStack() as open_files:
        copies, edited = edited_copies(session, edit, source_of(session, edit, open_files, check), check)
    had = session.sequence(edit.seq_id).num_tokens
    provenance = session.rows_at(edit.seq_id, had).provenance  # of the rows before the edit
    left, live = exchange(session, session.live.mode, copies), copies[edit.seq_id]
    note(session, edit, live, edited, had)
    live.sequence = live.sequence.edited(edit, history.next_step)
    history.changes.append(EditMade(edit))
    measured = EditMeasured(
        history.next_step, edit.seq_id, **{name: getattr(edited, name) for name in REPORTED}, provenance=provenance
    )
    return edited, measured, left


def edited_copies(
    session: Session, edit: Edit, source: RowsFrom | None, check: Check | None
) -> tuple[dict[int, LiveSequence], EditOutcome]:
    """Copies of all live sequences, with the edit made on one of them, and the outcome of the edit. The live sequences
    stay as they are. Where the page pool has no room, kept states are evicted from it."""
    mode, copies = session.live.mode, dict[int, LiveSequence]()
    session.sequence(edit.seq_id)  # raises where it does not exist
    while True:
        try:
            for live in session.live:
                copies[live.seq_id] = copy_of(session, live)
            return copies, apply_edit(session.model, mode, copies[edit.seq_id], edit, session.text_of, source, check)
        except PoolExhausted as error:
            close_all(copies)
            copies.clear()
            if not session.kept.evict_from(mode.store):
                raise InputError(
                    f"An edit of shared pages needs copies of them that the pool has no room for ({error}): remove a "
                    "sequence, or give it more pages."
                ) from None


def copy_of(session: Session, live: LiveSequence) -> LiveSequence:
    """A copy of a sequence with its own rows; pages are shared until one of the two writes to them."""
    session.refresh(live)
    cache = session.live.mode.new_cache(live.seq_id, live.sequence.num_prompt_tokens)
    count = live.cache.num_tokens
    if count and not cache.fork_from(live.cache, count, as_itself=True):
        raise InputError(f"The rows of sequence {live.seq_id} cannot be copied in this mode, so they are not edited.")
    return live.copied(cache)


def note(session: Session, edit: Edit, live: LiveSequence, edited: EditOutcome, had: int) -> None:
    """Note that rows were edited by hand when the sequence had `had` tokens, so that earlier states are known only if
    they end before the first of them; and log the newest logits and attention, which the edit has changed."""
    if isinstance(edit, BiasLogits) or not live.cache.by_hand:
        return
    at, first = live.cache.by_hand.edits[-1]
    num_same = edit.position if isinstance(edit, ReplaceTokens) else ALL_TOKENS
    newest = session.history.path.newest
    live.sequence = live.sequence.moved(Move(newest, at, session.cache, True, max(had, at), first + 1, num_same))
    if live.logits is not None:
        session.history.log(edit.seq_id, live.logits, edited.attention)


# ---- rows from a file or another state ---------------------------------------------------------------------------


def source_of(session: Session, edit: Edit, open_files: ExitStack, check: Check | None) -> RowsFrom | None:
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
    return partial(rows_of_state, held, where)


# ---- one edit on one sequence -------------------------------------------------------------------------------------


@dataclass(eq=False)
class EditOutcome:
    """What an edit did to the next token: KL divergence in nats, candidates before and after. `attention` `[H, S]` by
    layer is the newest token's after the edit, if it was computed again to measure. `why_unmeasured`: it could not be,
    so that the edit shows in the tokens after it."""

    kl: float | None = None
    before: tuple[Candidate, ...] = ()
    after: tuple[Candidate, ...] = ()
    entropy: float | None = None  # of the next token after the edit, in nats
    kept: KeptRows | None = None
    took_ms: float = 0.0
    measured_ms: float = 0.0
    why_unmeasured: str = ""
    attention: dict[int, torch.Tensor] = field(default_factory=dict)

    def compare(self, before: torch.Tensor | None, after: torch.Tensor) -> None:
        """Set the KL divergence of the next-token distribution from that before; logits `[V]`."""
        self.kl = None if before is None else kl_divergence(after.double(), before.double())


REPORTED = ("kl", "before", "after", "took_ms", "measured_ms", "kept", "entropy")  # of it in `EditMeasured`


@torch.inference_mode()
def apply_edit(
    model: LoadedModel,
    mode: CacheMode,
    live: LiveSequence,
    edit: Edit,
    text_of: TokenTexts,
    source: RowsFrom | None = None,
    check: Check | None = None,
) -> EditOutcome:
    """Make an edit on a sequence and its cache in place. Raises `InputError` where it cannot be made, `PoolExhausted`
    where its pages cannot be copied. A failure may leave the sequence partly changed: pass a copy."""
    cache = live.cache
    edit.check(model.info.geometry, cache.num_tokens)
    if changes_rows(edit) and (why := cache.why_no_edit()):
        raise InputError(f"This cache mode {why}: choose a mode that keeps rows.")
    outcome, laps = EditOutcome(before=candidates(live, text_of)), Laps()
    if isinstance(edit, BiasLogits):
        bias_logits(live, edit, outcome, laps)
    elif isinstance(edit, ReplaceTokens) and edit.how == "re-prefill":
        before, after = live.logits, re_prefill(model, mode, live, edit, check)
        outcome.took_ms = laps.lap()
        live.set_logits(after)
        outcome.compare(before, after)
        measure_attention(model, live, outcome)
    else:
        change_rows(model, live, edit, source, outcome, laps)
    choice = live.choose_again(mode, text_of)
    if choice is not None:
        live.set_logits(live.logits, choice.logprobs)
        outcome.after, outcome.entropy = choice.candidates, choice.entropy
    outcome.measured_ms += laps.lap()
    return outcome


def changes_rows(edit: Edit) -> bool:
    """Whether an edit changes rows that a cache holds, or their marks, and not only logits or tokens."""
    return not (isinstance(edit, BiasLogits) or (isinstance(edit, ReplaceTokens) and edit.how == "re-prefill"))


def bias_logits(live: LiveSequence, edit: BiasLogits, outcome: EditOutcome, laps: Laps) -> None:
    """Set a logit bias for all later choices; the biased logits before and after are compared."""
    old = live.sequence.sampling
    live.sequence = live.sequence.apply(EditMade(edit))
    outcome.took_ms = laps.lap()
    if live.logits is not None:
        outcome.compare(steered(live.logits, old.bias), steered(live.logits, live.sequence.sampling.bias))


def measure_attention(model: LoadedModel, live: LiveSequence, outcome: EditOutcome) -> None:
    """Measure the newest token's attention over rows that were computed again; nothing in modes whose rows cannot be
    read."""
    if live.cache.why_no_edit():
        return
    probe = Probe()
    if newest_logits(model, live.cache, live.sequence.token_ids, probe) is not None:
        outcome.attention = attention_rows(live, probe)


def change_rows(
    model: LoadedModel, live: LiveSequence, edit: Edit, source: RowsFrom | None, outcome: EditOutcome, laps: Laps
) -> None:
    """Edit the cache, and compute the newest token before and after the edit: the two forwards differ in the cache
    only."""
    cache, is_measured = live.cache, live.logits is not None and not live.sequence.is_prefilling
    before = newest_logits(model, cache, live.sequence.token_ids) if is_measured else None
    if is_measured and before is None:
        outcome.why_unmeasured = "seen by the tokens that follow: the newest read what is no longer held"
    outcome.measured_ms = laps.lap()
    outcome.kept = edit_cache(model, live, edit, source)
    outcome.took_ms = laps.lap()
    probe = Probe()
    after = newest_logits(model, cache, live.sequence.token_ids, probe) if before is not None else None
    if before is None or after is None:
        return
    outcome.compare(before, after)
    outcome.attention = attention_rows(live, probe)
    if not torch.equal(before, after):
        live.set_logits(after)


def edit_cache(model: LoadedModel, live: LiveSequence, edit: Edit, source: RowsFrom | None) -> KeptRows | None:
    """Change the rows of a cache, or their marks (hidden, pinned). Returns how far rows behind replaced tokens are from
    recomputed ones, if tokens were replaced."""
    cache = live.cache
    match edit:
        case Zero() | Scale() | AddNoise() | Overwrite():
            cache.write_rows(row_writes(cache, model.info.geometry, edit, source))
        case Mask() | Pin():
            mark(model, cache, edit)
        case Drop():
            drop(model, cache, edit)
        case ReplaceTokens():
            return overwrite(model, live, edit)
        case BiasLogits():
            raise AssertionError("logits are no rows")
    return None


def candidates(live: LiveSequence, text_of: TokenTexts) -> tuple[Candidate, ...]:
    """The most probable next tokens under the sequence's present logits."""
    if live.logits is None or live.sequence.is_prefilling:
        return ()
    return choose(live.logits, live.sequence.sampling, live.sequence.num_tokens, text_of).candidates


def attention_rows(live: LiveSequence, probe: Probe) -> dict[int, torch.Tensor]:
    """The newest query's weights `[H, S]` over all tokens by layer, NaN where no row is held."""
    work, positions = SequenceWork(live, [], live.sequence.num_tokens), live.cache.positions
    rows = ((index, weights_of_one(work, index, weights)) for index, weights in probe.rows().items())
    return {index: nan_where_evicted(row, positions(index)) for index, row in rows}


class Laps:
    """A stopwatch: `lap` returns the milliseconds since the previous lap."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        took, self._began = (now - self._began) * 1e3, now
        return took


# ---- other tokens ----------------------------------------------------------------------------------------------------


def overwrite(model: LoadedModel, live: LiveSequence, edit: ReplaceTokens) -> KeptRows | None:
    """Replace tokens and write only their own K and V, computed after the tokens before them. Returns how far the later
    rows, which stay, are from those that a re-prefill would give; None if there are no later rows."""
    cache, sequence, start, stop = live.cache, live.sequence, edit.position, edit.stop
    if any(layer.has_state for layer in cache.layers):
        raise InputError("A recurrent state has read these tokens and moved on: re-prefill what follows instead.")
    if cache.num_source:
        raise InputError("Every row of a source depends on all of it: re-prefill what follows instead.")
    if (lacking := layer_without(model, cache, start)) is not None:
        raise InputError(
            f"The window of layer {lacking} has left rows behind that position {start} reads, so its K and V cannot be "
            "computed alone: re-prefill what follows instead."
        )
    scratch = Scratch(model, cache, start, keeps=True)
    scratch.compute(edit.token_ids)
    writes = []
    for layer in model.info.geometry.attention_layers:
        places = places_in(cache, layer, Rows(start, stop))
        keys, values = scratch.rows_from(layer.index, start)
        span = range(start, stop)
        writes += [
            RowWrite(layer.index, "keys", places.heads, places.slots, keys.clone(), span),
            RowWrite(layer.index, "values", places.heads, places.slots, values.clone(), span),
        ]
    kept = None
    if stop < cache.num_tokens:
        scratch.compute(sequence.token_ids[stop : cache.num_tokens])
        kept = distances(cache, model.info.geometry.attention_layers, scratch, stop)
    cache.write_rows(writes)
    live.sequence = sequence.apply(EditMade(edit))
    return kept


def distances(cache: SequenceCache, layers: tuple[LayerGeometry, ...], scratch: Scratch, first: int) -> KeptRows:
    """The relative distance of each row from position `first` on from the recomputed one: the norm of the difference
    over the norm of the recomputed row, both over all heads. NaN where a row is not held."""
    found: dict[str, list[np.ndarray]] = {"keys": [], "values": []}
    for layer in layers:
        held = cache.rows(layer.index)
        assert held is not None, "rows were found before"
        positions = cache.held_positions(layer.index).expand(held.keys.shape[1], -1)
        count = int(scratch.model_cache.layers[layer.index].seen) - first
        for name, old, new in zip(found, (held.keys, held.values), scratch.rows_from(layer.index, first), strict=True):
            wanted = torch.full((*positions.shape[:1], count, new.shape[2]), torch.nan)
            for head, places in enumerate(positions):
                is_later = places >= first
                wanted[head, (places[is_later] - first).cpu()] = old[0, head, is_later].float().cpu()
            difference = (wanted - new.float().cpu()).square().sum((0, 2)).sqrt()
            found[name].append((difference / new.float().cpu().square().sum((0, 2)).sqrt()).numpy())
    keys, values = (read_only_floats(np.stack(found[name]).astype(np.float32)) for name in PARTS)
    return KeptRows(tuple(layer.index for layer in layers), first, keys, values)


def re_prefill(
    model: LoadedModel, mode: CacheMode, live: LiveSequence, edit: ReplaceTokens, check: Check | None
) -> torch.Tensor:
    """Replace tokens and compute all rows from there on again; returns the newest logits `[V]`."""
    cache, sequence = live.cache, live.sequence
    if sequence.is_prefilling:
        raise InputError("The prompt is still being read: let it end, then put other tokens in.")
    start = edit.position
    edited = sequence.apply(EditMade(edit))
    token_ids, num_prompt = edited.token_ids, edited.num_prompt_tokens
    check_source(cache, edit, num_prompt)
    mode.check_holds(live.seq_id, edited, cache, "put fewer in")
    num_kept = keep_first(cache, start)
    if cache.num_source and not num_kept:
        cache.num_source = num_prompt - 1
        cache.clear()
    pieces = [*PrefillPlan.of(model).lengths(len(token_ids)), *([num_prompt] if cache.num_source else [])]
    logits = None
    for _, logits in recompute(model, cache, edited, sorted(pieces), check=check):  # noqa: B007
        pass
    if logits is None:  # no token was inserted, and none follows
        raise InputError("Nothing follows what was taken out: go back to the step before it instead.")
    live.sequence = edited
    cache.by_hand = cache.by_hand.edited(len(token_ids), start)
    return logits.clone()


def check_source(cache: SequenceCache, edit: ReplaceTokens, num_prompt: int) -> None:
    """Raise `InputError` for an edit that leaves the encoder without tokens, or that spans the source and the token
    that the decoder starts from."""
    source, stop = cache.num_source, edit.stop
    if not source or edit.position > source:
        return
    if edit.position < source < stop or (edit.position == source and (len(edit.token_ids), stop) != (1, source + 1)):
        raise InputError(
            f"Position {source} is the token that the decoder starts from: replace it by one other, and the source "
            "before it apart."
        )
    if num_prompt < 2:
        raise InputError("An encoder needs a token to read: leave one.")


def keep_first(cache: SequenceCache, count: int) -> int:
    """Crop a cache to its first `count` rows, or clear it where it no longer holds all of these; the number of rows
    left. Raises `InputError` where rows edited by hand would be lost."""
    is_lost = not cache.spec.recomputes  # a recomputing layout has no edited rows, only edited tokens
    edits = is_lost and [first for _, first in cache.by_hand.edits if first < count]
    if cache.spec.is_append_only and not cache.spec.recomputes:
        cache.by_hand = cache.by_hand.clamped(count)
    if count and cache.crop(count):
        return count
    if edits:
        raise InputError(
            "Rows before these tokens were edited by hand, and this cache cannot compute what follows without losing "
            "that: undo that edit first, or overwrite the tokens alone."
        )
    cache.clear()
    return 0


# ---- marked and evicted rows -----------------------------------------------------------------------------------------


def mark(model: LoadedModel, cache: SequenceCache, edit: Mask | Pin) -> None:
    """Hide rows from every later query, or protect them from eviction by the cache's rule; or end that. Raises
    `InputError` where a row to be marked is not held."""
    is_mask, span = isinstance(edit, Mask), range(edit.rows.start, edit.rows.stop)
    if is_mask:
        check_attends_here(model, "takes no mask from here")
    is_marked = edit.hidden if isinstance(edit, Mask) else edit.pinned
    marks = cache.by_hand.hidden if is_mask else cache.by_hand.pinned
    for layer in layers_named(cache, model.info.geometry, edit.rows):
        if is_marked:
            places_in(cache, layer, edit.rows)
        marks = marks.marking(layer.index, layer.num_kv_heads, heads_of(edit.rows, layer), span, is_marked)
    if not is_mask:
        cache.check_pinned(marks)
    by_hand = cache.by_hand
    cache.mark_rows(span.start, replace(by_hand, hidden=marks) if is_mask else replace(by_hand, pinned=marks))


def check_attends_here(model: LoadedModel, why: str) -> None:
    """Raise `InputError` for a model whose attention is not computed by our function."""
    if not model.info.captures_attention:
        raise InputError(f"This architecture has attention code of its own, which {why}: zero the values instead.")


def drop(model: LoadedModel, cache: SequenceCache, edit: Drop) -> None:
    """Evict rows as the cache's rule would: not in layers that slide, whose masks count distances by rows."""
    check_attends_here(model, "counts rows by tokens seen, so none can be dropped")
    spans: dict[int, torch.Tensor] = {}
    named = layers_named(cache, model.info.geometry, edit.rows)
    sliding = [layer for layer in named if layer.window is not None]
    if sliding and (edit.rows.layers is not None or len(sliding) == len(named)):
        raise InputError(
            f"Layer {sliding[0].index} slides, and its mask counts distances by rows, so none can be dropped there: "
            "mask the rows."
        )
    for layer in named:
        if layer.window is not None:
            continue
        places_in(cache, layer, edit.rows)
        span = torch.arange(edit.rows.start, edit.rows.stop)
        spans[layer.index] = span.expand(len(heads_of(edit.rows, layer)), -1)
    cache.drop_rows(spans)


# ---- the numbers that an edit writes: zeros, scaled ones, noise, or rows of another state or file --------------------


@dataclass(frozen=True, eq=False)
class Places:
    """Kv heads `[N]` of a layer, and the slots `[N, T]` that the positions of an edit have among the rows held."""

    heads: torch.Tensor
    slots: torch.Tensor


def heads_of(rows: Rows, layer: LayerGeometry) -> list[int]:
    """The kv heads of a layer that an edit names."""
    return list(range(layer.num_kv_heads) if rows.kv_heads is None else rows.kv_heads)


def layers_named(cache: SequenceCache, geometry: CacheGeometry, rows: Rows) -> tuple[LayerGeometry, ...]:
    """The layers that an edit names. If it names none: all layers; of an encoder-decoder the cross-attention layers for
    positions of the source, else the decoder's own. Raises `InputError` for positions in both."""
    layers, source = rows.layers_of(geometry), cache.num_source
    if rows.layers is not None or not source:
        return layers
    if rows.start < source < rows.stop:
        raise InputError(
            f"Positions {rows.start} … {source - 1} were read by the encoder, those from {source} on by the decoder, "
            "and their rows are in different layers: edit one part after the other."
        )
    return tuple(layer for layer in layers if (layer.kind == "cross") == (rows.start < source))


def places_in(cache: SequenceCache, layer: LayerGeometry, rows: Rows) -> Places:
    """Where the rows of an edit are in a layer of a cache; raises `InputError` where one of them is not held."""
    held = cache.held_positions(layer.index)
    return places_among(held.expand(layer.num_kv_heads, -1), layer, rows, rows.start)


def places_among(held: torch.Tensor, layer: LayerGeometry, rows: Rows, start: int, where: str = "cache") -> Places:
    """As `places_in`, for rows held at the positions `held` `[H_kv, S]`: finds as many rows as `rows` names, from
    position `start` on. `where` names the holder in messages."""
    heads = torch.tensor(heads_of(rows, layer), device=held.device)
    wanted = torch.arange(start, start + rows.stop - rows.start, device=held.device).expand(len(heads), -1)
    if not held.shape[1]:
        raise InputError(f"Layer {layer.index} has no rows in the {where}: choose another layer, or step first.")
    slots, are_held = slots_of(held[heads], wanted)
    if not bool(are_held.all()):
        head = int((~are_held).any(1).nonzero()[0])
        gone = wanted[head][~are_held[head]]
        raise InputError(
            f"Position{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone[:4].tolist()))}"
            f"{' …' if len(gone) > 4 else ''} of layer {layer.index}, kv head {int(heads[head])} "
            f"{'are' if len(gone) > 1 else 'is'} not in the {where} (evicted, or left a window): name rows that are."
        )
    return Places(heads, slots)


# K or V `[N, T, D]` of a layer that an edit takes from another state or a file; `InputError` where they are not held
RowsFrom = Callable[[LayerGeometry, Part, Overwrite], torch.Tensor]


def row_writes(
    cache: SequenceCache, geometry: CacheGeometry, edit: Zero | Scale | AddNoise | Overwrite, source: RowsFrom | None
) -> list[RowWrite]:
    """The writes of an edit, in numbers as attention reads them; raises `InputError` where rows are not held."""
    writes = []
    for layer in layers_named(cache, geometry, edit.rows):
        held, places = cache.rows(layer.index), places_in(cache, layer, edit.rows)
        assert held is not None, "rows have places"
        for part in edit.rows.parts:
            numbers = changed_rows(edit, layer, part, held, places, source)
            span = range(edit.rows.start, edit.rows.stop)
            writes.append(RowWrite(layer.index, part, places.heads, places.slots, numbers, span))
    return writes


def changed_rows(
    edit: Zero | Scale | AddNoise | Overwrite,
    layer: LayerGeometry,
    part: Part,
    held: HeldRows,
    places: Places,
    source: RowsFrom | None,
) -> torch.Tensor:
    """The rows `[N, T, D]` with the chosen channels changed."""
    rows = (held.keys if part == "keys" else held.values)[0][places.heads[:, None], places.slots].clone()
    channels = edit.rows.channels
    chosen = torch.arange(rows.shape[2]) if channels is None else torch.tensor(channels)
    old = rows[..., chosen]
    match edit:
        case Zero():
            new = torch.zeros_like(old)
        case Scale(_, _, factor):
            new = old.float() * factor
        case AddNoise():
            new = old.float() + noise(edit, layer.index, part, old)
        case Overwrite():
            assert source is not None, "it was looked for before"
            new = source(layer, part, edit)[..., chosen].to(rows.device)
    rows[..., chosen] = new.to(rows.dtype)
    return rows


def noise(edit: AddNoise, layer: int, part: Part, old: torch.Tensor) -> torch.Tensor:
    """Normal noise of the shape of `old`, scaled by `edit.ratio` times its standard deviation. It depends only on seed,
    layer and K or V, and is the same on every device."""
    seed = (edit.seed * 1_000_003 + layer * 2 + (part == "values")) % 2**63
    drawn = torch.randn(old.shape, generator=torch.Generator().manual_seed(seed)).to(old.device)
    return drawn * (edit.ratio * old.float().std(correction=0))


def check_shapes(numbers: torch.Tensor, layer: LayerGeometry, part: Part, where: str) -> torch.Tensor:
    """Numbers `[…, D]`, or an `InputError` where D is not the layer's."""
    dim = layer.key_dim if part == "keys" else layer.value_dim
    if numbers.shape[-1] != dim:
        raise InputError(
            f"Rows of layer {layer.index} have {numbers.shape[-1]} channels in {where} and {dim} here: they are of "
            "another model."
        )
    return numbers


def rows_of_state(
    rows: Mapping[int, HeldRows], where: str, layer: LayerGeometry, part: Part, edit: Overwrite
) -> torch.Tensor:
    """`RowsFrom` of another state: of its rows by layer, as attention read them. `where` names it in messages."""
    held = rows.get(layer.index)
    positions = torch.zeros(layer.num_kv_heads, 0, dtype=torch.long) if held is None else places_of(held)
    places = places_among(positions, layer, edit.rows, edit.rows.start + edit.shift, where)
    assert held is not None, "rows without places are refused"
    return check_shapes(chosen(held, part)[0][places.heads[:, None], places.slots], layer, part, where)


# ---- forwards that read the rows of a cache without changing it ------------------------------------------------------

CHUNK = 256


class Scratch:
    """A read-only view of the rows that a cache holds of the first `num_tokens` tokens, for forwards. `keeps`: rows of
    further tokens are appended to the view. Otherwise it is for computing the newest of these tokens again, which then
    attends to its own row as the cache holds it."""

    def __init__(self, model: LoadedModel, cache: SequenceCache, num_tokens: int, *, keeps: bool) -> None:
        self._model, self.num_tokens = model, num_tokens
        layers: list[Any] = []
        self._hidden: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(cache.model_cache.layers):
            held = None if isinstance(layer, CrossLayer) else cache.rows(index)
            if held is None:
                layers.append(layer if isinstance(layer, CrossLayer) else copy.deepcopy(layer))
                continue
            positions = cache.held_positions(index)
            count = int((positions[0] < num_tokens).sum())
            first = HeldRows(held.keys[:, :, :count], held.values[:, :, :count], held.first)
            seen = cache.num_own(index, num_tokens if keeps else num_tokens - 1)
            is_sliding = bool(getattr(layer, "is_sliding", False))
            layers.append(ReadOnlyLayer(first, seen, is_sliding, keeps))
            hidden = cache.by_hand.hidden.at(index, positions.expand(held.keys.shape[1], -1))
            if hidden is not None:
                self._hidden[index] = hidden[:, : count if keeps else count - 1]
        self.model_cache: Any = self._read_only(model, cache, layers)
        self.can_be_computed_together = len({layer.keys.shape[2] for layer in self.rows}) < 2

    def _read_only(self, model: LoadedModel, cache: SequenceCache, layers: list[Any]) -> Any:
        """A transformers cache of these layers. Cross-attention layers are used as they are: a forward never writes to
        them."""
        if not cache.num_source:
            return read_only_cache(model.model.config, layers)
        own = read_only_cache(decoder_config(model.model.config), layers[: len(layers) // 2])
        made = SourceCache(own, cache.num_source)
        made.layers = layers
        for index in range(len(layers) // 2, len(layers)):
            hidden = cache.by_hand.hidden.at(index, cache.held_positions(index))
            if hidden is not None:
                self._hidden[index] = hidden
        return made

    @property
    def rows(self) -> list[ReadOnlyLayer]:
        """The layers that have rows."""
        return [layer for layer in self.model_cache.layers if isinstance(layer, ReadOnlyLayer)]

    def compute(self, token_ids: Sequence[int], probe: Probe | None = None) -> torch.Tensor:
        """Compute tokens; returns the newest logits `[V]`. If layers hold different numbers of rows, the tokens are
        computed one at a time."""
        size, logits = CHUNK if self.can_be_computed_together else 1, None
        for start in range(0, len(token_ids), size):
            ids = torch.tensor([token_ids[start : start + size]], device=self._model.device)
            logits = self._model.forward(Batch(ids, self.model_cache, probe, hidden=self._hidden)).logits[0, -1]
        assert logits is not None, "there are tokens to compute"
        return logits.clone()

    def rows_from(self, layer: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[H_kv, T, D]` of the tokens computed from a position on."""
        held = self.model_cache.layers[layer]
        count = held.seen - position
        return held.keys[0, :, held.keys.shape[2] - count :], held.values[0, :, held.values.shape[2] - count :]


def layer_without(model: LoadedModel, cache: SequenceCache, position: int) -> int | None:
    """The first layer whose window has left rows behind that the token at this position reads; None if there is
    none."""
    for layer in model.info.geometry.attention_layers:
        if layer.window is None or cache.rows(layer.index) is None:
            continue
        since = position - position % layer.window if layer.kind == "chunked" else position - layer.window + 1
        positions = cache.held_positions(layer.index)
        if positions.shape[-1] and int(positions.min()) > max(0, since):
            return layer.index
    return None


def newest_logits(
    model: LoadedModel, cache: SequenceCache, token_ids: Sequence[int], probe: Probe | None = None
) -> torch.Tensor | None:
    """The logits `[V]` of the newest token when it attends to the rows that the cache holds now, its own included. None
    where that cannot be computed: the cache keeps nothing, a recurrent state has advanced past the token, or the first
    row that the token read has left a window."""
    if cache.spec.recomputes or not cache.num_tokens or any(layer.has_state for layer in cache.layers):
        return None
    if layer_without(model, cache, cache.num_tokens - 1) is not None:
        return None
    scratch = Scratch(model, cache, cache.num_tokens, keeps=False)
    return scratch.compute([token_ids[cache.num_tokens - 1]], probe)


# ---- the edits of a sequence, made again while its tokens are computed into another cache ----------------------------


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


class Recomputed(NamedTuple):
    """Newest logits `[V]` with so many tokens, after a forward or after the edit that made the node `edit_step`; None
    where the newest token could not be computed again."""

    num_tokens: int
    logits: torch.Tensor | None
    edit_step: int | None = None


def edits_of(history: History, seq_id: int) -> list[EditThen]:
    """The edits on the live path that changed rows of a sequence, or of the one that it was forked from, in order."""
    found: list[EditThen] = []
    path, parent = history.path, None
    for step in [*path.steps, None]:
        changes: tuple[Change, ...] = tuple(history.changes) if step is None else history.tree.at(step).node.changes
        owner, last = path.owner(seq_id, step) if step is not None else (seq_id, None)
        if last == step and any(isinstance(each, EditMade) for each in changes):
            state = None if parent is None else path.state(seq_id, parent)
            for change in changes:
                if not isinstance(change, EditMade) or change.edit.seq_id != owner or state is None:
                    continue
                if not isinstance(change.edit, BiasLogits):
                    found.append(EditThen(change.edit, step, state))
                state = state.apply(change)
        parent = step
    return found


def recompute_with_edits(
    model: LoadedModel,
    live: LiveSequence,
    edits: list[EditThen],
    forward_lengths: list[int],
    *,
    is_every: bool = False,
) -> Iterator[Recomputed]:
    """As `recompute`, from the first token on: compute the tokens of a sequence into its cache, and make each edit when
    the sequence has the tokens that it had then. Raises `InputError` for an edit that cannot be made in this cache, or
    takes its rows from elsewhere."""
    cache, newest = live.cache, live.sequence
    _begin(cache, edits[0].before if edits else newest)
    for then in edits:
        live.sequence = then.before
        for computed in recompute(model, cache, then.before, forward_lengths, is_every=is_every):
            yield Recomputed(*computed)
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
        yield Recomputed(cache.num_tokens, logits, then.step)
    live.sequence = newest
    for computed in recompute(model, cache, newest, forward_lengths, is_every=is_every):
        yield Recomputed(*computed)


def _begin(cache: SequenceCache, sequence: SequenceState) -> None:
    """Empty a cache, for the source of this sequence where an encoder reads one."""
    if cache.num_source:
        cache.num_source = sequence.num_prompt_tokens - 1
    cache.clear()
