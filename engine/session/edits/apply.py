"""Makes an edit on one sequence and measures what it did to the next token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowWrite
from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.look.candidates import kl_divergence
from engine.look.measures import nan_where_evicted
from engine.model.loader import LoadedModel
from engine.model.tokenizer import TokenTexts
from engine.session.chunks import PrefillPlan
from engine.session.driver import Driver, lengths_to_compute
from engine.session.edits.numbers import RowsFrom, heads_of, layers_named, places_in, row_writes
from engine.session.edits.scratch import Scratch, layer_without, newest_logits
from engine.session.forward import weights_of_one
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.session.sampler import SampledToken, choose, steered
from engine.session.scheduler import SequenceWork
from engine.spec.edit import AddNoise, BiasLogits, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Rows, Scale, Zero
from engine.wire.measurements import KeptRows
from engine.wire.records import Candidate, EditMade, read_only_floats


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
        count = int(scratch.live.layers[layer.index].seen) - first
        for name, old, new in zip(found, (held.keys, held.values), scratch.rows_from(layer.index, first), strict=True):
            wanted = torch.full((*positions.shape[:1], count, new.shape[2]), torch.nan)
            for head, places in enumerate(positions):
                is_later = places >= first
                wanted[head, (places[is_later] - first).cpu()] = old[0, head, is_later].float().cpu()
            difference = (wanted - new.float().cpu()).square().sum((0, 2)).sqrt()
            found[name].append((difference / new.float().cpu().square().sum((0, 2)).sqrt()).numpy())
    keys, values = (read_only_floats(np.stack(found[name]).astype(np.float32)) for name in ("keys", "values"))
    return KeptRows(tuple(layer.index for layer in layers), first, keys, values)


def re_prefill(
    model: LoadedModel, mode: CacheMode, live: LiveSequence, edit: ReplaceTokens, check: Callable[[], None] | None
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
    driver = Driver(model, cache, num_prompt, token_ids[:num_kept])
    computed = list(PrefillPlan.of(model).lengths(len(token_ids)))
    if cache.num_source:  # the encoder reads its source in one forward
        computed = [num_prompt, *(length for length in computed if length > num_prompt)]
    logits = None
    for logits in driver.run(token_ids, lengths_to_compute(cache.spec, num_prompt, computed, len(token_ids)), check):  # noqa: B007
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


def choose_again(live: LiveSequence, mode: CacheMode, text_of: TokenTexts) -> SampledToken | None:
    """Sample again from the present logits; a forced token stays the next one. None where there are no logits or the
    prompt is not read yet."""
    sequence, count = live.sequence, live.sequence.num_tokens
    if live.logits is None or sequence.is_prefilling:
        return None
    ruled = mode.model.apply_generation_rules(
        live.logits, sequence.token_ids[:count], sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
    )
    choice = choose(live.logits, sequence.sampling, count, text_of, ruled)
    if sequence.sampled_is_forced:
        return choice
    after = mode.stop_after(sequence, choice, live.cache)
    stop = "stopped" if sequence.stop == "stopped" else after
    live.sequence = sequence.chosen(choice.token_id, stop)
    return choice


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


@torch.inference_mode()
def apply_edit(
    model: LoadedModel,
    mode: CacheMode,
    live: LiveSequence,
    edit: Edit,
    text_of: TokenTexts,
    source: RowsFrom | None = None,
    check: Callable[[], None] | None = None,
) -> EditOutcome:
    """Make an edit on a sequence and its cache in place. Raises `InputError` where it cannot be made. A failure may
    leave the sequence partly changed: pass a copy."""
    cache = live.cache
    edit.check(model.info.geometry, cache.num_tokens)
    if changes_rows(edit) and (why := cache.why_no_edit()):
        raise InputError(f"This cache mode {why}: choose a mode that keeps rows.")
    outcome, laps = EditOutcome(before=candidates(live, text_of)), Laps()
    try:
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
    except PoolExhausted as error:
        raise InputError(
            f"An edit of shared pages needs copies of them that the pool has no room for ({error}): remove a sequence, "
            "or give it more pages."
        ) from None
    choice = choose_again(live, mode, text_of)
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
    work, positions = SequenceWork(live, []), live.cache.positions
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
