"""The cache wall: arranges a small picture for every layer and kv head, paints them as one picture, and finds the
layer, head and position at a pixel; the colour range of each layer, and which heads have values far beyond it.

Layers go down and heads across, as long as the pictures remain readable; many heads wrap into several lines, many
layers into blocks side by side. All measures are device pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw.axis import Flags
from app.draw.colormap import ColorScale, Floats, Pixels, larger, packed
from app.draw.format import brief, decimal, times
from app.draw.ghost import Hatch, foot, lines, outside_held, shares
from app.draw.grid import cell_at, cell_span, first_cells, resample, source_cells
from engine.spec.lenses import LENSES
from engine.wire.pictures import WallPicture

_GOOD_WIDTH, _GOOD_HEIGHT = 110, 22
_LEAST_WIDTH, _LEAST_HEIGHT = 12, 6
_MAX_BLOCKS = 4
_FOLD_COST = 0.9


class WallRow(Struct, frozen=True):
    """One layer of the wall. A layer without small pictures shows its `note`.

    `dims` is the width of its rows; None if it is not known. `name` is its label; None: its number. Its small pictures
    are numbered from `first_head` on: those of states follow the heads with rows.
    """

    layer: int
    num_heads: int
    note: str = ""
    dims: int | None = None
    name: str | None = None
    first_head: int = 0

    @property
    def label(self) -> str:
        return f"L{self.layer}" if self.name is None else self.name


class Margins(Struct, frozen=True):
    """Space for labels: `left` of every line, `top` of every block; `note`, the height of a row with a note."""

    left: int
    top: int
    gap: int
    block_gap: int
    note: int


class SmallPicture(Struct, frozen=True):
    """One small picture: layer, kv head and rectangle."""

    layer: int
    kv_head: int
    x: int
    y: int
    width: int
    height: int


class RowLabel(Struct, frozen=True):
    """A line's label: its layer and name, its first head if the layer has several lines, and its place.
    `is_beside_rows`: it is the line of a recurrent state of a layer that has rows as well."""

    layer: int
    first_head: int
    x: int
    y: int
    height: int
    note: str
    name: str = ""
    is_beside_rows: bool = False


class WallLayout(Struct, frozen=True):
    """The places of all small pictures and labels. `header`: `(head, x, width)` of the columns, if each is one head."""

    width: int
    height: int
    picture_width: int
    picture_height: int
    pictures: tuple[SmallPicture, ...]
    labels: tuple[RowLabel, ...]
    header: tuple[tuple[int, int, int], ...]

    def picture_of(self, layer: int, kv_head: int) -> SmallPicture | None:
        return next((small for small in self.pictures if (small.layer, small.kv_head) == (layer, kv_head)), None)

    def hit(self, x: float, y: float) -> SmallPicture | None:
        """The small picture at a point; None if there is none."""
        for small in self.pictures:
            if small.x <= x < small.x + small.width and small.y <= y < small.y + small.height:
                return small
        return None


def arrange(rows: Sequence[WallRow], width: int, height: int, margins: Margins) -> WallLayout:
    """Choose the arrangement whose small pictures come nearest to a good size; it is higher than `height` if
    necessary."""
    most = max((row.num_heads for row in rows), default=0)
    # all heads of a layer in one line, in two, in three …
    lengths = sorted({-(-most // lines) for lines in range(1, most + 1)}, reverse=True) or [1]
    made = (
        _Arrangement(rows, width, height, margins, blocks, per_line)
        for blocks in range(1, _MAX_BLOCKS + 1)
        for per_line in lengths
    )
    return max(made, key=_Arrangement.score).layout()


def cell_values(picture: WallPicture, rows: Sequence[WallRow]) -> tuple[Floats, Flags]:
    """`[L, H_kv, columns, rows]`: each cell's value farthest from zero, and which cells are empty because the layer has
    no rows there. These are NaN as well, but no computation failed."""
    values = larger(picture.low, picture.high)
    absent = np.zeros(values.shape, dtype=np.bool_)
    known = {row.layer: row for row in rows if row.first_head == 0}
    for index, layer in enumerate(picture.layers):
        row = known.get(layer, WallRow(layer, picture.heads[index]))
        if row.dims is not None:
            absent[index, :, :, -(-row.dims // picture.dims_per_row) :] = True
    absent |= (shares(outside_held(picture), picture.tokens_per_column, picture.num_tokens) >= 1)[:, None, :, None]
    if picture.absent is not None:
        absent |= (ghost_shares(picture) >= 1)[..., None]
    return values, absent


def ghost_shares(picture: WallPicture) -> Floats:
    """`[L, H_kv, columns]`: the fraction of each column's rows that a head has evicted, 0 … 1."""
    if picture.absent is None:
        return np.zeros(picture.low.shape[:3], dtype=np.float32)
    return shares(picture.absent, picture.tokens_per_column, picture.num_tokens)


