"""What the layers of the model at hand are called."""

from __future__ import annotations

from app.models import Models
from app.models.source import geometry_of
from engine.geometry import names


def layer_label(models: Models, index: int) -> str:
    """`L3`, or `X1` for a cross layer."""
    return names.layer_label(geometry_of(models), index)


def layer_words(models: Models, index: int) -> str:
    """`layer 3`, or `cross layer 1`; `layer 3 on cuda:1` where layers stand on several devices."""
    words, model = names.layer_words(geometry_of(models), index), models.status.model
    devices = model.layer_devices if model is not None else ()
    return f"{words} on {devices[index]}" if index < len(devices) else words
