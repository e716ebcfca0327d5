"""The loaded model: its geometry, the labels of its layers, and how many tokens its encoder read."""

from __future__ import annotations

from app.models import Models
from engine.geometry import names
from engine.geometry.dimensions import CacheGeometry
from engine.predict import capacity


def geometry_of(models: Models) -> CacheGeometry | None:
    """The cache geometry of the loaded model; None without a model."""
    model = models.status.model
    return model.geometry if model is not None else None


def num_source(models: Models) -> int:
    """How many tokens at the beginning of the selected sequence were read by an encoder; 0 for a model without one."""
    geometry, now = geometry_of(models), models.selection.now
    part = models.timeline.part(now.seq_id, now.step) if geometry is not None and geometry.has_encoder else None
    return 0 if geometry is None or part is None else capacity.num_source(geometry, part.num_prompt_tokens)


def layer_label(models: Models, index: int) -> str:
    """`L3`, or `X1` for a cross layer."""
    return names.layer_label(geometry_of(models), index)


def layer_words(models: Models, index: int) -> str:
    """`layer 3`, or `cross layer 1`; `layer 3 on cuda:1` where layers stand on several devices."""
    words, model = names.layer_words(geometry_of(models), index), models.status.model
    devices = model.layer_devices if model is not None else ()
    return f"{words} on {devices[index]}" if index < len(devices) else words
