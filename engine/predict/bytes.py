"""What one sequence takes in a cache, layer by layer, by formula: the only sum of bytes of K and V there is. No torch.

Formulas, for H_kv cached heads of dimension D at b bytes a number: multi-head, grouped and multi-query attention keep
2·H_kv·D·b bytes a token and layer, latent attention (latent + rotary)·b, recurrent layers a constant. What a codec
writes is in `engine.spec.codec`, which rows stay in `engine.spec.retention`, what is reserved in
`engine.predict.capacity`.

*Stored* is what holds tokens; *reserved* is what is allocated for them. MAX's own arithmetic stays apart, in `kv_*`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from msgspec import structs

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, dtype_bytes
from engine.predict.capacity import (
    check_layout,
    context_length,
    grown_capacity,
    is_pageable,
    num_source,
    reserved_length,
    tight_capacity,
    window_of,
)
from engine.spec.cache import CacheSpec
from engine.spec.codec import EXACT_CODING, WORD_BITS, CodedBytes, Coding, Part
from engine.spec.retention import RetentionSpec, budgets_by_layer, layers_that_drop

POSITION_BYTES = 8  # an int64 for each row and head, once rows were dropped from between
CODED_BY_TRANSFORMERS = 1  # bytes of a number in its fp8 quantiser, whose one scale a tensor is no part of its storage


@dataclass(frozen=True)
class Fill:
    """How far one sequence is: `tokens` have been through the model, the first `prompt` of them as its prompt.

    `prompt` None: the prompt has not ended, so nothing was coded or dropped that waits for its end. An encoder reads
    all of the prompt but its last token.
    """

    tokens: int
    prompt: int | None


@dataclass(frozen=True)
class LayerNeed:
    """One layer of one sequence: K and V as they are stored, what is reserved for them, the indexer's keys included,
    and the constant state (None: only the model can tell); `one_more` is what another token adds in the long run."""

    rows: int
    stored: CodedBytes
    reserved: int
    state: int | None
    one_more: int


def page_bytes(spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> int:
    """K and V of all paged layers for one page."""
    width = dtype_bytes(dtype)
    return sum(spec.codec.bytes_of(la, spec.page_size, width).total for la in geometry.layers if is_pageable(la))


def why_no_sharing(spec: CacheSpec, geometry: CacheGeometry) -> str:
    """The reason why pages cannot be shared between prompts on this model; empty where they can."""
    if any(window_of(layer) is not None for layer in geometry.layers if is_pageable(layer)):
        return "sliding-window layers release the pages that a prefix would need"
    if geometry.has_encoder:
        return "rows of a decoder depend on what the encoder read, which its own tokens do not tell"
    if any(layer.kind == "linear" or layer.state_elements for layer in geometry.layers):
        return "recurrent layers keep a state that pages do not hold"
    if spec.retention.watches_all:
        return "this rule must see the attention of the whole prompt"
    return ""


def predict(spec: CacheSpec, geometry: CacheGeometry, fill: Fill, dtype: str) -> tuple[LayerNeed, ...]:
    """What each layer takes for one sequence that is so far; InputError where the model cannot have this cache."""
    formula = CacheFormula(spec, geometry, dtype)
    formula.check()
    return tuple(formula.layer(layer, fill) for layer in geometry.layers)


class CacheFormula:
    """`spec` on a model of that geometry, with numbers of that dtype. Refuses what cannot be, with the reason."""

    def __init__(self, spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> None:
        self.spec, self.geometry = spec, geometry
        self.width, self._dtype = dtype_bytes(dtype), dtype
        self._is_exact = spec.codec.is_exact
        self._coded: dict[tuple[Coding, Coding, int, int, int, int], CodedBytes] = {}
        self._dropping = () if spec.retention.keeps_all else layers_that_drop(geometry)

    @cached_property
    def kinds(self) -> tuple[Hashable, ...]:
        """Of each layer what its bytes depend on beside what it holds: equal for layers that take the same."""
        of_index = {index: index for index in self._dropping}
        return tuple(
            (structs.replace(la, index=0), self.spec.codec.at(la.index), of_index.get(la.index))
            for la in self.geometry.layers
        )

    def check(self) -> None:
        """Refuse a model that cannot have this cache, as the engine does."""
        spec, geometry = self.spec, self.geometry
        check_layout(spec, geometry)
        spec.codec.check(geometry)
        spec.retention.check(geometry, captures_attention=True)
        if spec.is_paged and not any(map(is_pageable, geometry.layers)):
            raise InputError("This architecture keeps no K and V, so there is nothing to page: use the dynamic cache.")
        if spec.layout == "quantized" and any(la.kind not in ("full", "latent", "cross") for la in geometry.layers):
            raise InputError(
                "transformers' quantised cache takes models with full attention in every layer, which this one is not: "
                "use the fp8, int8 or KIVI codec."
            )

    def layer(self, layer: LayerGeometry, fill: Fill) -> LayerNeed:
        """Bytes of one layer after a decode step: a prompt's last chunk may leave a window more room behind."""
        fill = self._of(layer, fill)
        rows = self._rows(layer, fill)
        stored, reserved = self._stored(layer, rows, fill), self._reserved(layer, rows, fill)
        return LayerNeed(rows, stored, reserved, self.state(layer), self.bytes_of_one_more(layer))

    def stored_bytes(self, layer: LayerGeometry, fill: Fill) -> int:
        """K, V, the indexer's keys and the state of one layer; what only the model can tell counts nothing."""
        if self.spec.recomputes:
            return 0
        fill = self._of(layer, fill)
        state = (layer.state_bytes(self._dtype) or 0) if layer.state_elements else 0
        rows = self._rows(layer, fill)
        if self._is_exact and self.spec.quantizer is None:
            return rows * layer.elements_per_token * self.width + state
        return self._stored(layer, rows, fill).total + state

    def bytes_of_rows(self, layer: LayerGeometry, num_rows: int) -> int:
        """K and V of so many rows of a layer as its codec writes them."""
        return self.spec.codec.bytes_of(layer, num_rows, self.width).total

    def state(self, layer: LayerGeometry) -> int | None:
        """Bytes of the constant state of one layer; None: only the model can tell."""
        return 0 if self.spec.recomputes else layer.state_bytes(self._dtype)

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _of(self, layer: LayerGeometry, fill: Fill) -> Fill:
        """The tokens that a layer sees: all, or behind an encoder those that it read or those of the decoder."""
        if not self.geometry.has_encoder:
            return fill
        source = num_source(self.geometry, fill.tokens if fill.prompt is None else fill.prompt)
        if layer.kind == "cross":
            return Fill(min(source, fill.tokens), source)
        return Fill(max(0, fill.tokens - source), None if fill.prompt is None else max(0, fill.prompt - source))

    def _rows(self, layer: LayerGeometry, fill: Fill) -> int:
        """Of the tokens that it saw those whose K and V the layer holds."""
        spec, tokens = self.spec, fill.tokens
        if spec.recomputes or not layer.stores_kv or not tokens:
            return 0
        if layer.kind == "cross":
            return tokens
        if spec.form == "static":
            return min(tokens, self._static_rows(layer))
        if not is_pageable(layer) or spec.form == "dynamic":
            # transformers keeps window - 1 tokens: the next one completes the window
            return tokens if layer.window is None else min(tokens, layer.window - 1)
        if spec.is_paged:
            return self._rows_of_pages(layer, fill)
        retention = self.retention_of(layer, fill)
        if retention is None or fill.prompt is None:
            return tokens  # growing layers keep the whole history, so that every past step stays a prefix
        if retention.only_at_prompt_end:
            return retention.num_kept(fill.prompt) + tokens - fill.prompt
        return retention.num_kept(tokens)

    def retention_of(self, layer: LayerGeometry, fill: Fill) -> RetentionSpec | None:
        """What the layer keeps, None where it keeps all rows."""
        if not self._dropping:
            return None
        return budgets_by_layer(self.spec.retention, self._dropping, fill.prompt).get(layer.index)

    def _static_rows(self, layer: LayerGeometry) -> int:
        room = reserved_length(self.spec, context_length(self.geometry))
        return room if layer.window is None else min(layer.window, room)

    def _rows_of_pages(self, layer: LayerGeometry, fill: Fill) -> int:
        """What a rule keeps, or a window, both in whole pages."""
        size, tokens, window = self.spec.page_size, fill.tokens, window_of(layer)
        if window is not None:
            return tokens - max(0, tokens - window + 1) // size * size
        retention = self.spec.retention
        if retention.keeps_all or fill.prompt is None:
            return tokens
        seen = fill.prompt if retention.only_at_prompt_end else tokens
        dropped = -(-seen // size) - retention.num_kept_pages(seen, size)
        return tokens - dropped * size

    # ---- bytes ---------------------------------------------------------------------------------------------------

    def bytes_of_one_more(self, layer: LayerGeometry) -> int:
        """What one more token takes in the long run, while no window is full: coded where there is a codec."""
        if self.spec.recomputes or not layer.stores_kv or layer.kind == "cross":
            return 0
        if self.spec.quantizer is not None and self.spec.quantizer.backend == "fp8":
            return layer.elements_per_token * CODED_BY_TRANSFORMERS
        if self._is_exact or not is_pageable(layer):
            return layer.elements_per_token * self.width
        pairs = zip(self.spec.codec.at(layer.index), (layer.key_dim, layer.value_dim), strict=True)
        return layer.num_kv_heads * sum(c.row_bytes(d) if not c.is_exact else d * self.width for c, d in pairs)

    def _stored(self, layer: LayerGeometry, rows: int, fill: Fill) -> CodedBytes:
        if self.spec.quantizer is not None and self.spec.quantizer.backend == "fp8" and layer.kind != "cross":
            return CodedBytes(codes=layer.elements_per_token * rows * CODED_BY_TRANSFORMERS)
        if self._is_exact or not is_pageable(layer):
            return CodedBytes(exact=layer.elements_per_token * rows * self.width)
        keys, values = self._codings(layer, fill)
        key = keys, values, rows, layer.num_kv_heads, layer.key_dim, layer.value_dim
        if key not in self._coded:  # most layers are alike
            heads = layer.num_kv_heads
            self._coded[key] = keys.bytes_of(rows, heads, layer.key_dim, self.width, "keys") + values.bytes_of(
                rows, heads, layer.value_dim, self.width, "values"
            )
        return self._coded[key]

    def _codings(self, layer: LayerGeometry, fill: Fill) -> tuple[Coding, Coding]:
        """How K and V are written now: a prompt waits exactly where its codec must see all of it."""
        keys, values = self.spec.codec.at(layer.index)
        if fill.prompt is None:
            return tuple(EXACT_CODING if c.waits_for_prompt else c for c in (keys, values))  # type: ignore[return-value]
        return keys, values

    def _reserved(self, layer: LayerGeometry, rows: int, fill: Fill) -> int:
        spec, per_row = self.spec, layer.elements_per_token * self.width
        if spec.layout == "allocated":
            return per_row * self._static_rows(layer)
        if not rows or layer.kind == "cross":
            return per_row * rows
        if spec.form == "static":
            return per_row * self._static_rows(layer)
        if spec.form == "dynamic" or not is_pageable(layer):
            is_full = layer.window is not None and fill.tokens >= layer.window
            return per_row * (rows + 1 if is_full else rows)  # the row that left is still in the same storage
        if spec.is_paged:
            size = spec.page_size
            return spec.codec.bytes_of(layer, -(-rows // size) * size, self.width).total
        if spec.is_compressed:
            return self._compressed_room(layer, rows, fill)
        if spec.quantizer is not None:
            return self._stored(layer, rows, fill).total
        return per_row * grown_capacity(rows)

    def _compressed_room(self, layer: LayerGeometry, rows: int, fill: Fill) -> int:
        """Buffers of codes and scales; where rows were dropped, what was made for those kept, and their positions."""
        kept = self._rows_at_last_drop(layer, rows, fill)
        capacity = grown_capacity(rows)
        if kept is not None and rows <= tight_capacity(kept):
            capacity = tight_capacity(kept)
        keys, values = self._codings(layer, fill)
        heads = layer.num_kv_heads
        room = self._room_of(keys, "keys", rows, capacity, heads, layer.key_dim)
        room += self._room_of(values, "values", rows, capacity, heads, layer.value_dim)
        return room + (heads * rows * POSITION_BYTES if kept is not None else 0)

    def _room_of(self, coding: Coding, part: Part, rows: int, capacity: int, heads: int, dim: int) -> int:
        """Bytes of the buffers of one tensor. KIVI's parts fill at different paces, each in a buffer that doubles."""
        if coding.is_exact:
            return heads * capacity * dim * self.width
        if not coding.is_kivi:
            return heads * capacity * coding.row_bytes(dim) + coding.shared_bytes(heads)
        coded = coding.num_coded(rows, part)
        room = heads * grown_capacity(rows - coded) * dim * self.width if rows > coded else 0
        if not coded:
            return room
        if part == "values":
            return room + heads * grown_capacity(coded) * coding.row_bytes(dim)
        words, groups = coded // coding.codes_per_word, coded // coding.group_size
        scales = grown_capacity(groups) * coding.row.scale_bytes
        return room + heads * dim * (grown_capacity(words) * WORD_BITS // 8 + scales)

    def _rows_at_last_drop(self, layer: LayerGeometry, rows: int, fill: Fill) -> int | None:
        """How many rows were left when some were last dropped; None where none ever was."""
        retention, prompt = self.retention_of(layer, fill), fill.prompt
        if retention is None or prompt is None or rows == fill.tokens:
            return None
        if retention.only_at_prompt_end:
            return retention.num_kept(prompt)
        # a ratio drops a row every few steps; further back than a whole buffer nothing depends on it
        for seen in range(fill.tokens, max(prompt, fill.tokens - tight_capacity(0)), -1):
            if retention.num_kept(seen) <= retention.num_kept(seen - 1):
                return retention.num_kept(seen)
        return retention.num_kept(max(prompt, fill.tokens - tight_capacity(0)))
