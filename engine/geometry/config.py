"""Reads a Hugging Face config: the part that describes the decoder, each size by one name, the type of each layer, its
heads and the size of its recurrent state, by the rules of the families.

Families use different names for the same size, and leave out values that equal a class default. After :func:`canonical`
each size has one name, and a value or none. Types of layers have transformers' names (``full_attention``, ``conv``, …);
:mod:`engine.geometry.dimensions` turns them into kinds.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from engine.errors import InputError
from engine.geometry.families import (
    ALL_RECURRENT,
    ATTENTION_EVERY,
    ENCODER_DECODER,
    FAMILY_DEFAULTS,
    FULL_EVERY,
    HEAD_DIM_IS_A_QUOTIENT,
    LAYERS_ARE_LISTED,
    MULTI_HEAD_ONLY,
    WINDOW_AFTER_FULL_LAYERS,
    WINDOW_IS_A_SWITCH,
)

Config = Mapping[str, Any]

_SIZE_LIMIT: Final = 2**31 - 1
_NESTED: Final = ("text_config", "decoder", "generator", "llm_config", "language_config", "thinker_config")
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_sequence_length", "model_max_length", "n_ctx"),
    "head_dim": ("attention_head_dim", "d_kv"),
    "layer_types": ("layers_block_type",),
}


# Names of the decoder's sizes in encoder-decoders, whose usual names may be those of the encoder.
DECODER_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("num_decoder_layers", "decoder_layers", "num_hidden_layers", "num_layers"),
    "num_attention_heads": ("decoder_attention_heads", "num_attention_heads", "num_heads"),
    "max_position_embeddings": ("max_decoder_position_embeddings", "max_position_embeddings"),
}


class HasToDict(Protocol):
    """Anything with a `to_dict` method, such as every Hugging Face config."""

    def to_dict(self) -> dict[str, Any]: ...


def as_mapping(config: Config | HasToDict) -> Config:
    """The config as a mapping; raises `InputError` if it is neither a mapping nor has `to_dict`."""
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    if not callable(to_dict):
        raise InputError(f"A model config must be a JSON object, not {type(config).__name__}; pass the config.json.")
    found = to_dict()
    if not isinstance(found, Mapping):
        raise InputError(f"to_dict() of the model config gave {type(found).__name__}; it must give a dict.")
    return found


def decoder_part(config: Config) -> Config:
    """The part that describes the text decoder; multimodal configs nest it, sometimes twice."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            named = inner if inner.get("model_type") else {**inner, "model_type": config.get("model_type")}
            return decoder_part(named)
    return config


def canonical(config: Config) -> dict[str, Any]:
    """The config with one name per size, completed by the class defaults of the family."""
    text = dict(config)
    if text.get("model_type") in ENCODER_DECODER:
        text |= _by_one_name(text, DECODER_ALIASES)
    text |= _by_one_name(text, {name: (name, *others) for name, others in ALIASES.items()})
    text["model_type"] = family = _family(text.get("model_type"))
    defaults: Mapping[str, Any] = FAMILY_DEFAULTS.get(family, {})
    return {**defaults, **text}


