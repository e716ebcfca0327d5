"""The number of K and V heads of a layer and their dimension, from its config."""

from __future__ import annotations

from engine.errors import InputError
from engine.geometry.config import Config, number, size
from engine.geometry.families import HEAD_DIM_IS_A_QUOTIENT, MULTI_HEAD_ONLY


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
