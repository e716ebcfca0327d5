"""Facts about architectures, as data: sizes that a config.json may leave out, and which layers of a family are local.

A published config.json lists only what differs from its configuration class; a nested ``text_config`` often omits the
number of heads. These are the class defaults and layer rules of transformers 5.23, with canonical key names
(``num_hidden_layers`` for ``n_layer`` and so on). The tests compare every row with the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ConfigValue = int | bool


def _sizes(
    vocab: int, hidden: int, layers: int | None, heads: int | None, length: int | None, **more: ConfigValue
) -> Mapping[str, ConfigValue]:
    """The five common sizes, without those that are None, and the particular ones of a family."""
    common = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
    }
    return {key: value for key, value in common.items() if value is not None} | more


# fmt: off
FAMILY_DEFAULTS: Final[Mapping[str, Mapping[str, ConfigValue]]] = {
    "llama": _sizes(32000, 4096, 32, 32, 2048),
    "gpt2": _sizes(50257, 768, 12, 12, 1024),
    "qwen2": _sizes(
        151936, 4096, 32, 32, 32768, num_key_value_heads=32, sliding_window=4096, use_sliding_window=False,
        max_window_layers=28,
    ),
    "qwen2_moe": _sizes(
        151936, 2048, 24, 16, 32768, num_key_value_heads=16, sliding_window=4096, use_sliding_window=False,
        max_window_layers=28,
    ),
    "qwen3": _sizes(
        151936, 4096, 32, 32, 32768, num_key_value_heads=32, head_dim=128, sliding_window=4096,
        use_sliding_window=False, max_window_layers=28,
    ),
    "qwen3_moe": _sizes(
        151936, 2048, 24, 32, 32768, num_key_value_heads=4, sliding_window=4096, use_sliding_window=False,
    ),
    "qwen3_next": _sizes(
        151936, 2048, 48, 16, 32768, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "qwen3_5_text": _sizes(
        248320, 4096, 32, 16, 32768, num_key_value_heads=4, head_dim=256, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "mistral": _sizes(32000, 4096, 32, 32, 131072, num_key_value_heads=8, sliding_window=4096),
    "mixtral": _sizes(32000, 4096, 32, 32, 131072, num_key_value_heads=8),
    "ministral": _sizes(32000, 4096, 32, 32, 131072, num_key_value_heads=8, sliding_window=4096),
    "ministral3": _sizes(131072, 4096, 34, 32, 262144, num_key_value_heads=8, head_dim=128),
    "gemma": _sizes(256000, 3072, 28, 16, 8192, num_key_value_heads=16, head_dim=256),
    "gemma2": _sizes(256000, 2304, 26, 8, 8192, num_key_value_heads=4, head_dim=256, sliding_window=4096),
    "gemma3_text": _sizes(262208, 2304, 26, 8, 131072, num_key_value_heads=4, head_dim=256, sliding_window=4096),
    "gemma3n_text": _sizes(
        262400, 2048, 35, 8, 32768, num_key_value_heads=2, head_dim=256, sliding_window=512,
        num_kv_shared_layers=15,
    ),
    "gemma4_text": _sizes(
        262144, 2304, 30, 8, 131072, num_key_value_heads=4, head_dim=256, sliding_window=512,
        num_kv_shared_layers=0, attention_k_eq_v=False,
    ),
    "phi": _sizes(51200, 2048, 24, 32, 2048),
    "phi3": _sizes(32064, 3072, 32, 32, 4096),
    "phimoe": _sizes(32064, 4096, 32, 32, 131072, num_key_value_heads=8),
    "gpt_neox": _sizes(50432, 6144, 44, 64, 2048),
    "gpt_oss": _sizes(201088, 2880, 36, 64, 131072, num_key_value_heads=8, head_dim=64, sliding_window=128),
    "gptj": _sizes(50400, 4096, 28, 16, 2048),
    "gpt_neo": _sizes(50257, 2048, 24, 16, 2048),
    "gpt_bigcode": _sizes(50257, 768, 12, 12, 1024, multi_query=True),
    "codegen": _sizes(50400, 4096, 28, 16, 2048),
    "opt": _sizes(50272, 768, 12, 12, 2048),
    "bloom": _sizes(250880, 64, 2, 8, None),
    "falcon": _sizes(65024, 4544, 32, 71, 2048, multi_query=True, new_decoder_architecture=False),
    "mpt": _sizes(50368, 2048, 24, 16, 2048),
    "deepseek_v2": _sizes(102400, 4096, 32, 32, 2048, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v3": _sizes(
        129280, 7168, 61, 128, 4096, num_key_value_heads=128, kv_lora_rank=512, qk_rope_head_dim=64,
    ),
    "deepseek_v32": _sizes(
        129280, 7168, 61, 128, 163840, num_key_value_heads=128, head_dim=64, kv_lora_rank=512, qk_rope_head_dim=64,
        index_head_dim=128,
    ),
    "minicpm3": _sizes(73448, 2560, 62, 40, 32768, num_key_value_heads=40, kv_lora_rank=256, qk_rope_head_dim=32),
    "kimi_linear": _sizes(
        163840, 2304, 27, 32, 1048576, num_key_value_heads=32, kv_lora_rank=512, qk_rope_head_dim=64,
        linear_conv_kernel_dim=4, linear_num_heads=32, linear_head_dim=128,
    ),
    "cohere": _sizes(256000, 8192, 40, 64, 8192),
    "cohere2": _sizes(256000, 8192, 40, 64, 8192, sliding_window=4096),
    "llama4_text": _sizes(
        202048, 5120, 48, 40, 131072, num_key_value_heads=8, head_dim=128, attention_chunk_size=8192,
        no_rope_layer_interval=4,
    ),
    "starcoder2": _sizes(49152, 3072, 30, 24, 4096, num_key_value_heads=2),
    "lfm2": _sizes(65536, 2560, 32, 32, 128000, num_key_value_heads=8, conv_L_cache=3),
    "mamba": _sizes(50280, 768, 32, None, None, state_size=16, conv_kernel=4, expand=2),
    "falcon_mamba": _sizes(50280, 768, 32, None, None, state_size=16, conv_kernel=4, expand=2),
    "mamba2": _sizes(
        32768, 4096, 64, None, None, head_dim=64, num_heads=128, state_size=128, conv_kernel=4, expand=2,
        n_groups=8,
    ),
    "jamba": _sizes(
        65536, 4096, 32, 32, 262144, num_key_value_heads=8, attn_layer_period=8, attn_layer_offset=4,
        mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
    ),
    "bamba": _sizes(
        128000, 4096, 32, 32, 262144, num_key_value_heads=8, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2,
        mamba_n_groups=1,
    ),
    "falcon_h1": _sizes(
        128000, 4096, 32, 32, 8192, num_key_value_heads=8, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2,
        mamba_n_groups=1, mamba_d_ssm=1024,
    ),
    "granite": _sizes(32000, 4096, 32, 32, 2048),
    "granitemoehybrid": _sizes(
        32000, 4096, 32, 32, 2048, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1,
    ),
    "nemotron_h": _sizes(
        131072, 4096, None, 32, 4096, num_key_value_heads=8, head_dim=128, conv_kernel=4, expand=2, n_groups=8,
        mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128,
    ),
    "zamba2": _sizes(32000, 2560, 54, 32, 4096, mamba_d_state=64, mamba_d_conv=4, mamba_expand=2, mamba_ngroups=1),
    "stablelm": _sizes(50304, 2560, 32, 32, 4096, num_key_value_heads=32),
    "smollm3": _sizes(
        128256, 2048, 36, 16, 32768, num_key_value_heads=4, use_sliding_window=False, no_rope_layer_interval=4,
    ),
    "olmo2": _sizes(50304, 4096, 32, 32, 2048),
    "olmo3": _sizes(50304, 4096, 32, 32, 2048, sliding_window=4096),
    "exaone4": _sizes(
        102400, 4096, 32, 32, 2048, num_key_value_heads=32, sliding_window=4096, sliding_window_pattern=4,
    ),
    "persimmon": _sizes(262144, 4096, 36, 64, 16384),
    "glm4": _sizes(151552, 4096, 40, 32, 131072, num_key_value_heads=2, head_dim=128),
    "t5": _sizes(32128, 512, 6, 8, None, head_dim=64),
    "mt5": _sizes(250112, 512, 8, 6, None, head_dim=64),
    "umt5": _sizes(250112, 512, 8, 6, None, head_dim=64),
    "switch_transformers": _sizes(32128, 768, 12, 12, None, head_dim=64),
    "bart": _sizes(50265, 1024, 12, 16, 1024),
    "mbart": _sizes(50265, 1024, 12, 16, 1024),
    "plbart": _sizes(50005, 768, 6, 12, 1024),
    "pegasus": _sizes(50265, 1024, 12, 16, 1024),
    "marian": _sizes(58101, 1024, 12, 16, 1024),
    "blenderbot": _sizes(8008, 2560, 24, 32, 128),
    "blenderbot-small": _sizes(50265, 512, 8, 16, 512),
    "m2m_100": _sizes(128112, 1024, 12, 16, 1024),
    "longt5": _sizes(32128, 512, 6, 8, None, head_dim=64),
    "led": _sizes(50265, 1024, 12, 16, 1024),
    "t5_gemma_module": _sizes(256000, 2304, 26, 8, 8192, num_key_value_heads=4, head_dim=256, sliding_window=4096),
}
# fmt: on

# Every n-th layer has full attention, the others a sliding window. A config may give another n.
FULL_EVERY: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "t5_gemma_module": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
    "vaultgemma": 2,
}

# Every n-th layer has attention, the others keep a recurrent state.
ATTENTION_EVERY: Final[Mapping[str, int]] = {
    "qwen3_next": 4,
    "qwen3_5_text": 4,
    "qwen3_5_moe_text": 4,
    "olmo_hybrid": 4,
}

# These families ignore sliding_window if use_sliding_window is false; all others always apply it.
WINDOW_IS_A_SWITCH: Final = frozenset(
    {"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3", "qwen3_moe", "smollm3"}
)
# Those of them whose first max_window_layers layers have full attention.
WINDOW_AFTER_FULL_LAYERS: Final = frozenset({"qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3"})

# Families with one K and V head per query head, whatever num_key_value_heads says.
MULTI_HEAD_ONLY: Final = frozenset(
    {"gpt2", "gpt_neo", "gptj", "codegen", "gpt_neox", "gpt_neox_japanese", "opt", "bloom", "mpt", "persimmon",
     "biogpt", "xglm", "ctrl"}
)  # fmt: skip

# Families that ignore head_dim of the config and use hidden_size // num_attention_heads.
HEAD_DIM_IS_A_QUOTIENT: Final = MULTI_HEAD_ONLY | {"falcon", "stablelm", "gpt_bigcode"}

# An encoder reads the prompt once; every decoder layer attends to its own tokens and to the encoder's output.
ENCODER_DECODER: Final = frozenset(
    {"t5", "mt5", "umt5", "switch_transformers", "bart", "mbart", "plbart", "pegasus", "marian", "blenderbot",
     "blenderbot-small", "m2m_100", "longt5", "led", "t5_gemma_module"}
)  # fmt: skip

# Families with relative positions: n_positions of their configs is the length in training, not a limit.
RELATIVE_POSITIONS: Final = frozenset({"t5", "mt5", "umt5", "switch_transformers", "longt5"})

# Families whose decoders do not mask a single query, so that it would read reserved room without rows.
READ_ALL_ROOM: Final = frozenset({"led"})

# Encoder-decoders of transformers that this program does not run, with the reason.
OTHER_ENCODER_DECODERS: Final[Mapping[str, str]] = {
    "whisper": "its encoder reads sound, and here a prompt is token ids",
    "prophetnet": "its config cannot tell transformers' caches how many layers the decoder has",
}

# Families without a rule for the types of layers: the config must list them.
LAYERS_ARE_LISTED: Final = frozenset({"nemotron_h", "zamba", "zamba2"})

# Families in which every layer keeps a state and no K and V, unless the config lists its layers.
ALL_RECURRENT: Final = frozenset({"mamba", "falcon_mamba", "mamba2", "granitemoehybrid"})

# transformers keeps the state of these families outside its cache classes, or not as one row per token.
NO_CACHE_OBJECT: Final[Mapping[str, str]] = {
    "rwkv": "it keeps its recurrent state in a list of its own",
    "xlstm": "it keeps its recurrent state in an object of its own",
    "recurrent_gemma": "it keeps its state inside the modules",
    "openai-gpt": "it recomputes every token",
    "deepseek_v4": "it compresses several tokens into one cached row",
}
