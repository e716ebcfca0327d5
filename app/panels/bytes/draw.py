"""The memory ledger: from the bytes predicted by the formula to those of the process, with a name for every
difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from engine.wire.records import CacheBytes, LayerBytes

FigureKey = Literal[
    "predicted", "beyond_formula", "below_formula", "stored", "named", "unnamed", "reserved", "looking", "kept",
    "weights", "other", "allocator", "rest", "process", "peak", "device",
]  # fmt: skip
BytesPart = Literal["stored", "reserved", "transient", "looking"]


class LedgerLine(Struct, frozen=True):
    """One line. `is_gap`: the difference between the lines around it; `is_within`: a part of the line above;
    `num_bytes` None: unknown. `name` is the engine's name of a `named` gap."""

    key: FigureKey
    num_bytes: int | None
    is_gap: bool = False
    is_within: bool = False
    name: str = ""
    part: BytesPart | None = None


class LayerBar(Struct, frozen=True):
    """One layer as fractions of the largest: stored within reserved, beside predicted.

    `pieces` split the stored bytes, from the bottom up: those of tokens, then those with a name of their own.
    """

    layer: int
    kind: str
    stored: float
    reserved: float
    predicted: float
    pieces: tuple[float, ...]
    source: LayerBytes
    name: str


class LayerTable(Struct, frozen=True):
    """Every layer in numbers. `names` are the columns between formula and reserved: `stored` parts, `reserved` ones,
    then `transient` ones, which are in no sum: as they do not live at the same time, their maximum counts. Each row and
    `total` have one number per column."""

    names: tuple[tuple[str, BytesPart], ...]
    rows: tuple[tuple[LayerBytes, tuple[int, ...]], ...]
    total: tuple[int, ...]


def ledger(held: CacheBytes) -> tuple[LedgerLine, ...]:
    """The lines: predicted, stored, reserved, held for looking, allocator, process, and the differences between them.

    stored + gaps = reserved; a gap without a name is a line of its own and never left out.
    """
    lines: list[LedgerLine] = [LedgerLine("predicted", held.predicted)]
    difference = held.stored - held.predicted
    if difference:
        lines.append(LedgerLine("beyond_formula" if difference > 0 else "below_formula", difference, is_gap=True))
    lines += [LedgerLine("stored", held.stored), *_named(held, "stored")]
    room = _named(held, "reserved")
    unnamed = held.reserved - held.stored - sum(entry.num_bytes or 0 for entry in room)
    lines += room
    if unnamed:
        lines.append(LedgerLine("unnamed", unnamed, is_gap=True))
    lines.append(LedgerLine("reserved", held.reserved))
    copied = max((_of(layer, "transient") for layer in held.layers), default=0)
    if copied:
        name = next(gap.name for layer in held.layers for gap in layer.gaps if gap.part == "transient")
        lines.append(LedgerLine("named", copied, name=name, part="transient"))
    lines += [LedgerLine("looking", held.looking), *_named(held, "looking")]
    lines += [LedgerLine("kept", held.kept, is_within=True)] if held.kept else []
    lines += [LedgerLine("weights", held.weights)] if held.weights else []
    return (*lines, *_memory(held))


def _memory(held: CacheBytes) -> list[LedgerLine]:
    """What allocator and process hold, and what of it is in no line above: workspace of forwards, and for a process the
    program and its libraries. Then the peak since the step before, and the use of the device by all programs."""
    known = held.reserved + held.looking + held.weights
    lines: list[LedgerLine] = []
    if held.allocator is not None:
        lines.append(LedgerLine("other", held.allocator - known, is_gap=True))
    elif held.process > known:
        lines.append(LedgerLine("rest", held.process - known, is_gap=True))
    # a process never holds 0 bytes: 0 is in records that were not measured, such as those of a foreign file
    lines += [LedgerLine("allocator", held.allocator), LedgerLine("process", held.process or None)]
    lines += [LedgerLine("peak", held.peak)] if held.peak is not None else []
    return lines + ([LedgerLine("device", held.device)] if held.device is not None else [])


