"""The byte ledger of a session: bytes predicted by formula, stored in rows, reserved in storage, and held by the tool
itself for going back and for showing ("looking")."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from engine.cache.contract import HeldBytes
from engine.cache.paged.store import PageStore
from engine.cache.sequence_cache import SequenceCache
from engine.device import MemoryMeter, MemoryUse
from engine.geometry.dimensions import LayerGeometry
from engine.history.history import History
from engine.model.loader import LoadedModel
from engine.predict.bytes import CacheFormula, Fill
from engine.session.states import KeptStates, LiveSequence, LiveSequences
from engine.spec.cache import CacheSpec
from engine.spec.terms import Term, bytes_of, of_all_layers, of_one_layer
from engine.wire.records import ByteGap, CacheBytes, LayerBytes
from engine.wire.status import ModelInfo

if TYPE_CHECKING:
    from engine.session.rerun import Reruns


class Ledger:
    """Counts the bytes that a session holds, and reads how much memory the process and the device use."""

    def __init__(
        self, model: LoadedModel, live: LiveSequences, history: History, reruns: Reruns, kept: KeptStates
    ) -> None:
        self._info, self._live, self._history, self._reruns, self._kept = model.info, live, history, reruns, kept
        self._meter = MemoryMeter(model.devices)
        self._formula = self._formula_now()

    def now(self, *, is_of_step: bool = False) -> CacheBytes:
        """The bytes held now. For the record of a step, the peak is that since the previous record, and is reset."""
        caches, kept, held = self._live.caches, self._kept.row_bytes, self._meter.read(reset_peak=is_of_step)
        lost = sum([cache.lost_bytes for cache in caches])
        looking = self._history.num_bytes + self._reruns.num_bytes + lost + kept
        if self._formula.spec is not self._live.mode.spec:
            self._formula = self._formula_now()
        return cache_bytes(self._info, self._formula, caches, self._live.mode.store, looking, held, kept)

    def next_step_bytes(self) -> int:
        """The bytes that the next steps need at least."""
        return growth_bytes(self._info, self._live.mode.spec, list(self._live))

    def _formula_now(self) -> CacheFormula:
        return CacheFormula(self._live.mode.spec, self._info.geometry, self._info.dtype)


def cache_bytes(
    info: ModelInfo,
    formula: CacheFormula,
    caches: list[SequenceCache],
    store: PageStore | None,
    looking: int,
    held_now: MemoryUse,
    kept: int = 0,
) -> CacheBytes:
    """The bytes of all layers, each summed over the sequences. Rows of a recomputing layout count as held for looking,
    since no forward reads them; so does the attention that an eviction rule remembers, which is neither rows nor room
    for them. This runs after every step, so that layers with equal numbers, which are most, are counted once."""
    fills = [Fill(cache.num_tokens, cache.prompt_ended_at) for cache in caches if cache.num_tokens]
    known: dict[Hashable, tuple[tuple[Term, ...], tuple[int, int, int, tuple[ByteGap, ...]], int]] = {}
    exact_of: dict[Hashable, int] = {}
    exact = None if formula.without_loss is None else 0
    layers, terms_by_layer = [], []
    held_by_layer = list(zip(*(cache.all_bytes() for cache in caches), strict=True))
    devices = info.layer_devices
    for layer, kind in zip(info.geometry.layers, formula.kinds, strict=True):
        index = layer.index
        held = held_by_layer[index] if index < len(held_by_layer) else ()  # the last layers may keep no rows of theirs
        key = kind, held
        if key not in known:
            terms, stored, reserved, gaps = sums_of_layer(formula, layer, held, fills, caches, store)
            looks = sum(one.scores + (one.reserved if formula.spec.recomputes else 0) for one in held)
            known[key] = terms, (bytes_of(terms), stored, reserved, gaps), looks
        terms, numbers, looks = known[key]
        looking += looks
        terms_by_layer.append(terms)
        if exact is not None:
            if kind not in exact_of:
                exact_of[kind] = exact_bytes(formula, layer, fills, store)
            exact += exact_of[kind]
        layers.append(LayerBytes(index, layer.kind, *numbers, devices[index] if index < len(devices) else ""))
    process, allocator, peak, device_used = held_now
    formula_terms = of_all_layers(terms_by_layer)
    return CacheBytes(
        tuple(layers), looking, process, allocator, info.weight_bytes, kept, peak, device_used, formula_terms, exact
    )


def exact_bytes(formula: CacheFormula, layer: LayerGeometry, fills: list[Fill], store: PageStore | None) -> int:
    """What one layer would take for the same tokens with every row exact; rows of shared pages count once."""
    exact = formula.without_loss
    assert exact is not None
    terms = [term for fill in fills for term in exact.terms(layer, fill)]
    if store is not None and layer.index in store.rows_of:
        terms += exact.terms_of_shared(layer, store.shared_rows(layer))
    return bytes_of(terms)


def sums_of_layer(
    formula: CacheFormula,
    layer: LayerGeometry,
    held: Sequence[HeldBytes],
    fills: list[Fill],
    caches: list[SequenceCache],
    store: PageStore | None,
) -> tuple[tuple[Term, ...], int, int, tuple[ByteGap, ...]]:
    """The bytes of one layer over all sequences: the formula's terms, stored, reserved, and the gaps between these by
    name.

    In a page store a row that several sequences share is counted as stored once, and the whole pool as reserved.
    """
    spec = formula.spec
    total = summed(held)
    stored, reserved = total.stored, total.reserved
    terms = [term for fill in fills for term in formula.terms(layer, fill)]
    if spec.recomputes:
        stored, reserved = 0, sum(cache.idle_bytes(layer.index) for cache in caches)
        gaps = [ByteGap("padding to the reserved length", reserved, "reserved")]
    elif store is not None and layer.index in store.rows_of:
        num_shared = store.shared_rows(layer)
        shared = store.layer_bytes(layer.index, num_shared)
        terms += formula.terms_of_shared(layer, num_shared)
        slack = reserved - stored
        stored, reserved = stored - shared.stored, store.reserved_bytes(layer.index)
        gaps = page_gaps(total, shared, slack, reserved - stored)
    else:
        gaps = row_gaps(total, spec, reserved - stored)
    return of_one_layer(terms), stored, reserved, tuple(gap for gap in gaps if gap.num_bytes)


def summed(held: Sequence[HeldBytes]) -> HeldBytes:
    """The bytes of several sequences; of the copies that attention reads the largest one, since they are made one
    after the other."""
    largest = max([one.dequantised for one in held], default=0)
    return HeldBytes(*map(sum, zip(*held, strict=True)))._replace(dequantised=largest)


def growth_bytes(info: ModelInfo, spec: CacheSpec, lives: Sequence[LiveSequence]) -> int:
    """By formula the bytes that the caches of these sequences will grow by until all of their tokens are computed (at
    least one more), and their logits in float32: the least memory that the next steps need."""
    formula, more = CacheFormula(spec, info.geometry, info.dtype), 0
    for live in lives:
        tokens = max(len(live.sequence.token_ids), live.sequence.num_tokens + 1)
        fill = Fill(tokens, min(tokens, live.sequence.num_prompt_tokens))
        then = sum(formula.layer(layer, fill).reserved for layer in info.geometry.layers)
        now = sum(one.reserved for one in live.cache.all_bytes())
        more += max(0, then - now) + 4 * (info.geometry.vocab_size or 0)
    return more


def row_gaps(held: HeldBytes, spec: CacheSpec, unfilled: int) -> list[ByteGap]:
    """The named gaps of one layer that is not in pages, over all sequences: bytes beside the K and V of its tokens.
    `unfilled` are the bytes reserved and not stored."""
    copy, remembered = gaps_of_readers(held)
    room = "padding to the reserved length" if spec.form == "static" else "room to grow"
    return [
        ByteGap("scales and offsets", held.scales, "stored"),
        ByteGap("exact residual", held.residual, "stored"),
        ByteGap("positions of the rows kept", held.positions, "reserved"),
        ByteGap(room, max(0, unfilled - held.positions), "reserved"),
        copy,
        ByteGap("rows kept for going back", held.lost, "looking"),
        remembered,
    ]


def page_gaps(held: HeldBytes, shared: HeldBytes, slack: int, unfilled: int) -> list[ByteGap]:
    """The named gaps of one layer in pages; `slack` are the unused slots in the last pages of the sequences."""
    slack = max(0, min(slack, unfilled))
    return [
        ByteGap("scales and offsets", held.scales - shared.scales, "stored"),
        ByteGap("page slack", slack, "reserved"),
        ByteGap("pages not in use", max(0, unfilled - slack), "reserved"),
        *gaps_of_readers(held),
    ]


def gaps_of_readers(held: HeldBytes) -> tuple[ByteGap, ByteGap]:
    """What those who read rows hold beside them: the transient copy that attention reads, the largest of all sequences,
    since they are computed one by one; and the attention that eviction rules remember: H2O sums it up in one number per
    row, SnapKV keeps several queries."""
    return (
        ByteGap("dequantised copy", held.dequantised, "transient"),
        ByteGap("attention that the rule remembers", held.scores, "looking"),
    )
