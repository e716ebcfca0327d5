"""Models that people ask about, by the numbers of their published configs: enough for the bytes of cache and
weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.geometry.config import Config
from engine.geometry.dimensions import CacheGeometry, dtype_bytes


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