def _by_one_name(text: Config, aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Each size that the config gives by any of its names, the first of them that has a value."""
    given = {name: [text[other] for other in others if text.get(other) is not None] for name, others in aliases.items()}
    return {name: values[0] for name, values in given.items() if values}


def _family(model_type: object) -> str:
    if model_type is None:
        return "unknown"
    if not isinstance(model_type, str):
        raise InputError(f"model_type in the config is {model_type!r}; it must be a name such as 'llama'.")
    nested = f"{model_type}_text"  # in the flat config of a multimodal family the decoder has its own name
    is_nested = model_type not in FAMILY_DEFAULTS and (nested in FAMILY_DEFAULTS or nested in WINDOW_IS_A_SWITCH)
    return nested if is_nested else model_type


def number(value: object, name: str, limit: int = _SIZE_LIMIT) -> int:
    """The value if it is a whole number from 1 to `limit`; raises `InputError` otherwise."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= limit:  # type: ignore[operator]
        raise InputError(
            f"{name} in the model config is {reprlib.repr(value)}; it must be a whole number from 1 to {limit:,}."
        )
    return value  # type: ignore[return-value]


def size(text: Config, name: str, limit: int = _SIZE_LIMIT) -> int:
    """A size that the config must state; raises `InputError` if it is missing or impossible."""
    if text.get(name) is None:
        raise InputError(f"The model config does not say {name}; add it, or pass the config.json of a decoder.")
    return number(text[name], name, limit)


def optional_size(text: Config, name: str) -> int | None:
    """A size, or None if the config does not state it."""
    return None if text.get(name) is None else number(text[name], name)


def has_sizes(text: Config, *names: str) -> bool:
    """Whether the config states all these sizes."""
    return all(text.get(name) is not None for name in names)


def sliding_window(text: Config, family: str) -> int | None:
    """The sliding window in tokens; None if there is none or it is switched off."""
    is_off = family in WINDOW_IS_A_SWITCH and not text.get("use_sliding_window")
    return None if is_off else optional_size(text, "sliding_window")


# ---- the type of each layer ------------------------------------------------------------------------------------------

_LAYERS_LIMIT: Final = 10_000

_OLD_TYPES: Final[Mapping[str, str]] = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
_NEMOTRON_LETTERS: Final[Mapping[str, str]] = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}


def layer_types(text: Config, family: str) -> tuple[str, ...]:
    """The type of each layer, with transformers' names, from the config or from the family's rule."""
    given = text.get("layer_types")
    if given is None and isinstance(text.get("hybrid_override_pattern"), str):
        given = [_NEMOTRON_LETTERS.get(letter, letter) for letter in text["hybrid_override_pattern"]]
    if given is None and family in LAYERS_ARE_LISTED:
        raise InputError(f"The config of a {family} model must list its layers; add layers_block_type or layer_types.")
    if given is None:
        return _types_by_rule(text, family, size(text, "num_hidden_layers", _LAYERS_LIMIT))
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise InputError("layer_types in the model config must be a list of names, one for each layer.")
    types = [_OLD_TYPES.get(name, name) for name in given]
    # Nemotron-H counts its layers by the list and ignores num_hidden_layers
    num_layers = len(types) if family == "nemotron_h" else size(text, "num_hidden_layers", _LAYERS_LIMIT)
    if len(types) != num_layers:
        raise InputError(
            f"layer_types names {len(types)} layers and num_hidden_layers says {num_layers}; they must agree."
        )
    if family == "gemma4_text" and types:
        types[-1] = "full_attention"  # the last layer of Gemma 4 has full attention, whatever the list says
    return tuple(types)


def _types_by_rule(text: Config, family: str, num_layers: int) -> tuple[str, ...]:
    indices = range(num_layers)
    if rule := _RULES.get(family):
        return tuple(rule(text, num_layers))
    if family in ATTENTION_EVERY:
        every = size({"full_attention_interval": ATTENTION_EVERY[family], **text}, "full_attention_interval")
        return tuple("linear_attention" if (i + 1) % every else "full_attention" for i in indices)
    window = sliding_window(text, family)
    if family in FULL_EVERY:
        every = optional_size(text, "sliding_window_pattern") or FULL_EVERY[family]
        local = "full_attention" if window is None else "sliding_attention"
        types = [local if (i + 1) % every else "full_attention" for i in indices]
        return (*types[:-1], "full_attention") if family == "gemma4_text" else tuple(types)
    if window is not None and family in WINDOW_AFTER_FULL_LAYERS:
        num_full = _count(text, "max_window_layers")
        return tuple("sliding_attention" if i >= num_full else "full_attention" for i in indices)
    if window is not None:
        return ("sliding_attention",) * num_layers
    is_chunked = text.get("attention_chunk_size") is not None
    name = "indexed_attention" if family in ("deepseek_v32", "glm_moe_dsa") else "full_attention"
    return ("chunked_attention" if is_chunked else name,) * num_layers


def _indices(text: Config, name: str) -> frozenset[int] | None:
    given = text.get(name)
    if given is None:
        return None
    if not isinstance(given, Sequence) or not all(isinstance(i, int) for i in given):
        raise InputError(f"{name} in the model config must be a list of layer numbers.")
    return frozenset(given)


def _count(text: Config, name: str) -> int:
    """A size that may be 0."""
    return 0 if text.get(name) == 0 else size(text, name)


