"""The loaded model: its geometry, the labels of its layers, and how many tokens its encoder read."""

from __future__ import annotations

from app.models import Models
from engine.geometry.dimensions import CacheGeometry
from engine.predict import capacity
from engine.spec.lenses import LENSES


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
    geometry = geometry_of(models)
    return f"L{index}" if geometry is None else geometry.layer_label(index)


def layer_words(models: Models, index: int) -> str:
    """`layer 3`, or `cross layer 1`; `layer 3 on cuda:1` where layers stand on several devices."""
    model = models.status.model
    block = None if model is None else model.geometry.cross_block(index)
    words = f"layer {index}" if block is None else f"cross layer {block}"
    devices = model.layer_devices if model is not None else ()
    return f"{words} on {devices[index]}" if index < len(devices) else words


def head_of(models: Models, lens: str, layer: int, kv_head: int) -> int:
    """The head of a lens's picture that shows a kv head: of those that share it the one that was clicked, else the
    first."""
    shared, clicked = heads_shared(models, lens, layer), models.viewport.now.query_head
    return clicked if shared > 1 and clicked // shared == kv_head else kv_head * shared


def heads_shared(models: Models, lens: str, layer: int) -> int:
    """How many heads of a picture share a kv head: those of queries where a lens shows these, else 1."""
    geometry = geometry_of(models)
    if geometry is None or LENSES[lens].heads == "kv" or layer >= len(geometry.layers):
        return 1
    return max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))
