"""The cache of one sequence that quantises its rows, evicts some of them, or both, in growing buffers; and its layers,
each with an exact way back.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks, check_budget
from engine.cache.compressed.retention import LayerView, Rule, cut, rule_of
from engine.cache.compressed.stores import RowStore
from engine.cache.contract import (
    NO_ROWS,
    Evicted,
    EvictedRows,
    HeldBytes,
    HeldRows,
    Pair,
    RowDelta,
    StoredCache,
    StoredLayer,
)
from engine.cache.layers.handles import is_pageable
from engine.cache.layers.layer import OwnLayer
from engine.cache.lost_rows import Lost, LostRows, LostStep
from engine.cache.rotation import KeyRotation
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodedBytes, Coding, Part
from engine.spec.retention import budgets_by_layer, layers_that_evict


@dataclass(eq=False)
class LayerPlan:
    """A layer, and a copy of it as it is `after` a step; taken over only when every layer has a plan, so that all
    change or none."""

    layer: CompressedLayer
    after: CompressedLayer
    exact: tuple[list[torch.Tensor], ...] = ()  # exact K and V of rows that are read from codes from now on
    lost: Lost | None = None
    evicted: EvictedRows | None = None

    def evict(self, positions: torch.Tensor, kept: torch.Tensor, evicted: torch.Tensor) -> torch.Tensor:
        """Evict the rows in slots `[H_kv, E]` and keep those in slots `[H_kv, K]`, of rows at `positions` `[H_kv, S]`;
        the positions `[H_kv, E]` of those evicted."""
        after, gone = self.after, positions.gather(1, evicted)
        keys, values = after.key_store, after.value_store
        memory = None if self.lost is None else self.lost.memory
        self.lost = Lost(keys.picked(evicted), values.picked(evicted), gone, memory)
        after.key_store, after.value_store = keys.with_only(kept), values.with_only(kept)
        after.positions, after.held = positions.gather(1, kept), kept.shape[1]
        return gone


class CompressedCache(SequenceCache):
    """A cache whose layers quantise their rows, evict some of them, or both.

    `rotation` is given when sinks are to be rotated; `seq_id` names the sequence in the records of evicted rows.
    """

    def __init__(
        self,
        spec: CacheSpec,
        config: Any,
        max_length: int,
        seq_id: int,
        rotation: KeyRotation | None = None,
        num_source: int = 0,
    ) -> None:
        self._seq_id, self._rotation = seq_id, rotation
        self.rule = None if spec.retention.keeps_all else rule_of(spec.retention)
        self._evicting = layers_that_evict(CacheGeometry.from_config(config)) if self.rule is not None else ()
        self._retention = budgets_by_layer(spec.retention, self._evicting, None)
        super().__init__(spec, config, max_length, num_source)

    def _build_own(self) -> Any:
        cache = DynamicCache(config=self._config)
        for index, layer in enumerate(cache.layers):
            if is_pageable(layer):
                cache.layers[index] = CompressedLayer(
                    *self.spec.codec.at(index), self.lost, index, layer.is_sliding, self._rotation
                )
        return cache

    @property
    def compressed_layers(self) -> list[tuple[int, CompressedLayer]]:
        return [(i, layer) for i, layer in enumerate(self.model_cache.layers) if isinstance(layer, CompressedLayer)]

    # ---- one step ------------------------------------------------------------------------------------------------

    def begin(self, num_new: int) -> None:
        """Only check: buffers grow when rows are appended, and a failure there is undone by cropping."""
        held = {self._layer(index).held for index in self._retention}
        # transformers makes one mask for all layers of a kind, sized by the first; a single query needs none
        assert num_new == 1 or len(held) < 2, (
            "layers that keep different numbers of rows are computed one token at a time"
        )

    @torch.inference_mode()
    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """At the end of the prompt, quantise the rows that waited for it; from then on evict rows over budget."""
        is_over, was_over = num_tokens >= num_prompt_tokens, self.ended_at is not None
        if is_over and not was_over:
            own = self.num_decoded(num_prompt_tokens)
            self._retention = budgets_by_layer(self.spec.retention, self._evicting, own)
        evicts = is_over and not (self.spec.retention.only_at_prompt_end and num_tokens > num_prompt_tokens)
        layers = [layer for _, layer in self.compressed_layers if layer.seen]
        if was_over and self.rule is None:
            layers = [each for each in layers if not (each.key_store.is_settled and each.value_store.is_settled)]
        plans = [self._plan(layer, is_over, probe) for layer in layers]
        seen = probe.rows() if evicts and self.rule is not None and probe is not None else {}
        for plan in plans:
            if evicts and self.rule is not None and plan.layer.index in self._retention:
                self._plan_eviction(plan, self.rule, seen)
            if is_over and self.spec.retention.only_at_prompt_end:
                plan.after.memory = None  # such a rule evicts only once, and needs no memory any more
        self._apply(plans, num_tokens)
        self.ended_at = num_prompt_tokens if is_over else None
        return tuple(plan.evicted for plan in plans if plan.evicted is not None)

    def _plan(self, layer: CompressedLayer, is_over: bool, probe: Probe | None) -> LayerPlan:
        plan, rule = LayerPlan(layer, after := copy.copy(layer)), self.rule
        if is_over:
            after.key_store, keys = layer.key_store.settled()
            after.value_store, values = layer.value_store.settled()
            plan.exact = keys, values
        if rule is not None and rule.is_per_row:
            plan.lost = Lost(memory=layer.memory)
        if rule is not None and rule.remembers and probe is not None and layer.index in self._retention:
            after.memory = rule.remember(layer.memory, probe, layer.index, layer.num_heads)
        return plan

    def _apply(self, plans: list[LayerPlan], num_tokens: int) -> None:
        """Log what these plans remove, and install the new state of each layer. Exact rows that are read from codes
        from now on are not logged if there are too many, in a conversion, and beside a rule, which logs codes."""
        rule, own, is_step = self.rule, self.num_decoded(num_tokens), num_tokens > self.num_tokens
        num_bytes = sum(int(rows.nbytes) for plan in plans for part in plan.exact for rows in part)
        is_logged = not num_bytes or (is_step and rule is None and self.lost.has_room(num_bytes))
        loses_memory = is_step and rule is not None and rule.has_large_memory and self.ended_at is None
        for plan in plans if num_bytes and is_logged else ():
            keys, values = ([rows.clone() for rows in part] for part in plan.exact)
            plan.lost = Lost(keys, values)
        lost = {plan.layer.index: plan.lost for plan in plans if plan.lost is not None}
        if lost:
            before = self.num_decoded(self.num_tokens) if is_step and rule is not None and rule.is_per_row else None
            self.lost.add(LostStep(own, lost, before))
        # only assignments from here on: they cannot fail, so that what is logged is removed from all layers
        for plan in plans:
            plan.layer.__dict__.update(plan.after.__dict__)
        if not is_logged:
            self.lost.floor = own
        if loses_memory:
            self.lost.memory_floor = own

    def _plan_eviction(self, plan: LayerPlan, rule: Rule, seen: Mapping[int, torch.Tensor]) -> None:
        """Add the eviction of rows over budget to a plan. `seen` has the newest query's weights by layer; a rule that
        needs them and has none waits for the next forward."""
        layer, after, index = plan.layer, plan.after, plan.layer.index
        retention = self._retention[index]
        num_kept = retention.num_kept(layer.seen)
        weights = seen[index][0] if index in seen else None
        if num_kept >= layer.held or (retention.needs_weights and weights is None):
            return
        positions = layer.all_positions()
        recent = retention.recent(num_kept)
        scores = rule.score(LayerView(index, after.key_store.read()[0], positions, after.memory, weights, recent))
        pinned = self.by_hand.pinned.at(index, positions + self.num_source)
        chosen = cut(scores, positions, retention, num_kept, pinned)
        if self._rotation is not None and after.sinks is None:
            after.sinks = after.key_store.read()[:, :, : retention.sinks].clone()
        gone = plan.evict(positions, chosen.kept, chosen.evicted)
        if after.memory is not None and rule.is_per_row:
            after.memory = after.memory.gather(1, chosen.kept)
        if self._rotation is not None and after.sinks is not None:
            # directly before the window, and always from their original keys, so that rounding does not add up
            after.key_store.overwrite(0, self._rotation.rotate(after.sinks, layer.seen - num_kept))
        plan.evicted = EvictedRows(
            self._seq_id,
            index,
            rule.per_head,
            rule.words,
            gone + self.num_source,
            scores,
            chosen.kept,
            chosen.evicted,
            chosen.on_merit,
        )

    # ---- edits by hand -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop rows as a rule does: the same number in all heads of a layer."""
        self.check_are_decoded(spans)
        if self.ended_at is None:
            self._check_prompt_goes_on(spans)
        plans = []
        for index, positions in spans.items():
            layer = self._layer(index)
            if layer.key_store.coding.is_kivi or layer.value_store.coding.is_kivi:
                raise InputError("KIVI's keys share scales over groups of tokens, so no row can be dropped: mask it.")
            if self._rotation is not None:
                raise InputError("Keys of this cache were rotated to close gaps, so no row can be dropped: mask it.")
            if len(positions) != layer.num_heads:
                raise InputError(
                    f"The kv heads of a layer hold equally many rows, and layer {index} has {layer.num_heads}: drop in "
                    "all of them, or mask the rows."
                )
            plans.append(self._plan_by_hand(index, positions - self.num_source))
        self._apply(plans, self.num_tokens)
        self.note_edit(min(int(positions.min()) for positions in spans.values()))

    def _check_prompt_goes_on(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Raise `InputError` if the rest of the prompt could not be read once these rows were evicted."""
        left = set[int]()
        for index, layer in self.compressed_layers:
            if index in spans and not (layer.key_store.is_settled and layer.value_store.is_settled):
                raise InputError("These rows get their scale at the end of the prompt: let it end, or mask the rows.")
            if not layer.is_sliding:
                left.add(layer.held - (spans[index].shape[1] if index in spans else 0))
        if len(left) > 1:
            raise InputError(
                "The rest of the prompt is read by layers that hold equally many rows: drop in all of them, let it "
                "end, or mask the rows."
            )

    def check_pinned(self, pinned: RowMarks) -> None:
        if self.rule is None:
            super().check_pinned(pinned)
            return
        if self._rotation is not None:
            raise InputError("Keys of this cache are rotated as rows go, so none can be pinned: keep the positions.")
        for index, mask in pinned.layers.items():
            if index not in self._retention:
                raise InputError(f"Layer {index} evicts no rows, so none needs a pin: name other layers.")
            if not self.rule.per_head and not bool((mask == mask[:1]).all()):
                raise InputError("This rule keeps the same rows in all heads of a layer: pin in all of them.")
            own = mask[:, self.num_source :]
            check_budget(self._retention[index], self._layer(index).seen, own, f"of layer {index}")

    def _plan_by_hand(self, index: int, going: torch.Tensor) -> LayerPlan:
        layer = self._layer(index)
        plan, held = LayerPlan(layer, copy.copy(layer)), layer.all_positions()
        goes = (held[:, :, None] == going.to(held.device)[:, None]).any(2)
        slots = torch.arange(layer.held, device=held.device).expand(len(held), -1)
        evicted, kept = slots[goes].view(len(held), -1), slots[~goes].view(len(held), -1)
        if layer.memory is not None and self.rule is not None:
            plan.after.memory = layer.memory.gather(1, kept) if self.rule.is_per_row else None
        plan.evict(held, kept, evicted)
        return plan

    # ---- going back ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Copy codes, positions and the rule's memory. The log of lost rows is copied only for the same sequence
        (`as_itself`)."""
        if not isinstance(other, CompressedCache) or other.spec != self.spec:
            return False
        self.copy_layers(other)
        self.num_tokens, self.ended_at, self.by_hand = other.num_tokens, other.ended_at, other.by_hand
        self._retention = other._retention
        if not self._crop_fork(num_tokens):
            return False
        if not as_itself:
            self.forget_past()
        return True

    # ---- reading -------------------------------------------------------------------------------------------------

    def _layer(self, layer_index: int) -> CompressedLayer:
        layer = self.model_cache.layers[layer_index]
        assert isinstance(layer, CompressedLayer)
        return layer

    @property
    def lost_bytes(self) -> int:
        stores = (store for _, layer in self.compressed_layers for store in (layer.key_store, layer.value_store))
        return self.lost.num_bytes + sum(store.spare_bytes for store in stores)

    @property
    def kept_ratio(self) -> float:
        layers = [layer for _, layer in self.compressed_layers]
        return sum(layer.held for layer in layers) / max(1, sum(layer.seen for layer in layers))

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def restore(self, stored: StoredCache) -> None:
        super().restore(stored)
        own = None if self.ended_at is None else self.num_decoded(self.ended_at)
        self._retention = budgets_by_layer(self.spec.retention, self._evicting, own)

    # ---- conversion ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def convert_from(self, other: SequenceCache) -> bool:
        """Quantise the rows of an exact cache; `compress` then evicts rows over budget. Returns False for rules that
        would have had to observe attention from the first token on."""
        return not (self.rule is not None and self.rule.remembers) and super().convert_from(other)


# ---- one layer ------------------------------------------------------------------------------------------------------


class CompressedLayer(OwnLayer):
    """K and V of one layer, quantised or partly evicted; attention reads the dequantised numbers.

    `positions` `[H_kv, S]` are those of the rows held, None while none was evicted. `seen` counts all tokens, held or
    not: position ids and masks follow it. `memory` is the eviction rule's. `lost` is the log of the whole cache,
    in which this layer is `index`. `rotation` is given when sinks are to be rotated.
    """

    def __init__(
        self,
        keys: Coding,
        values: Coding,
        lost: LostRows,
        index: int = 0,
        is_sliding: bool = False,
        rotation: KeyRotation | None = None,
    ) -> None:
        super().__init__()
        self.lost, self.index, self._rotation = lost, index, rotation
        self.is_sliding = is_sliding  # read by transformers when it sizes masks; a sliding layer too keeps all its rows
        self.key_store, self.value_store = RowStore(keys, "keys"), RowStore(values, "values")
        self.seen = 0
        self.held = 0  # number of rows, equal in every head; counted when both K and V are written
        self.num_heads = 0
        self.positions: torch.Tensor | None = None
        self.memory: torch.Tensor | None = None
        self.sinks: torch.Tensor | None = None  # keys of the sinks before rotation

    # ---- transformers' contract ----------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.num_heads = key_states.dtype, key_states.device, key_states.shape[1]
        self.is_initialized = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        num_new = keys.shape[2]
        keys, values = self.key_store.append(keys), self.value_store.append(values)
        if self.positions is not None:
            new = torch.arange(self.seen, self.seen + num_new, device=self.positions.device)
            self.positions = torch.cat([self.positions, new.expand(len(self.positions), -1)], 1)
        self.seen += num_new
        self.held += num_new
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.held + query_length, self.seen - self.held

    def get_seq_length(self) -> int:
        return self.seen

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    def all_positions(self) -> torch.Tensor:
        """Positions of the rows held, `[H_kv, S]`."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.held, device=self.device).expand(self.num_heads, -1)

    @property
    def coded_bytes(self) -> CodedBytes:
        return self.key_store.stored + self.value_store.stored

    @torch.inference_mode()
    def rows(self) -> HeldRows | None:
        if not self.held:
            return None
        return HeldRows(self.key_store.read(), self.value_store.read(), 0, self.positions)

    @torch.inference_mode()
    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        if num_tokens is not None and num_tokens < self.seen:
            return self._past(num_tokens).rows_at(first_position=first_position)
        if first_position is None:
            return self.rows()
        if self.seen <= first_position:
            return None
        slot = self._slot(first_position)
        return HeldRows(self.key_store.read(slot), self.value_store.read(slot), first_position)

    @torch.inference_mode()
    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        if num_tokens is not None and num_tokens < self.seen:
            return self._past(num_tokens).newest(part, first_position)
        return self._store(part).read(self._slot(first_position))[0]

    def _slot(self, position: int) -> int:
        """The first slot whose row is at a position or after it, of positions of which none was evicted."""
        return max(0, self.held - (self.seen - position))

    def row_positions(self) -> torch.Tensor | None:
        return self.positions

    def held_bytes(self) -> HeldBytes:
        stores, stored = (self.key_store, self.value_store), self.coded_bytes
        is_coded = not all(store.coding.is_exact for store in stores)
        positions = 0 if self.positions is None else int(self.positions.nbytes)
        return HeldBytes(
            stored=stored.total,
            reserved=self.key_store.reserved_bytes + self.value_store.reserved_bytes + positions,
            scales=stored.scales,
            residual=stored.exact if is_coded else 0,
            positions=positions,
            dequantised=sum(self.held * store.row_bytes for store in stores if store.num_coded(self.held)),
            lost=self.lost.bytes_of(self.index) + self.key_store.spare_bytes + self.value_store.spare_bytes,
            scores=0 if self.memory is None else int(self.memory.nbytes),
        )

    def commit(self, written: RowDelta) -> RowDelta:
        """What the step did. Rewritten slots are reported as positions: a codec that rewrites rows evicts none, and
        rotated sinks have the first positions."""
        before, now = written.written.start, written.written.stop
        keys, values = (within(store.rewritten, before) for store in (self.key_store, self.value_store))
        self.key_store.rewritten = self.value_store.rewritten = NO_ROWS
        step = self.lost.at(now)
        lost = None if step is None else step.layers.get(self.index)
        evicted = () if lost is None or lost.positions is None else (lost.positions,)
        return RowDelta(written.written, keys, values, evicted=evicted) if keys or values or evicted else written

    def num_final(self, part: Part, num_tokens: int) -> int:
        if self.held < self.seen or (part == "keys" and self._rotation is not None) or self._waited(part, num_tokens):
            return 0
        return self._store(part).num_final(num_tokens)

    def _waited(self, part: Part, num_tokens: int) -> bool:
        """Whether rows that are coded now still waited for the prompt's end at `num_tokens` tokens."""
        return self.held == self.seen and num_tokens < (self._store(part).quantised_at or 0)

    def exact_from(self, num_tokens: int, part: Part) -> int:
        """Where rows were evicted, all others are coded or none is: a codec that keeps its latest rows exact takes no
        rule that evicts."""
        if self._waited(part, num_tokens):
            return 0
        num_rows = max(1, self.held - max(0, self.seen - num_tokens))  # at least one: evicted rows may be missing here
        num_coded = self._store(part).num_coded(num_rows) if num_tokens else 0
        return num_tokens if num_coded >= num_rows else num_coded

    def _store(self, part: Part) -> RowStore:
        return self.key_store if part == "keys" else self.value_store

    # ---- going back ----------------------------------------------------------------------------------------------

    def can_crop(self, num_tokens: int) -> bool:
        return num_tokens == self.seen or (self.lost.knows_memory(num_tokens) and self.knows(num_tokens))

    def knows(self, num_tokens: int) -> bool:
        return num_tokens == self.seen or num_tokens >= self.lost.floor

    def crop(self, num_tokens: int) -> int:
        """Back to the state after `num_tokens` tokens, bit for bit; returns how many rows were restored. The log is
        only read."""
        later = [] if num_tokens >= self.seen else self.lost.since(num_tokens)
        if num_tokens == 0:
            self.memory = None
        elif later and later[0].memory_at == num_tokens:
            self.memory = later[0].layers[self.index].memory
        mine = [step.layers[self.index] for step in later if self.index in step.layers]
        undone = [(lost.positions, lost) for lost in mine if lost.positions is not None]
        if undone:
            self._restore(undone, num_tokens)
            self._restore_sinks()
        else:
            self.key_store, self.value_store = (
                store.with_exact(exact) if (exact := [rows for lost in mine for rows in getattr(lost, part)]) else store
                for part, store in (("keys", self.key_store), ("values", self.value_store))
            )
            self._crop_rows(self.held - (self.seen - num_tokens))
            self.seen = min(self.seen, num_tokens)
        if self.held == self.seen:
            self.positions = None
        return sum(positions.numel() for positions, _ in undone)

    def _restore_sinks(self) -> None:
        """Rotate the sinks again from their original keys, for the gap that there was then; this gives the same
        bits."""
        if self.sinks is None or self._rotation is None:
            return
        gap = self.seen - self.held
        count = min(self.held, self.sinks.shape[2])
        if count:
            self.key_store.overwrite(0, self._rotation.rotate(self.sinks[:, :, :count], gap))
        if gap == 0:
            self.sinks = None

    def _past(self, num_tokens: int) -> CompressedLayer:
        """The layer after going back to `num_tokens`: a copy of it, which shares the rows' storage but has its own
        counts, goes back; this one is unchanged."""
        made = copy.copy(self)
        made.key_store, made.value_store = self.key_store.shared_copy(), self.value_store.shared_copy()
        made.crop(num_tokens)
        return made

    def _restore(self, undone: list[tuple[torch.Tensor, Lost]], num_tokens: int) -> None:
        """Undo several evictions at once: keep, of the rows held and those evicted since, those before `num_tokens`, in
        order of position."""
        assert self.positions is not None
        positions = torch.cat([self.positions[:, : self.held], *(positions for positions, _ in undone)], 1)
        count = int((positions[0] < num_tokens).sum())  # the same in every head
        ordered = positions.sort(1)
        slots = ordered.indices[:, :count]
        keys = self.key_store.rebuilt(self.held, [lost.keys for _, lost in undone], slots)
        values = self.value_store.rebuilt(self.held, [lost.values for _, lost in undone], slots)
        self.key_store, self.value_store = keys, values
        self.positions = ordered.values[:, :count]
        self.seen, self.held = num_tokens, count

    # ---- storing and restoring -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def stored(self, num_tokens: int) -> StoredLayer | None:
        if num_tokens < self.seen:
            forgot = "" if self.can_crop(num_tokens) else "what its rule remembered then is not known any more"
            return replace(found, why_not=forgot) if (found := self._past(num_tokens).stored(num_tokens)) else None
        if not self.held:
            return None
        keys, values = self.key_store.written(), self.value_store.written()
        return StoredLayer(
            keys,
            values,
            self.seen,
            self.held,
            self.dtype,
            positions=self.positions,
            memory=self.memory,
            sinks=self.sinks,
        )

    def restore(self, stored: StoredLayer) -> None:
        some = next(iter(stored.keys.tensors.values()))
        self.dtype, self.device, self.num_heads = stored.dtype, some.device, some.shape[1]
        self.is_initialized = True
        self.key_store.refill(stored.keys, stored.dtype)
        self.value_store.refill(stored.values, stored.dtype)
        self.seen, self.held = stored.num_tokens, stored.num_rows
        self.positions, self.memory, self.sinks = stored.positions, stored.memory, stored.sinks
        if self.positions is not None or self.held < self.seen:
            self.lost.forget(self.seen)
        else:
            self.lost.floor = max(self.lost.floor, self.key_store.first_known, self.value_store.first_known)

    @torch.inference_mode()
    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        before = None if part == "values" or self.sinks is None else self._sinks_now().clone()
        self._store(part).write(heads, slots, numbers)
        if before is not None:
            self._rewrite_sinks(before)

    def _sinks_now(self) -> torch.Tensor:
        """Keys `[1, H_kv, sinks, D]` of the sinks as attention reads them, rotated."""
        assert self.sinks is not None
        return self.key_store.read()[:, :, : self.sinks.shape[2]]

    def _rewrite_sinks(self, before: torch.Tensor) -> None:
        """Update the original keys of sinks that were overwritten by hand, because sinks are rotated from the originals
        at each eviction. Rotating back and forth rounds twice, so the rows are then set to what the originals give:
        going back will give the same."""
        assert self.sinks is not None
        assert self._rotation is not None
        now, gap = self._sinks_now(), self.seen - self.held
        is_written = (now != before).any(-1, keepdim=True)
        self.sinks = torch.where(is_written, self._rotation.rotate(now, -gap), self.sinks)
        self.key_store.overwrite(0, self._rotation.rotate(self.sinks, gap))

    def _crop_rows(self, num_rows: int) -> None:
        self.key_store.crop(num_rows)
        self.value_store.crop(num_rows)
        self.held = num_rows
        if self.positions is not None:
            self.positions = self.positions[:, :num_rows]


def within(slots: range, stop: int) -> range:
    """The slots below `stop`."""
    return range(slots.start, min(slots.stop, stop))
