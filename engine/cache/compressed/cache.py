"""The cache of one sequence that quantises its rows, evicts some of them, or both, in growing buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks, check_budget
from engine.cache.compressed.layer import CompressedLayer
from engine.cache.compressed.retention import LayerView, Rule, cut, rule_of
from engine.cache.compressed.stores import RowStore, Store
from engine.cache.contract import Evicted, EvictedRows
from engine.cache.layers.handles import is_pageable
from engine.cache.lost_rows import Lost, LostStep
from engine.cache.rotation import KeyRotation
from engine.cache.sequence_cache import SequenceCache
from engine.cache.stored import StoredCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.retention import budgets_by_layer, layers_that_evict


@dataclass(eq=False)
class LayerPlan:
    """The new state of one layer after `compress`, applied only when every layer has a plan, so that all change or
    none."""

    layer: CompressedLayer
    key_store: Store
    value_store: Store
    memory: torch.Tensor | None
    positions: torch.Tensor | None
    sinks: torch.Tensor | None
    exact: tuple[list[torch.Tensor], list[torch.Tensor]]  # exact K and V of rows that are read from codes from now on
    lost: Lost | None = None
    evicted: EvictedRows | None = None

    def evict(self, positions: torch.Tensor, kept: torch.Tensor, evicted: torch.Tensor) -> torch.Tensor:
        """Evict the rows in slots `[H_kv, E]` and keep those in slots `[H_kv, K]`, of rows at `positions` `[H_kv, S]`;
        the positions `[H_kv, E]` of those evicted."""
        keys, values = self.key_store, self.value_store
        assert isinstance(keys, RowStore)
        assert isinstance(values, RowStore)
        gone = positions.gather(1, evicted)
        state = None if self.lost is None else self.lost.state
        self.lost = Lost(keys.picked(evicted), values.picked(evicted), gone, state)
        self.key_store, self.value_store = keys.with_only(kept), values.with_only(kept)
        self.positions = positions.gather(1, kept)
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
        self.rule: Rule | None = None if spec.retention.keeps_all else rule_of(spec.retention)
        self._evicting = layers_that_evict(CacheGeometry.from_config(config)) if self.rule is not None else ()
        self._retention = budgets_by_layer(spec.retention, self._evicting, None)
        self.num_prompt_tokens: int | None = None  # known once the prompt has ended
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
        return [(i, layer) for i, layer in enumerate(self.live.layers) if isinstance(layer, CompressedLayer)]

    # ---- one step ------------------------------------------------------------------------------------------------

    def begin(self, num_new: int) -> None:
        """Only check: buffers grow when rows are appended, and a failure there is undone by cropping."""
        held = {self._layer(index).held for index in self._retention}
        # transformers makes one mask for all layers of a kind, sized by the first; a single query needs none
        assert num_new == 1 or len(held) < 2, (
            "layers that keep different numbers of rows are computed one token at a time"
        )

    def probe(self, observe: bool) -> Probe | None:
        wanted = self.rule.probe() if self.rule else None
        return wanted or super().probe(observe)

    @torch.inference_mode()
    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """At the end of the prompt, quantise the rows that waited for it; from then on evict rows over budget."""
        is_over, was_over = num_tokens >= num_prompt_tokens, self.num_prompt_tokens is not None
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
                plan.memory = None  # such a rule evicts only once, and needs no state any more
        self._apply(plans, num_tokens)
        self.num_prompt_tokens = num_prompt_tokens if is_over else None
        return tuple(plan.evicted for plan in plans if plan.evicted is not None)

    def _plan(self, layer: CompressedLayer, is_over: bool, probe: Probe | None) -> LayerPlan:
        keys, values, memory, rule = layer.key_store, layer.value_store, layer.memory, self.rule
        exact_keys, exact_values = list[torch.Tensor](), list[torch.Tensor]()
        if is_over:
            (keys, exact_keys), (values, exact_values) = keys.settled(), values.settled()
        lost = Lost(state=memory) if rule is not None and rule.is_per_row else None
        if rule is not None and rule.remembers and probe is not None and layer.index in self._retention:
            memory = rule.remember(memory, probe, layer.index, layer.num_heads)
        exact = exact_keys, exact_values
        return LayerPlan(layer, keys, values, memory, layer.positions, layer.sinks, exact, lost)

    def _apply(self, plans: list[LayerPlan], num_tokens: int) -> None:
        """Log what these plans remove, and install the new state of each layer. Exact rows that are read from codes
        from now on are not logged if there are too many, in a conversion, and beside a rule, which logs codes."""
        rule, own, is_step = self.rule, self.num_decoded(num_tokens), num_tokens > self.num_tokens
        num_bytes = sum(int(rows.nbytes) for plan in plans for part in plan.exact for rows in part)
        is_logged = not num_bytes or (is_step and rule is None and self.lost.has_room(num_bytes))
        loses_state = is_step and rule is not None and rule.has_large_state and self.num_prompt_tokens is None
        for plan in plans if num_bytes and is_logged else ():
            keys, values = ([rows.clone() for rows in part] for part in plan.exact)
            plan.lost = Lost(keys, values)
        lost = {plan.layer.index: plan.lost for plan in plans if plan.lost is not None}
        planned = [(plan.layer, plan, plan.key_store.length) for plan in plans]
        if lost:
            before = self.num_decoded(self.num_tokens) if is_step and rule is not None and rule.is_per_row else None
            self.lost.add(LostStep(own, lost, before))
        # only assignments from here on: they cannot fail, so that what is logged is removed from all layers
        for layer, plan, held in planned:
            layer.key_store, layer.value_store, layer.held = plan.key_store, plan.value_store, held
            layer.memory, layer.positions, layer.sinks = plan.memory, plan.positions, plan.sinks
        if not is_logged:
            self.lost.floor = own
        if loses_state:
            self.lost.state_floor = own

    def _plan_eviction(self, plan: LayerPlan, rule: Rule, seen: Mapping[int, torch.Tensor]) -> None:
        """Add the eviction of rows over budget to a plan. `seen` has the newest query's weights by layer; a rule that
        needs them and has none waits for the next forward."""
        layer, index = plan.layer, plan.layer.index
        retention = self._retention[index]
        num_kept = retention.num_kept(layer.seen)
        weights = seen[index][0] if index in seen else None
        if num_kept >= layer.held or (retention.needs_weights and weights is None):
            return
        positions = layer.all_positions()
        recent = retention.recent(num_kept)
        scores = rule.score(LayerView(index, plan.key_store.read()[0], positions, plan.memory, weights, recent))
        pinned = self.by_hand.pinned.at(index, positions + self.num_source)
        chosen = cut(scores, positions, retention, num_kept, pinned)
        if self._rotation is not None and plan.sinks is None:
            plan.sinks = plan.key_store.read()[:, :, : retention.sinks].clone()
        gone = plan.evict(positions, chosen.kept, chosen.evicted)
        if plan.memory is not None and rule.is_per_row:
            plan.memory = plan.memory.gather(1, chosen.kept)
        if self._rotation is not None and plan.sinks is not None:
            assert isinstance(plan.key_store, RowStore)
            # directly before the window, and always from their original keys, so that rounding does not add up
            plan.key_store.overwrite(0, self._rotation.rotate(plan.sinks, layer.seen - num_kept))
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
        if self.num_prompt_tokens is None:
            self._check_prompt_goes_on(spans)
        plans = []
        for index, positions in spans.items():
            layer = self._layer(index)
            if not (isinstance(layer.key_store, RowStore) and isinstance(layer.value_store, RowStore)):
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
        held = layer.all_positions()
        goes = (held[:, :, None] == going.to(held.device)[:, None]).any(2)
        slots = torch.arange(layer.held, device=held.device).expand(len(held), -1)
        evicted, kept = slots[goes].view(len(held), -1), slots[~goes].view(len(held), -1)
        memory = layer.memory
        if memory is not None and self.rule is not None:
            memory = memory.gather(1, kept) if self.rule.is_per_row else None
        plan = LayerPlan(layer, layer.key_store, layer.value_store, memory, layer.positions, layer.sinks, ([], []))
        plan.evict(held, kept, evicted)
        return plan

    # ---- going back ----------------------------------------------------------------------------------------------

    def crop(self, num_tokens: int) -> bool:
        if not super().crop(num_tokens):
            return False
        if self.num_prompt_tokens is not None and num_tokens < self.num_prompt_tokens:
            self.num_prompt_tokens = None
        return True

    def clear(self) -> None:
        super().clear()
        self.num_prompt_tokens = None

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Copy codes, positions and the rule's state. The log of lost rows is copied only for the same sequence
        (`as_itself`)."""
        if not isinstance(other, CompressedCache) or other.spec != self.spec:
            return False
        self.copy_layers(other)
        self.num_tokens, self.num_prompt_tokens = other.num_tokens, other.num_prompt_tokens
        self.by_hand = other.by_hand
        self._retention = other._retention
        if num_tokens != other.num_tokens and not self._crop_fork(num_tokens):
            return False
        if not as_itself:
            self.forget_past()
        return True

    # ---- reading -------------------------------------------------------------------------------------------------

    def _layer(self, layer_index: int) -> CompressedLayer:
        layer = self.live.layers[layer_index]
        assert isinstance(layer, CompressedLayer)
        return layer

    @property
    def lost_bytes(self) -> int:
        stores = (store for _, layer in self.compressed_layers for store in (layer.key_store, layer.value_store))
        return self.lost.num_bytes + sum(store.spare_bytes for store in stores)

    @property
    def prompt_ended_at(self) -> int | None:
        return self.num_prompt_tokens

    @property
    def kept_ratio(self) -> float:
        layers = [layer for _, layer in self.compressed_layers]
        return sum(layer.held for layer in layers) / max(1, sum(layer.seen for layer in layers))

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def stored(self, num_tokens: int) -> StoredCache:
        ended_at = self.num_prompt_tokens
        is_over = ended_at is not None and num_tokens >= ended_at
        return replace(super().stored(num_tokens), prompt_ended_at=ended_at if is_over else None)

    def restore(self, stored: StoredCache) -> None:
        super().restore(stored)
        self.num_prompt_tokens = stored.prompt_ended_at
        ended_at = self.num_prompt_tokens
        own = None if ended_at is None else self.num_decoded(ended_at)
        self._retention = budgets_by_layer(self.spec.retention, self._evicting, own)
        if self.rule is not None and self.rule.remembers:
            self.lost.state_floor = self.num_decoded(self.num_tokens)

    # ---- conversion ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def convert_from(self, other: SequenceCache) -> bool:
        """Quantise the rows of an exact cache; `compress` then evicts rows over budget. Returns False for rules that
        would have had to observe attention from the first token on."""
        return not (self.rule is not None and self.rule.remembers) and super().convert_from(other)