def _lfm2_types(text: Config, num_layers: int) -> Iterable[str]:
    attending = _indices(text, "full_attn_idxs")
    chosen = range(num_layers) if attending is None else attending
    return ("full_attention" if i in chosen else "conv" for i in range(num_layers))


def _jamba_types(text: Config, num_layers: int) -> Iterable[str]:
    period, offset = size(text, "attn_layer_period"), _count(text, "attn_layer_offset")
    return ("full_attention" if i % period == offset else "linear_attention" for i in range(num_layers))


def _bamba_types(text: Config, num_layers: int) -> Iterable[str]:
    chosen = _indices(text, "attn_layer_indices") or frozenset()
    return ("full_attention" if i in chosen else "linear_attention" for i in range(num_layers))


def _llama4_types(text: Config, num_layers: int) -> Iterable[str]:
    is_local = _rotary_layers(text, num_layers)
    return ("chunked_attention" if local else "full_attention" for local in is_local)


def _smollm3_types(text: Config, num_layers: int) -> Iterable[str]:
    has_window = sliding_window(text, "smollm3") is not None
    is_rotary = _rotary_layers(text, num_layers)
    return ("sliding_attention" if has_window and not rotary else "full_attention" for rotary in is_rotary)


def _rotary_layers(text: Config, num_layers: int) -> Sequence[object]:
    """Which layers rotate their keys. In spite of its name, a 1 in no_rope_layers means rotary."""
    every = size(text, "no_rope_layer_interval")
    given = text.get("no_rope_layers")
    if not given:
        return [(i + 1) % every != 0 for i in range(num_layers)]
    if not isinstance(given, Sequence) or len(given) != num_layers:
        raise InputError(f"no_rope_layers in the model config must list 0 or 1 for each of the {num_layers} layers.")
    return given


def _qwen2_moe_types(text: Config, num_layers: int) -> Iterable[str]:
    num_mixed = _count(text, "max_window_layers") if sliding_window(text, "qwen2_moe") is not None else 0
    return ("sliding_attention" if i % 2 == 0 and i < num_mixed else "full_attention" for i in range(num_layers))


def _kimi_linear_types(text: Config, num_layers: int) -> Iterable[str]:
    listed = _indices(text.get("linear_attn_config") or {}, "full_attn_layers")  # counted from 1
    chosen = range(4, num_layers, 4) if listed is None else {i - 1 for i in listed}
    return ("full_attention" if i in chosen else "linear_attention" for i in range(num_layers))


_RULES: Final[Mapping[str, Callable[[Config, int], Iterable[str]]]] = {
    "lfm2": _lfm2_types,
    "jamba": _jamba_types,
    "bamba": _bamba_types,
    "llama4_text": _llama4_types,
    "smollm3": _smollm3_types,
    "qwen2_moe": _qwen2_moe_types,
    "kimi_linear": _kimi_linear_types,
    "falcon_h1": lambda _, num_layers: ("hybrid",) * num_layers,
    **dict.fromkeys(ALL_RECURRENT, lambda _, num_layers: ("linear_attention",) * num_layers),
}


# ---- the constant state of recurrent layers --------------------------------------------------------------------------


class RecurrentState(NamedTuple):
    """Numbers of constant state of one layer and sequence: of the convolution, in the model's dtype, and recurrent, in
    float32."""

    convolution: int
    recurrent: int


def state_elements(text: Config, family: str, layer_type: str) -> RecurrentState | None:
    """Numbers of state per sequence; None for a family whose sizes are unknown here."""
    if layer_type == "conv":
        window = _product(text, "hidden_size", "conv_L_cache")
        return None if window is None else RecurrentState(window, 0)
    if family in ("mamba", "falcon_mamba"):
        return _mamba1(text, "expand", "conv_kernel", "state_size", optional_size(text, "intermediate_size"))
    if family in ("jamba", "zamba"):
        return _mamba1(text, "mamba_expand", "mamba_d_conv", "mamba_d_state")
    if family == "kimi_linear":
        return _kimi_state(text)
    if has_sizes(
        text, "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"
    ):
        return _delta_rule_state(text)
    return _mamba2_state(text, family)


def _product(text: Config, *names: str) -> int | None:
    return math.prod(size(text, name) for name in names) if has_sizes(text, *names) else None


