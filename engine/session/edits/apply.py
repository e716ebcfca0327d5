"""Makes an edit on one sequence and measures what it did to the next token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks
from engine.cache.paged.pages import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.look.divergence import divergence
from engine.look.probe import nan_where_dropped, spread
from engine.model.loader import LoadedModel
from engine.model.text import TokenTexts
from engine.session.edits.choosing import choose_again
from engine.session.edits.numbers import RowsFrom, row_writes
from engine.session.edits.places import heads_of, layers_named, places_in
from engine.session.edits.scratch import newest_logits
from engine.session.edits.tokens import overwrite, re_prefill
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.session.sampler import choose, steered
from engine.spec.edit import AddNoise, BiasLogits, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Scale, Zero
from engine.wire.changes import EditMade
from engine.wire.edits import KeptRows
from engine.wire.records import Candidate


@dataclass(eq=False)
class EditOutcome:
    """What an edit did to the next token: KL divergence in nats, candidates before and after. `attention` `[H, S]` by
    layer is the newest token's after the edit, if it was fed again to measure. `why_unmeasured`: it could not be, so
    that the edit shows in the tokens after it."""

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
        self.kl = None if before is None else divergence(after.double(), before.double())


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
    """Edit the cache, and feed the newest token before and after the edit: the two forwards differ in the cache
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
        case Mask():
            hide(model, cache, edit)
        case Pin():
            pin(model, cache, edit)
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
    cache, count = live.cache, live.sequence.num_tokens
    found = {}
    for index, weights in probe.rows().items():
        row = spread(
            weights[0].narrow(1, 0, min(cache.num_own(index, count), weights.shape[2])), cache.positions(index), count
        )
        found[index] = nan_where_dropped(row, cache.positions(index))
    return found


class Laps:
    """A stopwatch: `lap` returns the milliseconds since the previous lap."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        took, self._began = (now - self._began) * 1e3, now
        return took


def hide(model: LoadedModel, cache: SequenceCache, edit: Mask) -> None:
    """Hide rows from every later query, or show them again."""
    if not model.info.captures_attention:
        raise InputError(
            "This architecture has attention code of its own, which takes no mask from here: zero the values instead."
        )
    hidden = with_marks(cache, model.info.geometry, cache.by_hand.hidden, edit, edit.hidden)
    cache.mark_rows(edit.rows.start, hidden=hidden)


def pin(model: LoadedModel, cache: SequenceCache, edit: Pin) -> None:
    """Protect rows from eviction by the cache's rule, or end that protection."""
    pinned = with_marks(cache, model.info.geometry, cache.by_hand.pinned, edit, edit.pinned)
    cache.check_pinned(pinned)
    cache.mark_rows(edit.rows.start, pinned=pinned)


def drop(model: LoadedModel, cache: SequenceCache, edit: Drop) -> None:
    """Evict rows as the cache's rule would: not in layers that slide, whose masks count distances by rows."""
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


def with_marks(
    cache: SequenceCache, geometry: CacheGeometry, marks: RowMarks, edit: Mask | Pin, is_marked: bool
) -> RowMarks:
    """The row marks of a cache with those of an edit set or cleared. Raises `InputError` where a row to be marked is
    not held."""
    span = range(edit.rows.start, edit.rows.stop)
    for layer in layers_named(cache, geometry, edit.rows):
        if is_marked:
            places_in(cache, layer, edit.rows)
        marks = marks.marking(layer.index, layer.num_kv_heads, heads_of(edit.rows, layer), span, is_marked)
    return marks
