"""Reads a Hugging Face config: finds the part that describes the decoder, and gives each size one name.

Families use different names for the same size, and leave out values that equal a class default. After :func:`canonical`
each size has one name, and a value or none.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

from engine.errors import InputError
from engine.geometry.families import ENCODER_DECODER, FAMILY_DEFAULTS, WINDOW_IS_A_SWITCH

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
        for name, others in DECODER_ALIASES.items():
            found = next((text[other] for other in others if text.get(other) is not None), None)
            if found is not None:
                text[name] = found
    for name, others in ALIASES.items():
        given = next((other for other in others if text.get(other) is not None), None)
        if text.get(name) is None and given is not None:
            text[name] = text[given]
    text["model_type"] = family = _family(text.get("model_type"))
    defaults: Mapping[str, Any] = FAMILY_DEFAULTS.get(family, {})
    return {**defaults, **text}


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
