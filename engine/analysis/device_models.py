"""The models for checks of a device, with random weights that are the same on every device; and the checks of other
kinds of models."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from engine.analysis.reference import Parity, Reference, parity, reference
from engine.errors import InputError
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.spec.model import SPLIT, ModelSpec, WeightFormat
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt


class Fault(Exception):
    """What a check found to be wrong. A check returns what was in order, in words; it raises `InputError` with the
    reason where it cannot be made here."""


VOCABULARY = 2048
# Heads, groups and widths of a real model, but few layers: four layers show the same faults as thirty. With the usual
# standard deviation of 0.02 attention would be nearly uniform, and values too large by half would pass as bfloat16
# rounding.
CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 576,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "tie_word_embeddings": True, "eos_token_id": None,
}  # fmt: skip
# A model with sliding windows, and with layers that read the pages of another layer.
SHARING_CONFIG: dict[str, Any] = {
    "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 32,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "sliding_window": 24, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "laurel_rank": 16, "altup_num_inputs": 2,
    "activation_sparsity_pattern": None, "eos_token_id": None,
}  # fmt: skip
ENCODER_CONFIG: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "num_layers": 2, "num_decoder_layers": 2,
    "d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 4, "vocab_size": VOCABULARY, "n_positions": 512,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None, "is_encoder_decoder": True,
}  # fmt: skip
ENCODER_CACHES = ("growing", "static", "dynamic")
# The largest relative difference of logits between quantised and stored weights.
WEIGHTS_LOSS: dict[WeightFormat, float] = {"int8": 0.1, "int4": 0.8}
WEIGHTS_DTYPE = "bfloat16"  # the dtype of the kernels for int4 weights
PROMPT, STEPS = 21, 8


def model_on(
    device: torch.device | str, dtype: str, config: dict[str, Any] = CONFIG, weights: WeightFormat = "stored"
) -> LoadedModel:
    """A model with random weights, which are drawn on the CPU and therefore the same on every device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), "utf-8")
        return load(ModelSpec(f"shape:{path}", dtype=dtype, device=str(device), weights=weights))  # type: ignore[arg-type]


def token_ids(count: int) -> tuple[int, ...]:
    """Random token ids, the same at every call."""
    made = torch.Generator().manual_seed(1)
    return tuple(torch.randint(3, VOCABULARY, (count,), generator=made).tolist())


def words_of(found: Parity) -> str:
    """The result of a comparison in words."""
    return f"max |Δlogit| {found.max_abs_logit_diff:.1e}, within {found.tolerance:g}"


def check_encoder(device: torch.device, dtype: str) -> str:
    """Check an encoder-decoder: each cache against the forward pass without one, and in float32 the tokens against
    those of transformers' greedy `generate`."""
    model = model_on(device, dtype, ENCODER_CONFIG)
    truth = reference(model, token_ids(PROMPT), STEPS)
    for name in ENCODER_CACHES:
        found = parity(model, name, cache_preset(name).spec, truth, PROMPT)
        if not found.passes:
            raise Fault(f"{name}: {words_of(found)}")
    if dtype == "float32" and generated(model) != stepped(model):
        raise Fault("other tokens than those of transformers' generate")
    return ", ".join(ENCODER_CACHES)


def generated(model: LoadedModel) -> tuple[int, ...]:
    """Greedy tokens of transformers' `generate`, after the decoder's start token."""
    ids = torch.tensor([token_ids(PROMPT)], device=model.device)
    made = model.model.generate(ids, do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS)
    return tuple(made[0, 1:].tolist())


def stepped(model: LoadedModel) -> tuple[int, ...]:
    """Greedy tokens of a session."""
    session = Session(model, cache_preset("growing").spec)
    seq_id = session.submit(Prompt(token_ids=token_ids(PROMPT)))
    while len(made := session.sequence(seq_id).token_ids) < PROMPT + 1 + STEPS:
        session.step()
    return tuple(made[-STEPS:])


def check_weights(device: torch.device, dtype: str, weights: WeightFormat) -> str:
    """Check quantised weights: a growing cache against the forward pass without one, and that the logits differ from
    those of the stored weights, but not by much."""
    coded = model_on(device, dtype, weights=weights)
    if coded.info.weights != weights:
        raise InputError(coded.info.note)
    truth = reference(coded, token_ids(PROMPT), STEPS)
    check_growing(coded, truth)
    stored = reference(model_on(device, dtype), truth.prompt_ids, STEPS, forced=truth.token_ids).logits
    loss = float((truth.logits - stored).norm() / stored.norm())
    words = f"the logits are {loss:.1%} off those of the weights as stored"
    if not 0 < loss < WEIGHTS_LOSS[weights]:
        raise Fault(words)
    return words


def check_split(model: LoadedModel) -> str:
    """Check the model split over all GPUs against the same one on the first of them."""
    if model.device.type != "cuda" or torch.cuda.device_count() < 2:
        raise InputError("there are no two GPUs")
    split = model_on(SPLIT, model.info.dtype)
    if len(split.devices) < 2:
        raise InputError(f"all layers fit on {split.device}")
    words = check_growing(split, reference(model, token_ids(PROMPT), STEPS))
    return f"{len(split.devices)} GPUs, {words}"


def check_growing(model: LoadedModel, truth: Reference) -> str:
    """Check a growing cache against a reference."""
    found = parity(model, "growing", cache_preset("growing").spec, truth, PROMPT)
    if not found.passes:
        raise Fault(words_of(found))
    return words_of(found)
