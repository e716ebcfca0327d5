"""The memory ledger: from what the formula says to what the process holds, every gap with a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.records import CacheBytes, LayerBytes

Key = Literal[
    "predicted", "beyond_formula", "below_formula", "stored", "slack", "reserved", "looking", "other", "allocator",
    "process",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One line. A gap is the difference between the lines around it; None is a number nobody can tell."""

    key: Key
    num_bytes: int | None
    is_gap: bool = False


@dataclass(frozen=True)
class LayerBar:
    """One layer as shares of the largest: what is stored, within what is reserved, beside what was predicted."""

    layer: int
    kind: str
    stored: float
    reserved: float
    predicted: float
    num_stored: int
    num_reserved: int


def ledger(held: CacheBytes) -> tuple[Entry, ...]:
    """Predicted, stored, reserved, held for looking, allocator, process, and between them what differs."""
    lines: list[Entry] = [Entry("predicted", held.predicted)]
    difference = held.stored - held.predicted
    if difference:
        lines.append(Entry("beyond_formula" if difference > 0 else "below_formula", difference, is_gap=True))
    lines += [
        Entry("stored", held.stored),
        Entry("slack", held.reserved - held.stored, is_gap=True),
        Entry("reserved", held.reserved),
        Entry("looking", held.looking),
    ]
    if held.allocator is not None:
        lines.append(Entry("other", held.allocator - held.reserved - held.looking, is_gap=True))
    return (*lines, Entry("allocator", held.allocator), Entry("process", held.process))


def layer_bars(held: CacheBytes) -> tuple[LayerBar, ...]:
    most = max((max(layer.reserved, layer.stored, layer.predicted) for layer in held.layers), default=0)
    return tuple(_bar(layer, max(most, 1)) for layer in held.layers)


def _bar(layer: LayerBytes, most: int) -> LayerBar:
    return LayerBar(
        layer=layer.layer,
        kind=layer.kind,
        stored=layer.stored / most,
        reserved=layer.reserved / most,
        predicted=layer.predicted / most,
        num_stored=layer.stored,
        num_reserved=layer.reserved,
    )