def _named(held: CacheBytes, part: BytesPart) -> list[LedgerLine]:
    """The gaps of a part by name, summed over layers, in the order in which layers name them."""
    sums: dict[str, int] = {}
    for gap in (gap for layer in held.layers for gap in layer.gaps if gap.part == part):
        sums[gap.name] = sums.get(gap.name, 0) + gap.num_bytes
    is_gap = part == "reserved"
    return [LedgerLine("named", n, is_gap, not is_gap, name, part) for name, n in sums.items()]


def _of(layer: LayerBytes, part: BytesPart) -> int:
    return sum(gap.num_bytes for gap in layer.gaps if gap.part == part)


def within(layers: Iterable[LayerBytes]) -> tuple[str, ...]:
    """The names of stored bytes that are not numbers of tokens, in the order of a bar's pieces."""
    return tuple(dict.fromkeys(gap.name for layer in layers for gap in layer.gaps if gap.part == "stored"))


def layer_name(layer: LayerBytes, held: CacheBytes) -> str:
    """`L3`, or `X1` for a cross layer; cross layers come after all others."""
    num_own = sum(one.kind != "cross" for one in held.layers)
    return f"X{layer.layer - num_own}" if layer.kind == "cross" else f"L{layer.layer}"


def layer_bars(held: CacheBytes) -> tuple[LayerBar, ...]:
    most = max((max(layer.reserved, layer.stored, layer.predicted) for layer in held.layers), default=0)
    names = within(held.layers)
    return tuple(_bar(layer, layer_name(layer, held), max(most, 1), names) for layer in held.layers)


def _bar(layer: LayerBytes, name: str, most: int, names: tuple[str, ...]) -> LayerBar:
    parts = [sum(gap.num_bytes for gap in layer.gaps if gap.name == name and gap.part == "stored") for name in names]
    return LayerBar(
        layer=layer.layer,
        kind=layer.kind,
        stored=layer.stored / most,
        reserved=layer.reserved / most,
        predicted=layer.predicted / most,
        pieces=tuple(part / most for part in (layer.stored - sum(parts), *parts)),
        source=layer,
        name=name,
    )


class BarColors(Struct, frozen=True):
    """0xAARRGGBB of reserved bytes, of the pieces of stored ones (bottom up), and of the formula's line."""

    reserved: int
    pieces: tuple[int, ...]
    formula: int


def paint_bars(
    bars: Sequence[LayerBar], width: int, height: int, pitch: float, gap: int, colors: BarColors
) -> npt.NDArray[np.uint32]:
    """`[height, width]`: one bar per `pitch` pixels, stored bytes within reserved ones, on transparent ground."""
    pixels = np.zeros((height, width), dtype=np.uint32)
    for index, bar in enumerate(bars):
        left = round(index * pitch)
        column = pixels[:, left : max(round((index + 1) * pitch) - gap, left + 1)]
        column[height - round(height * bar.reserved) :] = colors.reserved
        foot = float(height)
        for piece, color in zip(bar.pieces, colors.pieces, strict=False):
            tall = max(height * piece, 1.0) if piece > 0 else 0.0  # at least one pixel, if not zero
            column[max(0, round(foot - tall)) : round(foot)] = color
            foot -= tall
        at = max(0, height - round(height * bar.predicted) - 1)  # just above a bar of the same height
        column[at : at + max(1, gap // 4)] = colors.formula
    return pixels


def layer_table(held: CacheBytes) -> LayerTable:
    """Formula, stored with its parts, every named gap, reserved, and the transient bytes while attention runs."""
    order: tuple[BytesPart, ...] = ("stored", "reserved", "transient")
    names = tuple(
        dict.fromkeys(
            (gap.name, gap.part) for part in order for layer in held.layers for gap in layer.gaps if gap.part == part
        )
    )
    rows = tuple((layer, _numbers(layer, names)) for layer in held.layers)
    columns = [[numbers[i] for _, numbers in rows] for i in range(len(names) + 3)]
    is_brief = [False, False, *(part == "transient" for _, part in names), False]
    total = tuple(max(c, default=0) if brief else sum(c) for c, brief in zip(columns, is_brief, strict=True))
    return LayerTable(names, rows, total)


def _numbers(layer: LayerBytes, names: tuple[tuple[str, BytesPart], ...]) -> tuple[int, ...]:
    gaps = {(gap.name, gap.part): gap.num_bytes for gap in layer.gaps}
    return layer.predicted, layer.stored, *(gaps.get(name, 0) for name in names), layer.reserved
