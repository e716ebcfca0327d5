"""The bytes of a cache by formula, for any geometry, context, batch and cache mode: of one sequence, layer by layer,
and of all; the longest context that fits in a memory; and the models that people ask about. All sums of K and V bytes
are made here. No torch.

Formulas, for H_kv cached heads of dimension D at b bytes a number: multi-head, grouped and multi-query attention keep
2·H_kv·D·b bytes per token and layer, latent attention (latent + rotary)·b, recurrent layers a constant. A formula is a
sum of `engine.spec.terms`, which is both added up and printed. How a codec writes rows is defined in
`engine.spec.codec`, which rows are kept in `engine.spec.retention`, how much is reserved in `engine.predict.capacity`.

*Stored* bytes hold tokens; *reserved* bytes are allocated for them. MAX's own arithmetic is separate, in `engine.max`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from msgspec import structs

from engine.errors import InputError
from engine.geometry.config import Config
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, LayerKind, dtype_bytes, known_sum
from engine.predict.capacity import (
    DEFAULT_STATIC_TOKENS,
    check_layout,
    context_length,
    grown_capacity,
    is_pageable,
    num_source,
    pool_pages,
    reserved_length,
    tight_capacity,
    window_of,
)
from engine.spec.cache import CacheSpec, fitted
from engine.spec.codec import EXACT_CODING, WORD_BITS, CodedBytes, Coding, Part, coded_bytes, terms_of
from engine.spec.retention import RetentionSpec, budgets_by_layer, layers_that_evict
from engine.spec.terms import Term, of_all_layers, of_one_layer

POSITION_BYTES = 8  # an int64 per row and head, kept once rows have been evicted
_MOST_MADE = 256  # terms of layers that are kept for the next layer with as many rows
TRANSFORMERS_FP8_BYTES = 1  # per number; the single scale of a tensor is not part of its storage


@dataclass(frozen=True)
class Fill:
    """How full the cache of one sequence is: the model has processed `tokens`, of which the first `prompt` are the
    prompt.

    `prompt` None means that the prompt has not ended, so codecs and rules that wait for its end have not acted yet. An
    encoder reads all of the prompt except its last token.
    """

    tokens: int
    prompt: int | None


@dataclass(frozen=True)
class LayerNeed:
    """Bytes of one layer of one sequence.

    `rows` is the number of rows held; `stored` the bytes of K, V and the indexer's keys; `reserved` what is allocated
    for them; `state` the constant state (None: only the loaded model can tell); `one_more` what one more token adds on
    average.
    """

    rows: int
    stored: CodedBytes
    reserved: int
    state: int | None
    one_more: int


def page_bytes(spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> int:
    """Bytes of one page: K and V of all paged layers."""
    width = dtype_bytes(dtype)
    return sum(spec.codec.bytes_of(la, spec.page_size, width).total for la in geometry.layers if is_pageable(la))


def why_no_sharing(spec: CacheSpec, geometry: CacheGeometry) -> str:
    """The reason why prompts cannot share pages on this model; empty if they can."""
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
    """The bytes of each layer for one sequence that is as full as `fill` says. Raises `InputError` if the model cannot
    have this cache."""
    formula = CacheFormula(spec, geometry, dtype)
    formula.check()
    return tuple(formula.layer(layer, fill) for layer in geometry.layers)


class CacheFormula:
    """The byte formulas of the cache mode `spec` on a model of that geometry and dtype."""

    def __init__(self, spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> None:
        self.spec, self.geometry = spec, geometry
        self.width, self._dtype = dtype_bytes(dtype), dtype
        self._is_exact = spec.codec.is_exact
        self._made: dict[Hashable, tuple[Term, ...]] = {}
        self._evicting = () if spec.retention.keeps_all else layers_that_evict(geometry)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """A number for each layer; layers with equal numbers take the same bytes if they hold the same tokens."""
        by_layer, found = self.spec.retention.differs_by_layer, dict[Hashable, int]()
        numbers = {index: index if by_layer else 0 for index in self._evicting}
        keys = (
            (structs.replace(la, index=0), self.spec.codec.at(la.index), numbers.get(la.index))
            for la in self.geometry.layers
        )
        return tuple([found.setdefault(key, len(found)) for key in keys])

    @cached_property
    def without_loss(self) -> CacheFormula | None:
        """The formulas of the mode that keeps every row exact, on the same layout; None if this is such a mode."""
        if self.spec.is_exact:
            return None
        return CacheFormula(self.spec.without_loss, self.geometry, self._dtype)

    def check(self) -> None:
        """Raise `InputError`, with the reason, if the model cannot have this cache; the engine refuses the same
        ones."""
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
        """The bytes of one layer after a decode step. After the last chunk of a prompt a sliding window may hold
        more."""
        fill = self._seen_by(layer, fill)
        rows = self._rows(layer, fill)
        stored, reserved = self._stored(layer, rows, fill), self._reserved(layer, rows, fill)
        return LayerNeed(rows, stored, reserved, self.state(layer), self.bytes_of_one_more(layer))

    def terms(self, layer: LayerGeometry, fill: Fill) -> tuple[Term, ...]:
        """The formula of the stored bytes of one layer: K, V, the indexer's keys and the state. A state whose size only
        the model can tell is not in it."""
        if self.spec.recomputes:
            return ()
        fill = self._seen_by(layer, fill)
        found = (*self._row_terms(layer, self._rows(layer, fill), fill), *self._state_terms(layer))
        return found if self.geometry.is_uniform else tuple(structs.replace(term, kind=layer.kind) for term in found)

    def terms_of_shared(self, layer: LayerGeometry, num_rows: int) -> tuple[Term, ...]:
        """What to add to the terms of several sequences that share `num_rows` rows of pages, each stored once."""
        found = self.spec.codec.terms(layer, num_rows, self.width)
        kind = "" if self.geometry.is_uniform else layer.kind
        return tuple(structs.replace(term, rows=-term.rows, kind=kind) for term in found)

    def state(self, layer: LayerGeometry) -> int | None:
        """Bytes of the constant state of one layer; None if only the loaded model can tell."""
        return 0 if self.spec.recomputes else layer.state_bytes(self._dtype)

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _seen_by(self, layer: LayerGeometry, fill: Fill) -> Fill:
        """The tokens that a layer sees: in an encoder-decoder, those of the encoder or those of the decoder; else all
        of them."""
        if not self.geometry.has_encoder:
            return fill
        source = num_source(self.geometry, fill.tokens if fill.prompt is None else fill.prompt)
        if layer.kind == "cross":
            return Fill(min(source, fill.tokens), source)
        return Fill(max(0, fill.tokens - source), None if fill.prompt is None else max(0, fill.prompt - source))

    def _rows(self, layer: LayerGeometry, fill: Fill) -> int:
        """How many of the tokens that the layer saw have K and V in its cache."""
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
        """The retention rule of the layer; None if it keeps all rows."""
        if not self._evicting:
            return None
        return budgets_by_layer(self.spec.retention, self._evicting, fill.prompt).get(layer.index)

    def _static_rows(self, layer: LayerGeometry) -> int:
        room = reserved_length(self.spec, context_length(self.geometry))
        return room if layer.window is None else min(layer.window, room)

    def _rows_of_pages(self, layer: LayerGeometry, fill: Fill) -> int:
        """Rows that remain when whole pages are evicted, by a rule or because they left the window."""
        size, tokens, window = self.spec.page_size, fill.tokens, window_of(layer)
        if window is not None:
            return tokens - max(0, tokens - window + 1) // size * size
        retention = self.spec.retention
        if retention.keeps_all or fill.prompt is None:
            return tokens
        seen = fill.prompt if retention.only_at_prompt_end else tokens
        evicted = -(-seen // size) - retention.num_kept_pages(seen, size)
        return tokens - evicted * size

    # ---- bytes ---------------------------------------------------------------------------------------------------

    def bytes_of_one_more(self, layer: LayerGeometry) -> int:
        """Bytes that one more token adds on average, coded if there is a codec, while no window is full."""
        if self.spec.recomputes or not layer.stores_kv or layer.kind == "cross":
            return 0
        if self.spec.quantizer is not None and self.spec.quantizer.backend == "fp8":
            return layer.elements_per_token * TRANSFORMERS_FP8_BYTES
        if self._is_exact or not is_pageable(layer):
            return layer.elements_per_token * self.width
        pairs = zip(self.spec.codec.at(layer.index), (layer.key_dim, layer.value_dim), strict=True)
        return layer.num_kv_heads * sum(c.row_bytes(d) if not c.is_exact else d * self.width for c, d in pairs)

    def _stored(self, layer: LayerGeometry, rows: int, fill: Fill) -> CodedBytes:
        return coded_bytes(self._row_terms(layer, rows, fill))

    def _row_terms(self, layer: LayerGeometry, rows: int, fill: Fill) -> tuple[Term, ...]:
        """The terms of `rows` rows: of K, of V and of the indexer's keys."""
        if not rows:
            return ()
        key = self._codings(layer, fill), rows, structs.replace(layer, index=0)
        if key not in self._made:  # most layers have the same key
            if len(self._made) > _MOST_MADE:
                self._made.clear()
            self._made[key] = self._made_terms(layer, rows, fill)
        return self._made[key]

    def _made_terms(self, layer: LayerGeometry, rows: int, fill: Fill) -> tuple[Term, ...]:
        is_fp8 = self.spec.quantizer is not None and self.spec.quantizer.backend == "fp8" and layer.kind != "cross"
        width = TRANSFORMERS_FP8_BYTES if is_fp8 else self.width
        is_coded = is_pageable(layer) and not self._is_exact
        codings = self._codings(layer, fill) if is_coded else (EXACT_CODING, EXACT_CODING)
        found = terms_of(layer, codings, rows, width)
        if is_fp8:
            found = tuple(structs.replace(term, name="codes") for term in found)
        if layer.index_dim is None:
            return found
        return (*found, Term("codes" if is_fp8 else "indexer's keys", "", dims=layer.index_dim, rows=rows, width=width))

    def _state_terms(self, layer: LayerGeometry) -> Iterator[Term]:
        recurrent = layer.recurrent_elements or 0
        for count, width in ((layer.state_elements or 0) - recurrent, self.width), (recurrent, dtype_bytes("float32")):
            if count:
                yield Term("state", "", dims=count, width=width)

    def _codings(self, layer: LayerGeometry, fill: Fill) -> tuple[Coding, Coding]:
        """The codings of K and V now: codecs that need the whole prompt keep it exact until it ends."""
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
            is_full = (
                layer.window is not None and fill.tokens >= layer.window
            )  # the row that left the window is still in the storage
            return per_row * (rows + 1 if is_full else rows)
        if spec.is_paged:
            size = spec.page_size
            return spec.codec.bytes_of(layer, -(-rows // size) * size, self.width).total
        if spec.is_compressed:
            return self._compressed_room(layer, rows, fill)
        if spec.quantizer is not None:
            return self._stored(layer, rows, fill).total
        return per_row * grown_capacity(rows)

    def _compressed_room(self, layer: LayerGeometry, rows: int, fill: Fill) -> int:
        """Bytes of the buffers of codes and scales. Once rows were evicted, buffers have the size made for the kept
        rows, and positions are stored."""
        kept = self._rows_at_last_eviction(layer, rows, fill)
        capacity = grown_capacity(rows)
        if kept is not None and rows <= tight_capacity(kept):
            capacity = tight_capacity(kept)
        keys, values = self._codings(layer, fill)
        heads = layer.num_kv_heads
        room = self._room_of(keys, "keys", rows, capacity, heads, layer.key_dim)
        room += self._room_of(values, "values", rows, capacity, heads, layer.value_dim)
        return room + (heads * rows * POSITION_BYTES if kept is not None else 0)

    def _room_of(self, coding: Coding, part: Part, rows: int, capacity: int, heads: int, dim: int) -> int:
        """Bytes of the buffers of one tensor. KIVI's codes, scales and exact residual each have a buffer that doubles
        when full."""
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

    def _rows_at_last_eviction(self, layer: LayerGeometry, rows: int, fill: Fill) -> int | None:
        """How many rows were left after the last eviction; None if none was ever evicted."""
        retention, prompt = self.retention_of(layer, fill), fill.prompt
        if retention is None or prompt is None or rows == fill.tokens:
            return None
        if retention.only_at_prompt_end:
            return retention.num_kept(prompt)
        # With a ratio a row is evicted every few steps. Evictions longer ago than one buffer length do not matter.
        for seen in range(fill.tokens, max(prompt, fill.tokens - tight_capacity(0)), -1):
            if retention.num_kept(seen) <= retention.num_kept(seen - 1):
                return retention.num_kept(seen)
        return retention.num_kept(max(prompt, fill.tokens - tight_capacity(0)))


# ---- all sequences of a batch, by kind of layer ----------------------------------------------------------------------

_TOKENS_LIMIT = 10**12


@dataclass(frozen=True)
class BudgetSpec:
    """What a prediction is made for: ``batch`` sequences of ``context`` tokens each, in the mode ``cache`` and the
    numbers of ``dtype``.

    The first ``prompt`` tokens of each are its prompt; None means all but the newest, which a decode step has added.
    """

    cache: CacheSpec = field(default_factory=lambda: CacheSpec("dynamic"))
    context: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    prompt: int | None = None

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        for name in ("context", "batch", "prompt"):
            value = getattr(self, name)
            if value is None and name == "prompt":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of 1 or more, not {value!r}.")
            if value > _TOKENS_LIMIT:
                raise InputError(f"{name} of {value} is beyond every memory; use at most {_TOKENS_LIMIT:,}.")
        if self.prompt is not None and self.prompt > self.context:
            raise InputError(f"A prompt of {self.prompt} tokens is longer than the context of {self.context}.")
        reserved = self.cache.max_length
        if reserved is not None and reserved < self.context:
            raise InputError(
                f"A static cache of {reserved} tokens cannot hold a context of {self.context}; raise max_length."
            )

    @property
    def fill(self) -> Fill:
        """How full the cache of one sequence of the batch is."""
        return Fill(self.context, self.prompt or max(1, self.context - 1))


@dataclass(frozen=True)
class KindBudget:
    """Bytes of all layers of one kind, for one sequence. ``state_bytes`` is None if only the loaded model tells the
    size of its state."""

    kind: LayerKind
    num_layers: int
    bytes_per_token: int
    stored_bytes: int
    reserved_bytes: int
    state_bytes: int | None


@dataclass(frozen=True)
class Budget:
    """Predicted bytes. ``terms`` are the formula of the stored bytes of one sequence and of its state, where its size
    is known. ``pool_bytes`` is the whole pool of a paged cache, which all sequences share and which this
    engine allocates at once; ``host_bytes`` is the copy in host memory of all sequences. Both are 0 if the mode has no
    such storage."""

    spec: BudgetSpec
    kinds: tuple[KindBudget, ...]
    terms: tuple[Term, ...]
    pool_bytes: int = 0
    host_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds while no window is full, without rounding up to pages."""
        return sum(kind.bytes_per_token for kind in self.kinds)

    @property
    def stored_bytes_per_sequence(self) -> int:
        """Bytes that hold the tokens of one sequence."""
        return sum(kind.stored_bytes for kind in self.kinds)

    @property
    def reserved_bytes_per_sequence(self) -> int:
        """Bytes allocated for the tokens of one sequence."""
        return sum(kind.reserved_bytes for kind in self.kinds)

    @property
    def state_bytes_per_sequence(self) -> int | None:
        """Bytes of recurrent and convolution state of one sequence; None if the size is unknown for some layer."""
        return known_sum(kind.state_bytes for kind in self.kinds)

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes allocated for one sequence, including the state where its size is known."""
        return self.reserved_bytes_per_sequence + (self.state_bytes_per_sequence or 0)

    @property
    def total_bytes(self) -> int:
        """Bytes allocated for the whole batch."""
        return self.bytes_per_sequence * self.spec.batch


def budget_of(geometry: CacheGeometry, spec: BudgetSpec) -> Budget:
    """Predict the bytes of a cache on a model of this geometry. Raises `InputError` if the model cannot have the
    cache."""
    formula = CacheFormula(reserving(geometry, spec), geometry, spec.dtype)
    formula.check()
    needs = [formula.layer(layer, spec.fill) for layer in geometry.layers]
    terms = of_all_layers(of_one_layer(formula.terms(layer, spec.fill)) for layer in geometry.layers)
    kinds = tuple(
        _kind_budget(kind, [needs[layer.index] for layer in layers])
        for kind, layers in geometry.layers_by_kind().items()
    )
    pool = 0
    if spec.cache.is_paged:
        pool = pool_pages(spec.cache, context_length(geometry)) * page_bytes(spec.cache, geometry, spec.dtype)
    return Budget(spec, kinds, terms, pool, _host_bytes(geometry, spec))


def reserving(geometry: CacheGeometry, spec: BudgetSpec) -> CacheSpec:
    """The cache spec used for the prediction: a static cache reserves its default length, as in the engine, or the
    context if that is longer."""
    is_long = spec.context > min(context_length(geometry), DEFAULT_STATIC_TOKENS)
    return fitted(spec.cache, spec.context) if is_long else spec.cache


def tokens_that_fit(geometry: CacheGeometry, spec: BudgetSpec, available_bytes: int) -> int | None:
    """The longest context, the same in every sequence of the batch, that fits in ``available_bytes``; None if every
    context fits.

    0 means that not even one token fits. Context, prompt and static reservation of ``spec`` are ignored, everything
    else in it applies. The search assumes that a longer context takes more bytes. With codecs that keep their latest
    tokens exact, and with pages that leave a window, a slightly longer context may fit as well: coding a whole residual
    at once frees memory.
    """
    if available_bytes < 0:
        raise InputError(f"Available memory must be 0 bytes or more, not {available_bytes}.")
    whole = CacheFormula(reserving(geometry, spec), geometry, spec.dtype)
    whole.check()
    counts = Counter(whole.kinds)  # layers of one kind take the same bytes, so that each is computed once
    distinct = [(counts[kind], la) for kind, la in dict(zip(whole.kinds, geometry.layers, strict=True)).items()]
    free = replace(spec, context=1, prompt=None, cache=structs.replace(spec.cache, max_length=None))

    def fits(num_tokens: int) -> bool:
        formula = CacheFormula(fitted(free.cache, num_tokens), geometry, spec.dtype)
        fill = replace(free, context=num_tokens).fill
        needs = ((count, formula.layer(layer, fill)) for count, layer in distinct)
        per_sequence = sum(count * (need.reserved + (need.state or 0)) for count, need in needs)
        return spec.batch * per_sequence <= available_bytes

    if fits(_TOKENS_LIMIT):
        return None
    low, high = 0, _TOKENS_LIMIT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _kind_budget(kind: LayerKind, needs: Sequence[LayerNeed]) -> KindBudget:
    return KindBudget(
        kind=kind,
        num_layers=len(needs),
        bytes_per_token=sum(need.one_more for need in needs),
        stored_bytes=sum(need.stored.total for need in needs),
        reserved_bytes=sum(need.reserved for need in needs),
        state_bytes=known_sum(need.state for need in needs),
    )


def _host_bytes(geometry: CacheGeometry, spec: BudgetSpec) -> int:
    """Bytes of the copies in host memory: each full page is copied there once, if the model can share prefixes at
    all."""
    if spec.cache.layout != "host" or why_no_sharing(spec.cache, geometry):
        return 0
    num_pages = spec.context // spec.cache.page_size
    return spec.batch * num_pages * page_bytes(spec.cache, geometry, spec.dtype)


# ---- models that people ask about ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TutorialRow:
    """One line of the table: bytes of one sequence of `context` tokens of a model, in 16-bit numbers."""

    model: str
    context: int
    bytes: int

    @property
    def megabytes(self) -> float:
        """Decimal megabytes, bytes / 1e6, as the tutorial prints them."""
        return self.bytes / 1e6


def tutorial_geometries() -> dict[str, CacheGeometry]:
    """The geometries of the three models in the table."""
    return {
        "GPT-2 Small": CacheGeometry.uniform(12, 12, 64),
        "GPT-2 Large": CacheGeometry.uniform(36, 20, 64),
        "LLaMA-7B": CacheGeometry.uniform(32, 32, 128),
    }


def tutorial_table() -> tuple[TutorialRow, ...]:
    """The memory table of the KV cache tutorial: three models at 512, 2,048 and 8,192 tokens.

    That tutorial's text puts a 7B model at 1,024 tokens at 1-2 GB; by its own formula it is 537 MB in 16-bit numbers
    and 1.07 GB in 32-bit ones.
    """
    return tuple(
        TutorialRow(name, context, budget_of(geometry, BudgetSpec(context=context, dtype="float16")).total_bytes)
        for name, geometry in tutorial_geometries().items()
        for context in (512, 2048, 8192)
    )


@dataclass(frozen=True)
class PublishedModel:
    """A model as it is published: `dtype` is that of its weights, and `num_parameters` are counted in transformers'
    model of the config."""

    name: str
    config: Config
    num_parameters: int
    dtype: str = "bfloat16"

    @property
    def geometry(self) -> CacheGeometry:
        return CacheGeometry.from_config(self.config)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the dtype they are published in."""
        return self.num_parameters * dtype_bytes(self.dtype)


def _decoder(family: str, layers: int, heads: int, kv_heads: int, context: int, **others: int) -> Mapping[str, Any]:
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {"model_type": family, **sizes, "max_position_embeddings": context, "sliding_window": None, **others}


# The numbers are those of each repository's config.json on the Hugging Face Hub: meta-llama/Llama-3.1-8B,
# Qwen/Qwen3-8B, mistralai/Mistral-7B-v0.3 (the first Mistral 7B had a window, this one has none) and
# deepseek-ai/DeepSeek-V3, whose weights are published in 8 bits, here without the layer that predicts one token more.
PUBLISHED: Final = (
    PublishedModel(
        "Llama 3.1 8B", _decoder("llama", 32, 32, 8, 131_072, hidden_size=4096, head_dim=128), 8_030_261_248
    ),
    PublishedModel("Qwen 3 8B", _decoder("qwen3", 36, 32, 8, 40_960, hidden_size=4096, head_dim=128), 8_190_735_360),
    PublishedModel(
        "Mistral 7B v0.3", _decoder("mistral", 32, 32, 8, 32_768, hidden_size=4096, head_dim=128), 7_248_023_552
    ),
    PublishedModel(
        "DeepSeek V3",
        _decoder("deepseek_v3", 61, 128, 128, 163_840, hidden_size=7168, kv_lora_rank=512, qk_rope_head_dim=64),
        671_026_404_352,
        "float8_e4m3fn",
    ),
)
