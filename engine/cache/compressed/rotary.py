"""Rotating keys from one position to another (rotary embeddings, Su et al., 2021)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from engine.cache.layers.build import cache_argument
from engine.errors import InputError

SHIFT = 5
FIXED_FREQUENCIES = ("default", "linear", "llama3", "yarn")
TOLERANCE = 1e-3


class KeyRotation:
    """`k' = k cos(d f) + rotate_half(k) sin(d f)` for a shift of d positions; f are the model's inverse frequencies."""

    def __init__(self, inverse_frequencies: torch.Tensor) -> None:
        self._frequencies = inverse_frequencies.double()

    def rotate(self, keys: torch.Tensor, shift: int) -> torch.Tensor:
        """Keys `[…, D]` as they would be `shift` positions later."""
        if shift == 0:
            return keys
        angles = (shift * self._frequencies).repeat(2)
        half = keys.shape[-1] // 2
        rotated = torch.cat([-keys[..., half:], keys[..., :half]], -1)
        return (keys.double() * angles.cos() + rotated.double() * angles.sin()).to(keys.dtype)


def rotates_at_any_position(model: Any) -> bool:
    """Whether the model's keys are rotated with frequencies that are the same at every position.

    Such a model can be fed beyond the positions that it was trained for, as long as its cache keeps the rows that
    attention reads at near positions (Xiao et al., 2023, streaming language models).
    """
    parameters = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if parameters.get("rope_type", "default") not in FIXED_FREQUENCIES:
        return False
    try:
        key_rotation_of(model)
    except (InputError, RuntimeError, TypeError):
        return False
    return True


@torch.inference_mode()
def key_rotation_of(model: Any) -> KeyRotation:
    """The rotation of a model, after a test that its keys really are rotated this way; raises `InputError` if not.

    The test does not rely on names: the same two tokens five positions later must give the same keys rotated by five,
    in every layer. Models with learned positions, ALiBi, interleaved or partial rotation or latent caches fail it.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError("Re-rotation is not done behind an encoder: keep the positions.")
    refusal = InputError(
        "Re-rotation needs keys that turn with their position over all of head_dim, half against half; "
        "this model's do not: keep the positions."
    )
    frequencies = next((b for name, b in model.named_buffers() if name.endswith("rotary_emb.inv_freq")), None)
    if frequencies is None:
        raise refusal
    rotation = KeyRotation(frequencies)
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    here = torch.arange(2, device=model.device)[None]
    near, far = (DynamicCache(config=model.config) for _ in range(2))
    for cache, places in ((near, here), (far, here + SHIFT)):
        model(ids, **{cache_argument(model): cache}, use_cache=True, position_ids=places)
    for one, other in zip(near.layers, far.layers, strict=True):
        keys = getattr(one, "keys", None)
        if keys is None:
            continue  # the layer keeps no keys
        if keys.shape[-1] != 2 * len(frequencies):
            raise refusal
        error = (rotation.rotate(keys, SHIFT) - other.keys).abs().max()
        if not error <= TOLERANCE * max(1.0, float(keys.abs().max())):
            raise refusal
    return rotation
