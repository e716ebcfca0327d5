"""The cache dimensions of any Hugging Face decoder, layer by layer, from its config alone.

Nothing is loaded or allocated: a parsed config.json is enough. The dimensions are those of the caches of transformers
5.23: the tests build each family with random weights, run two tokens and compare every layer with the real tensors.
Letters: H query heads, H_kv cached heads, D head dimension, S tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from msgspec import Struct, structs

from engine.errors import InputError
from engine.geometry.config import (
    Config,
    HasToDict,
    as_mapping,
    canonical,
    decoder_part,
    has_sizes,
    head_dim,
    layer_types,
    num_kv_heads_of,
    number,
    optional_size,
    size,
    sliding_window,
    state_elements,
)
from engine.geometry.families import (
    ENCODER_DECODER,
    NO_CACHE_OBJECT,
    OTHER_ENCODER_DECODERS,
    RELATIVE_POSITIONS,
)

LayerKind = Literal["full", "sliding", "chunked", "latent", "cross", "linear", "shared", "none"]
KV_KINDS: Final[tuple[LayerKind, ...]] = ("full", "sliding", "chunked", "latent", "cross")  # those that store K and V

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "int8": 1,
    "uint8": 1,
}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one stored number of that dtype; raises InputError for an unknown name."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        known = ", ".join(DTYPE_BYTES)
        raise InputError(f"The dtype {dtype!r} is not known; use one of {known}.") from None


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if one of the numbers is not known."""
    found = [*numbers]
    return None if None in found else sum(number or 0 for number in found)


class LayerGeometry(Struct, frozen=True):
    """What one layer keeps: keys ``[B, num_kv_heads, S, key_dim]`` and values ``[B, num_kv_heads, S, value_dim]``.

    ``window`` counts tokens (of a chunk, for chunked layers). A layer of kind *shared* stores nothing and reads the K
    and V of ``shares_with``, whose dimensions it repeats. A *latent* layer (multi-head latent attention) keeps the
    compressed latent in place of keys and the shared rotary key in place of values, under one head. A *cross* layer
    keeps one row for each token that the encoder read, written once; it is listed separately from the self-attention
    layer of the same decoder block. ``state_elements`` is the number of values of the layer's recurrent and convolution
    state per sequence, constant in S; an attention layer that also runs a recurrent one has both. None: no such state,
    or, in a linear layer, a size that only the model can tell. ``recurrent_elements`` of them are float32 whatever the
    dtype of the model. ``index_dim`` is the width of the third tensor that sparse attention's indexer keeps.
    """

    index: int
    kind: LayerKind
    num_kv_heads: int
    key_dim: int
    value_dim: int
    num_heads: int
    window: int | None = None
    shares_with: int | None = None
    state_elements: int | None = None
    recurrent_elements: int | None = None
    index_dim: int | None = None

    def __post_init__(self) -> None:
        if (self.kind in ("sliding", "chunked")) and self.window is None:
            raise InputError(f"Layer {self.index} is {self.kind} but the config names no window; give the window size.")
        if (self.kind == "shared") != (self.shares_with is not None):
            raise InputError(f"Layer {self.index} must name the layer that it shares with, and only if it shares one.")

    @property
    def stores_kv(self) -> bool:
        """Whether this layer keeps K and V of its own."""
        return self.kind in KV_KINDS

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one row: K, V and the indexer's key; 0 if the layer stores none."""
        if not self.stores_kv:
            return 0
        return self.num_kv_heads * (self.key_dim + self.value_dim) + (self.index_dim or 0)

    def state_bytes(self, dtype: str) -> int | None:
        """Bytes of its constant state for one sequence; 0 if it keeps none, None if the size is unknown."""
        if self.state_elements is None:
            return None if self.kind == "linear" else 0
        recurrent = self.recurrent_elements or 0
        return (self.state_elements - recurrent) * dtype_bytes(dtype) + recurrent * dtype_bytes("float32")


