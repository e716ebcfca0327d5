"""Predicted bytes of a KV cache for any geometry, context, batch and cache mode, and the longest context that fits in a
memory; and the models that people ask about.

The bytes of one layer come from `engine.predict.bytes`; here they are summed by kind of layer and over sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from engine.errors import InputError
from engine.geometry.config import Config
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, LayerKind, dtype_bytes
from engine.predict.bytes import CacheFormula, Fill, LayerNeed, page_bytes, why_no_sharing
from engine.predict.capacity import DEFAULT_STATIC_TOKENS, context_length, pool_pages
from engine.spec.cache import CacheSpec, fitted
from engine.spec.terms import Term, of_all_layers, of_one_layer

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
        known = [kind.state_bytes for kind in self.kinds if kind.state_bytes is not None]
        return sum(known) if len(known) == len(self.kinds) else None

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
    CacheFormula(reserving(geometry, spec), geometry, spec.dtype).check()
    free = replace(spec, context=1, prompt=None, cache=structs.replace(spec.cache, max_length=None))
    distinct = _distinct_layers(geometry, spec.cache)

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


# --- bytes ------------------------------------------------------------------------------------------------------------


def _kind_budget(kind: LayerKind, needs: Sequence[LayerNeed]) -> KindBudget:
    states = [need.state for need in needs if need.state is not None]
    return KindBudget(
        kind=kind,
        num_layers=len(needs),
        bytes_per_token=sum(need.one_more for need in needs),
        stored_bytes=sum(need.stored.total for need in needs),
        reserved_bytes=sum(need.reserved for need in needs),
        state_bytes=sum(states) if len(states) == len(needs) else None,
    )


def _distinct_layers(geometry: CacheGeometry, cache: CacheSpec) -> list[tuple[int, LayerGeometry]]:
    """The distinct layers by size, each with how many layers take the same bytes, so that each is computed once."""
    retention = cache.retention
    if retention.layer_budgets or retention.schedule != "uniform":
        return [(1, layer) for layer in geometry.layers]
    sorts: dict[object, tuple[int, LayerGeometry]] = {}
    for layer in geometry.layers:
        key = structs.replace(layer, index=0), cache.codec.at(layer.index)
        count, _ = sorts.get(key, (0, layer))
        sorts[key] = count + 1, layer
    return list(sorts.values())


def _host_bytes(geometry: CacheGeometry, spec: BudgetSpec) -> int:
    """Bytes of the copies in host memory: each full page is copied there once, if the model can share prefixes at
    all."""
    if spec.cache.layout != "host" or why_no_sharing(spec.cache, geometry):
        return 0
    num_pages = spec.context // spec.cache.page_size
    return spec.batch * num_pages * page_bytes(spec.cache, geometry, spec.dtype)


# --- the tutorial's table ---------------------------------------------------------------------------------------------


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