def paint(
    layout: WallLayout,
    picture: WallPicture,
    values: Floats,
    absent: Flags,
    limits: Floats,
    scale: ColorScale,
    hatch: Hatch | None = None,
    far: int | None = None,
) -> Pixels:
    """All small pictures as one picture `[height, width]`, 0xAARRGGBB. Gaps and empty cells are transparent, evicted
    rows are hatched. Cells beyond `FAR` times the range get the colour `far`, which is in no table: otherwise they
    would look like any clipped value."""
    pixels = np.zeros((layout.height, layout.width), dtype=np.uint32)
    if not values.size:
        return pixels
    colours = _colours(layout, values, absent, limits, scale, far)  # [L, H_kv, rows, columns]
    num_heads, num_rows, num_columns = colours.shape[1:]
    lines_of_cells = np.zeros((colours.size // num_columns + 1, num_columns), dtype=np.uint32)
    lines_of_cells[1:] = colours.reshape(-1, num_columns)  # line 0 stays transparent, for the gaps
    wide = lines_of_cells.take(source_cells(num_columns, layout.picture_width), axis=1)
    rows = source_cells(num_rows, layout.picture_height) + 1
    held = list(_held(layout, picture))
    # A whole column of small pictures is assembled at once: many small copies take longer than the pixels.
    for x in {small.x for small, _ in held}:
        shown = np.zeros(layout.height, dtype=np.intp)
        for small, index in held:
            if small.x == x:
                shown[small.y : small.y + small.height] = (index * num_heads + small.kv_head) * num_rows + rows
        pixels[:, x : x + layout.picture_width] = wide.take(shown, axis=0)
    if picture.absent is not None and hatch is not None:
        _hatch(pixels, held, ghost_shares(picture), hatch)
    return pixels


def _held(layout: WallLayout, picture: WallPicture) -> Iterator[tuple[SmallPicture, int]]:
    """The small pictures that the picture has data for, each with the index of its layer in the picture."""
    row_of = {layer: index for index, layer in enumerate(picture.layers)}
    for small in layout.pictures:
        index = row_of.get(small.layer)
        if index is not None and small.kv_head < picture.heads[index]:
            yield small, index


def _hatch(pixels: Pixels, held: Sequence[tuple[SmallPicture, int]], ghosts: Floats, hatch: Hatch) -> None:
    """Draw the hatch of evicted rows over the small pictures."""
    for small, index in held:
        share = ghosts[index, small.kv_head]
        if share.any():
            is_hatched = lines(small.height, small.width, small.x, small.y, hatch.pitch)
            is_gone = foot(share.take(source_cells(share.size, small.width)), small.height)
            pixels[small.y : small.y + small.height, small.x : small.x + small.width][is_gone & is_hatched] = hatch.line


def position_at(small: SmallPicture, picture: WallPicture, x: float) -> int | None:
    """The first position of the column at `x` of a small picture; None if it has no columns."""
    columns = picture.low.shape[2]
    if not columns:
        return None
    column = cell_at(int(x) - small.x, columns, small.width)
    return min(column * picture.tokens_per_column, picture.num_tokens - 1)


def column_span(small: SmallPicture, picture: WallPicture, position: int) -> tuple[int, int] | None:
    """The x range `start … stop` of a position's column in a small picture; None if it has none."""
    columns = picture.low.shape[2]
    column = position // picture.tokens_per_column
    if not 0 <= column < columns:
        return None
    start, stop = cell_span(column, columns, small.width)
    return small.x + start, small.x + stop


def _colours(
    layout: WallLayout, values: Floats, absent: Flags, limits: Floats, scale: ColorScale, far: int | None
) -> Pixels:
    scaled: Floats = values / limits[:, None, None, None]
    has_gaps = bool(absent.any())
    if has_gaps:  # empty cells are NaN, which must not win where cells are pooled
        scaled[absent] = 0
    for axis, size in ((2, layout.picture_width), (3, layout.picture_height)):
        if scaled.shape[axis] > size:  # the picture was made for a larger window
            absent = np.logical_and.reduceat(absent, first_cells(absent.shape[axis], size), axis=axis)
            scaled = larger(*resample(scaled, scaled, size, axis))
    colours = np.take(packed(scale.table), scale.index(scaled, 1.0))
    # the extremes show in two passes whether a cell is far; NaN makes both comparisons false
    if far is not None and not (scaled.max(initial=0) <= FAR and scaled.min(initial=0) >= -FAR):
        colours[(np.abs(scaled) > FAR) & np.isfinite(scaled)] = far
    if has_gaps:
        colours[absent] = 0
    shown: Pixels = colours.transpose(0, 1, 3, 2)
    return shown


class _Arrangement(Struct, frozen=True, dict=True):
    """Rows in `blocks` side by side, with `per_line` heads in a line, in a space of `width` and `height`."""

    rows: Sequence[WallRow]
    width: int
    height: int
    margins: Margins
    blocks: int
    per_line: int

    def score(self) -> float:
        if self.blocks > max(1, len(self.rows)):
            return -1.0
        wide, tall = self._picture_size()
        if wide < _LEAST_WIDTH:
            return min(wide, 0) - self.blocks / 10
        most_heads = max(1, max((row.num_heads for row in self.rows), default=0))  # all rows may be notes
        most_lines = -(-most_heads // self.per_line)
        fit = min(wide / _GOOD_WIDTH, max(tall, 0) / _GOOD_HEIGHT, 1.0)
        fit *= most_heads / (most_lines * self.per_line)  # avoid half-empty lines
        return float(fit * _FOLD_COST ** (self.blocks - 1 + 0.5 * (most_lines - 1) ** 0.5))

    def layout(self) -> WallLayout:
        wide, tall = self._picture_size()
        wide, tall = max(1, wide), max(_LEAST_HEIGHT, tall)
        pictures: list[SmallPicture] = []
        labels: list[RowLabel] = []
        header: list[tuple[int, int, int]] = []
        bottom, margins = 0, self.margins
        for number, part in enumerate(self._parts):
            left = number * ((self.width + margins.block_gap) // self.blocks)
            y = self._top
            if not self._is_wrapped:
                first, pitch = left + margins.left, wide + margins.gap
                header += [(head, first + head * pitch, wide) for head in range(self.per_line)]
            for row in part:
                if not row.num_heads:
                    labels.append(RowLabel(row.layer, 0, left, y, margins.note, row.note, row.label))
                    y += margins.note + margins.gap
                for head in range(row.num_heads):
                    place = head % self.per_line
                    if place == 0:
                        is_state = row.first_head > 0
                        labels.append(RowLabel(row.layer, head, left, y, tall, row.note, row.label, is_state))
                    x = left + margins.left + place * (wide + margins.gap)
                    pictures.append(SmallPicture(row.layer, row.first_head + head, x, y, wide, tall))
                    if place == self.per_line - 1 or head == row.num_heads - 1:
                        y += tall + margins.gap
                y += margins.gap if row.num_heads > self.per_line else 0
            bottom = max(bottom, y)
        height = max(bottom - margins.gap, 1)
        return WallLayout(self.width, height, wide, tall, tuple(pictures), tuple(labels), tuple(header))

    def _picture_size(self) -> tuple[int, int]:
        margins = self.margins
        block_width = (self.width - (self.blocks - 1) * margins.block_gap) // self.blocks
        wide = (block_width - margins.left - (self.per_line - 1) * margins.gap) // self.per_line
        tall = min(self._room(part) for part in self._parts)
        return wide, tall

    def _room(self, rows: Sequence[WallRow]) -> int:
        """The height of a line of small pictures in a block, without gaps and rows of notes, which have their own."""
        margins, lines = self.margins, sum(-(-row.num_heads // self.per_line) for row in rows)
        noted = sum(margins.note + margins.gap for row in rows if not row.num_heads)
        wrapped = sum(margins.gap for row in rows if row.num_heads > self.per_line)
        fixed = noted + wrapped + margins.gap * max(0, lines - 1)
        return (self.height - self._top - fixed) // max(1, lines)

    @cached_property
    def _parts(self) -> list[Sequence[WallRow]]:
        """The rows of each block."""
        each = -(-len(self.rows) // self.blocks)
        starts = range(0, len(self.rows), max(1, each))
        return [self.rows[start : start + each] for start in starts] or [self.rows]

    @cached_property
    def _is_wrapped(self) -> bool:
        return any(row.num_heads > self.per_line for row in self.rows)

    @property
    def _top(self) -> int:
        """The height of the line with the heads' names, which wrapped lines do not have."""
        return self.margins.gap if self._is_wrapped else self.margins.top


# ---- colour ranges ---------------------------------------------------------------------------------------------------

LayerHeads = frozenset[tuple[int, int]]  # (layer, kv head)

FAR = 2.5  # multiple of the range: none of millions of normally distributed numbers is that large


def is_signed(picture: WallPicture) -> bool:
    """Whether the numbers of a picture may be below zero."""
    return picture.request.change or LENSES[picture.request.lens].is_signed


def layer_limits(picture: WallPicture) -> Floats:
    """`[L]`: the colour range of each layer, which the engine computes from all of its rows; 1 where all are zero. It
    does not depend on the cells, whose number changes with the panel's size."""
    if picture.magnitudes is None:
        return np.ones(len(picture.layers), np.float32)
    limits = picture.magnitudes.limit
    return np.where(limits > 0, limits, np.float32(1))


def times_range(picture: WallPicture) -> dict[int, float]:
    """For each layer, its largest magnitude as a multiple of its colour range; without layers where all are zero."""
    if picture.magnitudes is None:
        return {}
    ratios = picture.magnitudes.largest / layer_limits(picture)
    return {layer: float(ratio) for layer, ratio in zip(picture.layers, ratios, strict=True) if ratio > 0}


def farthest(picture: WallPicture) -> tuple[int, str, float] | None:
    """(layer, `K` or `V`, multiple of its range) of the value that is largest relative to its layer's range, of both
    tensors; None if there are no rows, or all are zero."""
    drawn, other = LENSES[picture.request.lens].label, "V" if picture.request.lens == "keys" else "K"
    found: list[tuple[int, str, float]] = []
    for name, magnitudes in ((drawn, picture.magnitudes), (other, picture.other_magnitudes)):
        ratios = times_range(replace(picture, magnitudes=magnitudes))
        found += [(layer, name, ratio) for layer, ratio in ratios.items()]
    return max(found, key=lambda one: one[2]) if found else None


def magnitude_words(picture: WallPicture, layer: int) -> str:
    """`max |K| 8.6 · 4.1× the range ±2.1 · 0.50 % of the layer beyond it`; empty for a layer without rows."""
    if picture.magnitudes is None or layer not in picture.layers:
        return ""
    index = picture.layers.index(layer)
    largest, limit = float(picture.magnitudes.largest[index]), float(layer_limits(picture)[index])
    name = LENSES[picture.request.lens].label.strip("|")
    if not largest:
        return f"no finite {name} other than zero"
    beyond = decimal(100 * float(picture.magnitudes.clipped[index]))
    of, reach = (f"|{name}|", "±") if is_signed(picture) else (LENSES[picture.request.lens].label, "0–")
    size = f"max {of} {brief(largest)} · {times(largest / limit)} the range {reach}{brief(limit)}"
    return f"{size} · {beyond} % of the layer beyond it"


def marked_heads(picture: WallPicture, values: Floats, absent: Flags) -> tuple[LayerHeads, LayerHeads]:
    """The small pictures with NaN or Inf, and those with a value far beyond the range, as (layer, kv head). Pooling
    keeps extremes, so none is missed."""
    held = np.where(absent, np.float32(0), values) if absent.any() else values
    highest, lowest = held.max(axis=(2, 3), initial=0), held.min(axis=(2, 3), initial=0)
    sizes = np.maximum(highest, -lowest)  # NaN if the small picture has one
    return _where(picture, ~np.isfinite(sizes)), _where(picture, sizes > FAR * layer_limits(picture)[:, None])


def _where(picture: WallPicture, is_marked: Flags) -> LayerHeads:
    return frozenset((picture.layers[i], int(head)) for i, head in np.argwhere(is_marked) if head < picture.heads[i])