class CacheGeometry(Struct, frozen=True, dict=True):
    """The cache dimensions of one decoder; ``layers[i].index == i``. In an encoder-decoder the cross layers come after
    all others, in the same order: ``layers[num_blocks + i]`` is the cross layer of block i.

    ``max_length`` is the context length of the model, None if it has no such limit (ALiBi, recurrent models);
    ``max_source_length`` is that of the encoder if it differs from the decoder's. Sizes that a config does not state
    are None.
    """

    architecture: str
    model_type: str
    layers: tuple[LayerGeometry, ...]
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_length: int | None = None
    max_source_length: int | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("A cache geometry needs at least one layer; give num_hidden_layers of 1 or more.")
        if any(layer.index != i for i, layer in enumerate(self.layers)):
            raise InputError("Layers of a cache geometry must be numbered 0, 1, 2, … in order; renumber them.")

    def layer_label(self, index: int) -> str:
        """A layer's name in pictures: `L3`, or `X1` for the cross layer of block 1; these are numbered separately."""
        block = self.cross_block(index)
        return f"L{index}" if block is None else f"X{block}"

    def cross_block(self, index: int) -> int | None:
        """The block of a cross layer; None for any other layer."""
        is_cross = 0 <= index < len(self.layers) and self.layers[index].kind == "cross"
        return index - self.num_blocks if is_cross else None

    @classmethod
    def from_config(cls, config: Config | HasToDict) -> CacheGeometry:
        """Read a parsed config.json, or anything with ``to_dict``; raises InputError if it describes no decoder
        cache."""
        whole = as_mapping(config)
        text = canonical(decoder_part(whole))
        family = text["model_type"]
        if reason := NO_CACHE_OBJECT.get(family):
            raise InputError(
                f"A {family} model has no KV cache that can be described: {reason}; choose another architecture."
            )
        if reason := OTHER_ENCODER_DECODERS.get(whole.get("model_type") or family):
            raise InputError(
                f"A {whole.get('model_type') or family} model is not run here ({reason}): use another encoder-decoder, "
                "such as T5 or BART."
            )
        if (text.get("is_encoder_decoder") or whole.get("is_encoder_decoder")) and family not in ENCODER_DECODER:
            raise InputError(
                f"{family} is an encoder-decoder whose layers are not known here; those of "
                f"{', '.join(sorted(ENCODER_DECODER))} are."
            )
        names = text.get("architectures") or whole.get("architectures") or [family]
        return cls(
            architecture=str(names[0]),
            model_type=family,
            layers=_layers(text, family),
            hidden_size=optional_size(text, "hidden_size"),
            vocab_size=optional_size(text, "vocab_size"),
            max_length=None if family in RELATIVE_POSITIONS else optional_size(text, "max_position_embeddings"),
            max_source_length=optional_size(text, "max_encoder_position_embeddings"),
        )

    @classmethod
    def uniform(
        cls,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_heads: int | None = None,
        max_length: int | None = None,
    ) -> CacheGeometry:
        """A geometry with the same full attention in every layer."""
        sizes: dict[str, Any] = {
            "num_hidden_layers": num_layers,
            "num_key_value_heads": num_kv_heads,
            "num_attention_heads": num_kv_heads if num_heads is None else num_heads,
            "head_dim": head_dim,
            "max_position_embeddings": max_length,
            "model_type": "uniform",
        }
        return cls.from_config(sizes)

    @property
    def num_layers(self) -> int:
        """Number of all layers, those without a cache included."""
        return len(self.layers)

    @property
    def num_blocks(self) -> int:
        """Number of decoder blocks that a token passes; self-attention and cross-attention of a block count once."""
        return sum(layer.kind != "cross" for layer in self.layers)

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the prompt, so that cross layers keep rows of its output."""
        return self.layers[-1].kind == "cross"

    @cached_property
    def attention_layers(self) -> tuple[LayerGeometry, ...]:
        """The layers that keep K and V of their own."""
        return tuple([layer for layer in self.layers if layer.stores_kv])

    @property
    def num_heads(self) -> int:
        """Query heads of the first attention layer; 0 if there is none."""
        return self.attention_layers[0].num_heads if self.attention_layers else 0

    @property
    def num_kv_heads(self) -> int:
        """Cached heads of the first attention layer; 0 if there is none."""
        return self.attention_layers[0].num_kv_heads if self.attention_layers else 0

    @property
    def head_dim(self) -> int:
        """Dimension of one cached key of the first attention layer (the latent rank under MLA); 0 if there is none."""
        return self.attention_layers[0].key_dim if self.attention_layers else 0

    @property
    def is_latent(self) -> bool:
        """Whether the attention is multi-head latent attention (MLA)."""
        return any(layer.kind == "latent" for layer in self.layers)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same kind, heads, dimensions and window."""
        first = self.layers[0]
        return all(_same_store(first, layer) for layer in self.layers)

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one more token while no window is full."""
        return sum(layer.elements_per_token for layer in self.layers if layer.kind != "cross")

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes stored for one more token in that dtype while no window is full."""
        return self.elements_per_token * dtype_bytes(dtype)

    def layers_by_kind(self) -> Mapping[LayerKind, tuple[LayerGeometry, ...]]:
        """The layers grouped by kind, in order of first appearance."""
        kinds = dict.fromkeys(layer.kind for layer in self.layers)
        return {kind: tuple(layer for layer in self.layers if layer.kind == kind) for kind in kinds}


