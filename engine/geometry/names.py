"""The names of layers: short in pictures, in words elsewhere. Cross layers are numbered separately."""

from __future__ import annotations

from engine.geometry.dimensions import CacheGeometry


def layer_label(geometry: CacheGeometry | None, index: int) -> str:
    """`L3`, or `X1` for the cross layer of block 1."""
    block = cross_block(geometry, index)
    return f"L{index}" if block is None else f"X{block}"


def layer_words(geometry: CacheGeometry | None, index: int) -> str:
    """`layer 3`, or `cross layer 1`."""
    block = cross_block(geometry, index)
    return f"layer {index}" if block is None else f"cross layer {block}"


def cross_block(geometry: CacheGeometry | None, index: int) -> int | None:
    """The block of a cross layer; None for any other layer."""
    if geometry is None or not 0 <= index < len(geometry.layers) or geometry.layers[index].kind != "cross":
        return None
    return index - geometry.num_blocks