def _mamba1(text: Config, expand: str, kernel: str, state: str, width: int | None = None) -> RecurrentState | None:
    inner = width or _product(text, expand, "hidden_size")
    return None if inner is None else RecurrentState(inner * size(text, kernel), inner * size(text, state))


# family -> keys of: inner width (a product), groups, state size, convolution kernel
_MAMBA2_KEYS: Final[Mapping[str, tuple[tuple[str, ...], str, str, str]]] = {
    "mamba2": (("expand", "hidden_size"), "n_groups", "state_size", "conv_kernel"),
    "bamba": (("mamba_expand", "hidden_size"), "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "granitemoehybrid": (("mamba_expand", "hidden_size"), "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "falcon_h1": (("mamba_d_ssm",), "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "zamba2": (("mamba_expand", "hidden_size"), "mamba_ngroups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": (("mamba_num_heads", "mamba_head_dim"), "n_groups", "ssm_state_size", "conv_kernel"),
}


def _mamba2_state(text: Config, family: str) -> RecurrentState | None:
    if family not in _MAMBA2_KEYS:
        return None
    width, groups, state, kernel = _MAMBA2_KEYS[family]
    if family == "falcon_h1" and text.get("mamba_d_ssm") is None:
        width = ("mamba_expand", "hidden_size")
    inner = _product(text, *width)
    if inner is None:
        return None
    state_size = size(text, state)
    channels = inner + 2 * size(text, groups) * state_size  # the convolution runs over x, B and C
    return RecurrentState(channels * size(text, kernel), inner * state_size)


def _delta_rule_state(text: Config) -> RecurrentState:
    key_heads, value_heads = size(text, "linear_num_key_heads"), size(text, "linear_num_value_heads")
    key_dim, value_dim = size(text, "linear_key_head_dim"), size(text, "linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim  # the convolution runs over q, k and v
    return RecurrentState(channels * size(text, "linear_conv_kernel_dim"), value_heads * key_dim * value_dim)


def _kimi_state(text: Config) -> RecurrentState | None:
    nested = text.get("linear_attn_config") or {}
    heads = nested.get("num_heads", text.get("linear_num_heads"))
    dim = nested.get("head_dim", text.get("linear_head_dim"))
    kernel = nested.get("short_conv_kernel_size", text.get("linear_conv_kernel_dim"))
    if heads is None or dim is None or kernel is None:
        return None
    num_heads, head_dim = number(heads, "num_heads"), number(dim, "head_dim")
    channels = 3 * num_heads * head_dim  # one convolution each for q, k and v
    return RecurrentState(channels * number(kernel, "short_conv_kernel_size"), num_heads * head_dim * head_dim)


# ---- heads -----------------------------------------------------------------------------------------------------------


def num_kv_heads_of(text: Config, family: str, num_heads: int) -> int:
    """The number of K and V heads that are cached."""
    if family in MULTI_HEAD_ONLY or (family == "falcon" and text.get("new_decoder_architecture")):
        return num_heads  # Falcon's newer decoder has fewer K and V heads, but caches them repeated
    if family in ("falcon", "gpt_bigcode") and text.get("multi_query"):
        return 1
    if family == "gpt_bigcode":
        return num_heads
    given = text.get("num_key_value_heads")
    num_kv_heads = num_heads if given is None else number(given, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise InputError(
            f"{num_heads} query heads cannot be split among {num_kv_heads} KV heads; "
            f"num_attention_heads must be a multiple of num_key_value_heads."
        )
    return num_kv_heads


def head_dim(text: Config, family: str, num_heads: int) -> int:
    """The dimension of a head: as stated, else the attention width divided by the number of heads."""
    if text.get("head_dim") is not None and family not in HEAD_DIM_IS_A_QUOTIENT:
        return number(text["head_dim"], "head_dim")
    # Zamba's attention reads two concatenated streams
    width = size(text, "hidden_size") * (2 if family in ("zamba", "zamba2") else 1)
    if width % num_heads:
        raise InputError(
            f"A width of {width} cannot be split among {num_heads} heads; "
            f"hidden_size must be a multiple of num_attention_heads, or head_dim must be given."
        )
    return width // num_heads
