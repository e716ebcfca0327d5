"""How a model turns its keys by their positions (rotary embeddings, Su et al., 2021), how to turn them back, and how to
turn them to other positions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import DynamicCache

from engine.cache.layers.build import cache_argument
from engine.errors import InputError

SHIFT = 5
TOLERANCE = 1e-3
MOVING = ("dynamic", "longrope")  # their angles depend on the length at which a key was written
FIXED_FREQUENCIES = {"default", "linear", "llama3", "yarn"}

Style = Literal["halves", "pairs"]


@dataclass(frozen=True, eq=False)
class ModelRotation:
    """Turns keys back with the cosines and sines that the model's own module gives: `k = (k' cos - r(k') sin) / (cos² +
    sin²)`, where r exchanges the two halves of the turned dimensions, or the two of each pair, and negates one. A
    factor on cosine and sine, as YaRN has, is undone as well."""

    module: Any
    style: Style
    layer_types: tuple[str, ...] | None

    @torch.inference_mode()
    def undone(self, keys: torch.Tensor, positions: torch.Tensor, layer: int) -> torch.Tensor:
        """Keys `[H, T, D]` of a layer at positions `[H, T]` as they were before, in float32."""
        places, back = torch.unique(positions, return_inverse=True)
        options = {} if self.layer_types is None else {"layer_type": self.layer_types[layer]}
        device = next(self.module.buffers()).device
        like = torch.zeros(1, dtype=torch.float32, device=device)
        known = (places < 1 << 31).long() * places  # positions of rows that are missing have no angle
        cos, sin = (
            part[0].to(keys.device)[back].float() for part in self.module(like, known[None].to(device), **options)
        )
        turned = cos.shape[-1]
        if turned > keys.shape[-1]:
            raise ValueError("more dimensions are turned than a key has")
        rows = keys[..., :turned].float()
        if self.style == "halves":
            other = torch.cat([-rows[..., turned // 2 :], rows[..., : turned // 2]], -1)
        else:
            other = torch.stack([-rows[..., 1::2], rows[..., ::2]], -1).flatten(-2)
        before = (rows * cos - other * sin) / (cos.square() + sin.square())
        return torch.cat([before, keys[..., turned:].float()], -1)


@torch.inference_mode()
def rotation_of(model: Any, kinds: tuple[str, ...]) -> ModelRotation | str:
    """The rotation of a model whose layers are of these kinds, or why its keys cannot be turned back. The formula is
    proved on the model: the same tokens at other positions must give the same keys once these are turned back."""
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False):
        return "The keys of an encoder-decoder are not turned by their positions."
    if "latent" in kinds:
        return "Latent attention keeps a compressed latent, of which nothing is turned by its position."
    modules = [
        each
        for _, each in model.named_modules()
        if any(name.endswith("inv_freq") for name, _ in each.named_buffers(recurse=False))
    ]
    if not modules:
        return "This model does not turn its keys by their positions."
    if any(kind in MOVING for kind in rope_types(config)):
        return "This model's angles depend on the length at which a key was written, which is not known any more."
    takes_type = "layer_type" in inspect.signature(modules[0].forward).parameters
    types = tuple(config.layer_types) if takes_type else None
    try:
        near, far = keys_at(model, 0), keys_at(model, SHIFT)
        styles: tuple[Style, Style] = ("halves", "pairs")
        for rotation in (ModelRotation(modules[0], style, types) for style in styles):
            if all(are_same(rotation, near, far, layer) for layer in near):
                return rotation
    except (RuntimeError, TypeError, ValueError):
        pass
    return "This model turns its keys in a way that is not known here."


def rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding that a config names."""
    found = getattr(config, "rope_parameters", None) or {}
    parts = [found, *(part for part in found.values() if isinstance(part, dict))]
    return {str(part.get("rope_type", "default")) for part in parts}


def keys_at(model: Any, first: int) -> dict[int, torch.Tensor]:
    """Keys `[H, 2, D]` by layer of the same two tokens, the first of them at position `first`."""
    cache = DynamicCache(config=model.config)
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    places = torch.arange(first, first + 2, device=model.device)[None]
    model(ids, **{cache_argument(model): cache}, use_cache=True, position_ids=places)
    layers = ((number, getattr(layer, "keys", None)) for number, layer in enumerate(cache.layers))
    return {number: keys[0] for number, keys in layers if keys is not None and keys.numel()}


def are_same(rotation: ModelRotation, near: dict[int, torch.Tensor], far: dict[int, torch.Tensor], layer: int) -> bool:
    """Whether keys of the same tokens are the same once both are turned back, and were not before."""
    places = torch.arange(2).expand(len(near[layer]), -1)
    one, other = rotation.undone(near[layer], places, layer), rotation.undone(far[layer], places + SHIFT, layer)
    return are_near(one, other, near[layer])


def are_near(one: torch.Tensor, other: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether two ways to compute keys of the size of `keys` differ by rounding at most."""
    return bool((one - other).abs().max() <= TOLERANCE * max(1.0, float(keys.abs().max())))


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

    Such a model can compute beyond the positions that it was trained for, as long as its cache keeps the rows that
    attention reads at near positions (Xiao et al., 2023, streaming language models).
    """
    if not rope_types(model.config.get_text_config()) <= FIXED_FREQUENCIES:
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
    near, far = keys_at(model, 0), keys_at(model, SHIFT)
    for layer, keys in near.items():
        if keys.shape[-1] != 2 * len(frequencies) or not are_near(rotation.rotate(keys, SHIFT), far[layer], keys):
            raise refusal
    return rotation
