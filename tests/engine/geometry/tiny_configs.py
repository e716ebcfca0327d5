"""Tiny configs of every family, with the kind of each layer of theirs."""

from __future__ import annotations

from typing import Any

BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
PLAIN = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
MLA = {
    **BASE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
}
EXPERTS = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MIX = {"num_local_experts": 2, "num_experts_per_tok": 1}
SSM = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
SSD = {**SSM, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
GEMMA_N = {
    "head_dim": 8,
    "num_hidden_layers": 10,
    "sliding_window": 8,
    "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8,
}
F, S, C, M, L, X, N = "full", "sliding", "chunked", "latent", "linear", "shared", "none"

# family[:variant] -> (config, kind of every layer as read off the real cache)
TINY: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama": (BASE, [F] * 4),
    "llama:wide_heads": ({**BASE, "head_dim": 12}, [F] * 4),
    "gpt2": (GPT, [F] * 3),
    "gpt2:kv_heads_ignored": ({**GPT, "num_key_value_heads": 2}, [F] * 3),
    "gpt_bigcode": (GPT, [F] * 3),
    "gptj": ({**GPT, "rotary_dim": 4}, [F] * 3),
    "qwen2:window_off": ({**BASE, "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 2}, [F] * 4),
    "qwen2:window_on": (
        {**BASE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        [F, F, S, S],
    ),
    "qwen2_moe:window_on": (
        {**BASE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3, "num_experts": 2,
         "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        [S, F, S, F],
    ),
    "qwen3": ({**BASE, "head_dim": 16}, [F] * 4),
    "mistral": ({**BASE, "sliding_window": 8}, [S] * 4),
    "mistral:no_window": ({**BASE, "sliding_window": None}, [F] * 4),
    "mixtral": ({**BASE, **MIX}, [F] * 4),
    "gemma": ({**BASE, "head_dim": 16}, [F] * 4),
    "gemma2": ({**BASE, "head_dim": 16, "sliding_window": 8}, [S, F, S, F]),
    "gemma3_text": ({**BASE, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7}, [S] * 5 + [F, S]),
    "gemma3n_text": (
        {**BASE, **GEMMA_N, "num_kv_shared_layers": 5, "laurel_rank": 4, "altup_num_inputs": 2,
         "activation_sparsity_pattern": [0.0] * 10, "intermediate_size": [48] * 10},
        [S, S, S, S, F] + [X] * 5,
    ),
    "gemma4_text": (
        {**BASE, **GEMMA_N, "num_kv_shared_layers": 4, "global_head_dim": 16, "num_global_key_value_heads": 1,
         "attention_k_eq_v": True},
        [S] * 5 + [F] + [X] * 4,
    ),
    "phi": (BASE, [F] * 4),
    "phi3": ({**BASE, "sliding_window": 8}, [S] * 4),
    "gpt_neox": ({**PLAIN, "intermediate_size": 48}, [F] * 3),
    "gpt_oss": ({**BASE, **MIX, "head_dim": 16, "sliding_window": 8}, [S, F, S, F]),
    "deepseek_v3": ({**MLA, **EXPERTS}, [M] * 4),
    "deepseek_v32": ({**MLA, **EXPERTS, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}, [M] * 4),
    "minicpm3": (MLA, [M] * 4),
    "opt": ({**PLAIN, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}, [F] * 3),
    "bloom": ({"vocab_size": 64, "hidden_size": 32, "n_layer": 3, "n_head": 4}, [F] * 3),
    "falcon:multi_query": (PLAIN, [F] * 3),
    "falcon:multi_head": ({**PLAIN, "multi_query": False}, [F] * 3),
    "falcon:new_decoder": ({**PLAIN, "num_kv_heads": 2, "new_decoder_architecture": True}, [F] * 3),
    "mpt": ({"vocab_size": 64, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}, [F] * 3),
    "cohere2": ({**BASE, "sliding_window": 8, "num_hidden_layers": 5}, [S, S, S, F, S]),
    "llama4_text": (
        {**BASE, "head_dim": 8, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 32},
        [C, C, C, F],
    ),
    "starcoder2": ({**BASE, "sliding_window": 8}, [S] * 4),
    "olmo2": (BASE, [F] * 4),
    "olmo3": ({**BASE, "sliding_window": 8}, [S, S, S, F]),
    "exaone4": ({**BASE, "sliding_window": 8, "sliding_window_pattern": 2}, [S, F, S, F]),
    "granite": (BASE, [F] * 4),
    "stablelm": (BASE, [F] * 4),
    "smollm3": (BASE, [F] * 4),
    "smollm3:window_on": ({**BASE, "use_sliding_window": True, "sliding_window": 8}, [F, F, F, S]),
    "lfm2:layer_types": ({**BASE, "layer_types": ["conv", "full_attention"] * 2}, [L, F, L, F]),
    "lfm2:full_attn_idxs": ({**BASE, "full_attn_idxs": [2], "conv_L_cache": 5}, [L, L, F, L]),
    "mamba": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}, [L] * 3),
    "mamba2": (
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "num_heads": 8, "head_dim": 8,
         "n_groups": 2, "chunk_size": 8},
        [L] * 3,
    ),
    "jamba": (
        {**BASE, **SSM, "num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 2,
         "num_experts_per_tok": 1, "use_mamba_kernels": False},
        [L, F, L, L, F],
    ),
    "bamba": ({**BASE, **SSD, "attn_layer_indices": [1]}, [L, F, L, L]),
    "falcon_h1": ({**BASE, **SSD, "head_dim": 8, "mamba_d_ssm": 64}, [F] * 4),
    "granitemoehybrid": (
        {**BASE, **SSD, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 0,
         "shared_intermediate_size": 32},
        [L, F, L, F],
    ),
    "nemotron_h": (
        {**BASE, "layer_types": ["mamba", "moe", "attention", "mamba"], "mamba_num_heads": 8, "mamba_head_dim": 8,
         "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 4, "head_dim": 8},
        [L, N, F, L],
    ),
    "zamba2": (
        {**BASE, **SSM, "num_key_value_heads": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_ngroups": 2,
         "n_mamba_heads": 8, "num_mem_blocks": 1},
        [L, F, L, F],
    ),
    "qwen3_next": (
        {**BASE, **DELTA, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 16},
        [L, L, L, F],
    ),
    "qwen3_5_text": ({**BASE, **DELTA}, [L, L, L, F]),
}  # fmt: skip
