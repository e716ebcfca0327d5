"""Forwards that read the rows of a cache without changing it: compute the newest token again, or other tokens after the
first rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.contract import HeldRows
from engine.cache.layers.build import decoder_config
from engine.cache.layers.cross import CrossLayer, SourceCache
from engine.cache.layers.layer import ReadOnlyLayer, read_only_cache
from engine.cache.sequence_cache import SequenceCache
from engine.model.batch import Batch
from engine.model.loader import LoadedModel

CHUNK = 256


class Scratch:
    """A read-only view of the rows that a cache holds of the first `num_tokens` tokens, for forwards. `keeps`: rows of
    further tokens are appended to the view. Otherwise it is for computing the newest of these tokens again, which then
    attends to its own row as the cache holds it."""

    def __init__(self, model: LoadedModel, cache: SequenceCache, num_tokens: int, *, keeps: bool) -> None:
        self._model, self.num_tokens = model, num_tokens
        layers: list[Any] = []
        self._hidden: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(cache.live.layers):
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
        self.live: Any = self._read_only(model, cache, layers)
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
        return [layer for layer in self.live.layers if isinstance(layer, ReadOnlyLayer)]

    def compute(self, token_ids: Sequence[int], probe: Probe | None = None) -> torch.Tensor:
        """Compute tokens; returns the newest logits `[V]`. If layers hold different numbers of rows, the tokens are
        computed one at a time."""
        size, logits = CHUNK if self.can_be_computed_together else 1, None
        for start in range(0, len(token_ids), size):
            ids = torch.tensor([token_ids[start : start + size]], device=self._model.device)
            logits = self._model.forward(Batch(ids, self.live, probe, hidden=self._hidden)).logits[0, -1]
        assert logits is not None, "there are tokens to compute"
        return logits.clone()

    def rows_from(self, layer: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[H_kv, T, D]` of the tokens computed from a position on."""
        held = self.live.layers[layer]
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