def _same_store(a: LayerGeometry, b: LayerGeometry) -> bool:
    return (a.kind, a.num_kv_heads, a.key_dim, a.value_dim, a.num_heads, a.window) == (
        b.kind, b.num_kv_heads, b.key_dim, b.value_dim, b.num_heads, b.window
    )  # fmt: skip


# --- layer by layer ---------------------------------------------------------------------------------------------------

# transformers' names -> our kind, and whether the layer keeps a recurrent or convolution state
_KIND_OF_TYPE: Final[Mapping[str, tuple[LayerKind, bool]]] = {
    "full_attention": ("full", False),
    "indexed_attention": ("full", False),
    "sliding_attention": ("sliding", False),
    "chunked_attention": ("chunked", False),
    "linear_attention": ("linear", True),
    "conv": ("linear", True),
    "hybrid": ("full", True),
    "hybrid_sliding": ("sliding", True),
    "moe": ("none", False),
    "mlp": ("none", False),
}


def _layers(text: Config, family: str) -> tuple[LayerGeometry, ...]:
    types = layer_types(text, family)
    own = [_layer(_layer_config(text, family, i, kind), family, i, kind) for i, kind in enumerate(types)]
    if family in ENCODER_DECODER:
        return (
            *own,
            *(structs.replace(layer, index=len(own) + layer.index, kind="cross", window=None) for layer in own),
        )
    num_shared = text.get("num_kv_shared_layers") or 0
    if not num_shared:
        return tuple(own)
    first_shared = len(own) - number(num_shared, "num_kv_shared_layers", len(own) - 1)
    return tuple(own[:first_shared]) + tuple(_sharing(layer, own[:first_shared]) for layer in own[first_shared:])


def _sharing(layer: LayerGeometry, producers: Sequence[LayerGeometry]) -> LayerGeometry:
    """A layer that reads the K and V of the last earlier layer of its kind that stores any (Gemma 3n, Gemma 4)."""
    source = next((other for other in reversed(producers) if other.kind == layer.kind), None)
    if source is None:
        raise InputError(
            f"Layer {layer.index} should share the K and V of a {layer.kind} layer before it and there is none; "
            f"lower num_kv_shared_layers."
        )
    return LayerGeometry(
        layer.index, "shared", source.num_kv_heads, source.key_dim, source.value_dim, layer.num_heads,
        source.window, source.index,
    )  # fmt: skip


def _layer_config(text: Config, family: str, index: int, layer_type: str) -> Config:
    """The config with the sizes of this layer: some families have different sizes in single layers."""
    overrides = text.get("per_layer_config")
    if isinstance(overrides, Mapping):  # keyed by layer number, which transformers pads with zeros
        own = [found for key, found in overrides.items() if str(key).isdecimal() and int(key) == index]
        return {**text, **own[0]} if own and isinstance(own[0], Mapping) else text
    if family == "gemma4_text" and layer_type == "full_attention":
        wide: dict[str, Any] = {"head_dim": text.get("global_head_dim", 512)}
        if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads") is not None:
            wide["num_key_value_heads"] = text["num_global_key_value_heads"]
        return {**text, **wide}
    return text


def _layer(text: Config, family: str, index: int, layer_type: str) -> LayerGeometry:
    if layer_type not in _KIND_OF_TYPE:
        raise InputError(
            f"Layer {index} has the type {layer_type!r}, whose cache is not known; choose another architecture."
        )
    kind, has_state = _KIND_OF_TYPE[layer_type]
    state = state_elements(text, family, layer_type) if has_state else None
    kept = {} if state is None else {"state_elements": sum(state), "recurrent_elements": state.recurrent}
    if kind in ("linear", "none"):
        return LayerGeometry(index, kind, 0, 0, 0, 0, **kept)
    num_heads = size(text, "num_attention_heads")
    index_dim = optional_size(text, "index_head_dim") if layer_type == "indexed_attention" else None
    if has_sizes(text, "kv_lora_rank", "qk_rope_head_dim"):
        latent, rotary = size(text, "kv_lora_rank"), size(text, "qk_rope_head_dim")
        return LayerGeometry(index, "latent", 1, latent, rotary, num_heads, index_dim=index_dim, **kept)
    dim, num_kv_heads = head_dim(text, family, num_heads), num_kv_heads_of(text, family, num_heads)
    window = _window(text, family, kind)
    return LayerGeometry(index, kind, num_kv_heads, dim, dim, num_heads, window, index_dim=index_dim, **kept)


def _window(text: Config, family: str, kind: LayerKind) -> int | None:
    if kind == "sliding":
        return sliding_window(text, family)
    return optional_size(text, "attention_chunk_size") if kind == "chunked" else None
