"""The figures of the five documents as they are published, the sizes of their models, and what a line of a table is:
one of these figures beside the one measured here. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

FieldValue = None | bool | int | float | str | tuple[float, ...]
TableKind = Literal["speed", "shapes", "logits", "lengths", "memory", "allocated", "max"]


PUBLISHED = "published"


class SeedLine(Struct, frozen=True):
    """One figure: `published` in the document (None: not printed there) and `measured` here (None: could not be
    measured, `note` says why). `on` names the model and machine. `heading` is the head of the column of `published`: a
    figure that the document gives the formula of, and does not print, is not called published.

    `agrees` is None if the two are not comparable: another machine, other weights, or no published figure.
    `must_agree`: a difference is a fault of this program. A point of a curve has a `series` and its x value `at`.
    """

    document: str
    table: TableKind
    item: str
    published: FieldValue
    measured: FieldValue
    unit: str = ""
    agrees: bool | None = None
    must_agree: bool = False
    note: str = ""
    on: str = ""
    series: str = ""
    at: float | None = None
    heading: str = PUBLISHED


@dataclass(frozen=True)
class Sheet:
    """A table of a document, measured `on` a model or a machine."""

    document: str
    table: TableKind
    on: str = ""

    def figure(
        self, item: str, published: FieldValue, measured: FieldValue, unit: str = "", note: str = "", **more: Any
    ) -> SeedLine:
        """A line of it; `more` are further fields of the line."""
        return SeedLine(self.document, self.table, item, published, measured, unit, note=note, on=self.on, **more)

    def must(
        self, item: str, published: FieldValue, measured: FieldValue, unit: str = "", note: str = "", **more: Any
    ) -> SeedLine:
        """A line that must be the same everywhere."""
        return checked(self.figure(item, published, measured, unit, note, **more))


def checked(line: SeedLine) -> SeedLine:
    """The line of a figure that must be the same everywhere, with the result of the comparison."""
    is_same = type(line.published) is type(line.measured) and line.published == line.measured
    return replace(line, agrees=is_same, must_agree=True)


# ---- the documents ---------------------------------------------------------------------------------------------------

HUGGING_FACE: Final = "HuggingFace KV cache (galopy, 2025)"
TUTORIAL: Final = "Chapter 12: Inference I — KV Cache"
GPT2_PAGE: Final = "Modular: GPT-2, KV cache configuration"
ARCH_PAGE: Final = "Modular: ArchConfigWithAttentionKVCache"
PARAMS_PAGE: Final = "Modular: KVCacheParams"

# ---- the models --------------------------------------------------------------------------------------------------

SMOLLM2: Final = "HuggingFaceTB/SmolLM2-135M"
SMOLLM2_CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "initializer_range": 0.041666666666666664,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2: Final = "openai-community/gpt2"
GPT2_CONFIG: Final[dict[str, Any]] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA31_8B_CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
}
TUTORIAL_CONFIG: Final[dict[str, Any]] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 128,
    "n_embd": 128,
    "n_head": 4,
    "n_layer": 4,
    "n_positions": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
}

# ---- HuggingFace KV cache ----------------------------------------------------------------------------------------

NUM_TOKENS: Final = 200
PROMPT_IDS: Final = (504, 3108, 282, 1767, 24581, 2496, 216)
NEXT_IDS: Final = (34, 32, 32, 929, 3156)
STATIC_LENGTH: Final = 1024


@dataclass(frozen=True)
class PublishedRun:
    """One timed generation of the document."""

    cache: str
    hardware: str
    seconds: float
    tok_per_s: int
    note: str = ""


RUNS: Final = (
    PublishedRun("none", "L4", 6, 32),
    PublishedRun("dynamic", "L4", 6, 32),
    PublishedRun("static", "L4", 1, 153, "compiled"),
    PublishedRun("none", "T4", 9, 21),
    PublishedRun("dynamic", "T4", 7.44, 26),
    PublishedRun("static", "T4", 9.35, 21, "not compiled: the T4 has no bfloat16 compilation"),
    PublishedRun("none", "A100", 7.40, 27),
    PublishedRun("dynamic", "A100", 6.30, 31),
    PublishedRun("static", "A100", 1.39, 143, "compiled"),
    PublishedRun("none", "T4, notebook", 8.73, 22, "through the generation config"),
    PublishedRun("none", "T4, notebook again", 8.03, 24, "use_cache=False"),
    PublishedRun("dynamic", "T4, notebook", 7.94, 25),
    PublishedRun("static, first run", "T4, notebook", 124.21, 1, "it compiles first"),
    PublishedRun("static", "T4, notebook", 9.15, 21),
    PublishedRun("dynamic", "T4, 200 tokens in all", 7.69, 26, "max_length instead of max_new_tokens"),
)

LAST_LOGITS: Final = (18.8750, 3.3906, 3.4219, 4.3750, 11.4375, 10.3750)  # first and last three of the last row
PROBABILITIES: Final = (6.4850e-05, 1.2221e-11, 1.2619e-11, 3.2742e-11, 3.8184e-08, 1.3213e-08)
STATIC_COLUMN: Final = (  # K of layer 0, head 0, channel 0 at the first 20 positions
    -1.2188, -0.3047, 1.0156, 1.7266, 1.4453, -1.1641, 0.6797, -1.3281, 0.9688, 0.4980, -1.3047,
    0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
)  # fmt: skip
PEAK_GIB: Final = 12.07

# ---- Chapter 12 --------------------------------------------------------------------------------------------------

TUTORIAL_PROMPT: Final = 16
TUTORIAL_NEW: Final = 64
TUTORIAL_REPEATS: Final = 5
SLIP_GB: Final = "1-2 GB"

# ---- Modular -----------------------------------------------------------------------------------------------------

GPT2_DIMENSIONS: Final = {"num_layers": 12, "num_key_value_heads": 12, "head_dim": 64, "model_max_seq_len": 1024}
GPT2_COMPUTED: Final = (10.0, 11.0, 12.0)
PARAMS_DEFAULTS: Final[dict[str, Any]] = {
    "enable_prefix_caching": False,
    "kv_connector": None,
    "kv_connector_config": None,
    "host_kvcache_swap_space_gb": None,
    "page_size": 128,
    "is_mla": False,
    "num_q_heads": None,
    "data_parallel_degree": 1,
    "n_kv_heads_per_device": 0,
    "num_q_heads_per_device": None,
    "kvcache_quant_config": None,
    "speculative_method": None,
    "num_draft_tokens": 0,
}
ARCH_DEFAULTS: Final[dict[str, Any]] = {
    "cache_dtype": None,
    "data_parallel_degree": 1,
    "user_provided_max_length": None,
    "huggingface_config": None,
}
