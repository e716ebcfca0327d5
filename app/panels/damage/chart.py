"""The charts of codec damage: maps of errors, bars of divergence, and the numbers below them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.draw import grid
from app.draw.format import brief, byte_share, bytes_words, counted, divergence_words, exact, percent
from app.draw.grid import ValueGrid
from app.kit.chart.bars import Bar, BarRow, BarTable
from app.kit.facts import Reading
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.codec import Coding
from engine.wire.measurements import DamageMap, TensorDamage


def error_grids(found: DamageMap, geometry: CacheGeometry | None, *, by_token: bool) -> tuple[ValueGrid, ValueGrid]:
    """The relative errors of K and of V by layer and head, across tokens or channels."""
    return (
        _error_grid(found, "K", found.keys, geometry, by_token=by_token),
        _error_grid(found, "V", found.values, geometry, by_token=by_token),
    )


def _error_grid(
    found: DamageMap, name: str, part: TensorDamage, geometry: CacheGeometry | None, *, by_token: bool
) -> ValueGrid:
    values = part.by_token if by_token else part.by_channel
    sizes = []
    for index in found.layers:
        layer = layer_of(geometry, index)
        heads, width = values.shape[1], values.shape[2]
        if layer is not None:
            heads = layer.num_kv_heads
            width = width if by_token else layer.key_dim if name == "K" else layer.value_dim
        sizes.append((heads, width))
    per_column, stop = (found.tokens_per_column, found.num_rows) if by_token else (1, values.shape[2])
    coding = found.request.codec.keys if name == "K" else found.request.codec.values
    title = f"{name} {coding.label} · relative RMS error"
    return replace(
        grid.grid(title, values, found.layers, tuple(sizes), per_column, stop), blank_words=blank_words(coding)
    )


def blank_words(coding: Coding) -> tuple[str, ...]:
    """Why rows of that codec have no error: only KIVI keeps a residual exactly."""
    if coding.is_kivi:
        return "kept exact: residual", "kept exact", "exact"
    return ("not coded: exact", "exact") if coding.is_exact else ("no error",)


def attention_grid(found: DamageMap) -> ValueGrid:
    """Total variation of the newest attention row, by layer and query head."""
    shown = found.attention[:, None, :] if found.attention.size else found.attention.reshape(0, 1, 0)
    layers = found.layers[: shown.shape[0]]
    sizes = tuple((1, shown.shape[2]) for _ in layers)
    return grid.grid("attention row, total variation", shown, layers, sizes, 1, shown.shape[2])


def layer_of(geometry: CacheGeometry | None, index: int) -> LayerGeometry | None:
    return next((layer for layer in geometry.layers if layer.index == index), None) if geometry is not None else None


def kl_table(found: DamageMap, chosen: int) -> BarTable:
    """The KL with all layers coded, then with each layer alone, on one linear scale; the `chosen` layer is
    highlighted."""
    values = [(None, found.kl), *zip(found.layers, (float(kl) for kl in found.kl_by_layer), strict=True)]
    most = max((kl for _, kl in values if np.isfinite(kl)), default=0.0)
    return BarTable(("KL in nats, one layer coded",), tuple(_kl_row(layer, kl, most, chosen) for layer, kl in values))


def _kl_row(layer: int | None, kl: float, most: float, chosen: int) -> BarRow:
    share = min(kl / most, 1.0) if most > 0 and kl == kl else 0.0
    role = "accent" if layer is None else "selected" if layer == chosen else "page_used"
    number = divergence_words(kl).removesuffix(" nats")
    whose = "every layer coded" if layer is None else f"layer {layer} alone"
    name = "all" if layer is None else f"L{layer}"
    tip = f"{whose}: KL {brief(kl, 9)} nats"
    return BarRow(name, (Bar(share, number, role),), tip, key=layer, is_marked=layer == chosen)


def numbers(found: DamageMap) -> tuple[Reading, ...]:
    """The divergence, the largest error and the bytes."""
    worst = max(float(found.keys.max_abs.max(initial=0)), float(found.values.max_abs.max(initial=0)))
    share, size = byte_share(found.exact_bytes, found.kv_bytes), bytes_words(found.exact_bytes, found.kv_bytes)
    kl_tip = f"KL of the next token with every layer coded: {brief(found.kl, 9)} nats"
    sizes = counted(found.exact_bytes, "byte"), counted(found.kv_bytes, "byte")
    size_tip = "{} → {} with scales and exact residual".format(*sizes)
    worst_tip = f"The largest absolute error of any number of K or V: {brief(worst, 9)}"
    return (
        Reading("KL, all layers coded", "KL, all", divergence_words(found.kl), kl_tip),
        Reading("largest error", "max |Δ|", brief(worst), worst_tip),
        Reading(f"exact → coded, {share}", share, size, size_tip),
    )


def error_words(value: float) -> str:
    """An error as a percentage and exactly: `3.21 % (0.032148)`."""
    return f"{percent(value)} ({exact(value)})"
