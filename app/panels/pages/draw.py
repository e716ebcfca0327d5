"""The page pool as one image: one cell per page, or per run of pages if there are more pages than pixels.

All measures are device pixels. The cell's colour depends on the mode; its shape shows the same without colour: a bar as
high as the page is full, a notch for shared, a frame for unused, a bar at the bottom for a copy on the host. Colour
indices ascend with importance, so that of pages sharing a pixel the most important one is shown.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.colormap import Pixels, blend, rgb
from engine.wire.pages import PAGE_DTYPE, PageCell, PageMap

Mode = Literal["state", "owner", "age", "refs"]
Codes = npt.NDArray[np.uint8]

CLEAR, FREE, NULL, CACHED, KEPT, FIRST = range(6)  # colour indices; those from FIRST on belong to the mode
NUM_OWNER_COLORS, NUM_AGES, NUM_REFS = 8, 24, 4
PLAIN, UPRIGHT, LEVEL, DOTTED, NOTCHED, FRAMED, EMPTY = range(7)  # shapes; the first four distinguish owners
LEAST_SHAPED = 7  # pixels: smaller cells show neither shape nor fill
_OWNER_SHAPES = 4
# As numpy bytes: comparing an array with an enum would compare Python objects, a million times.
_USED, _SHARED, _CACHED, _KEPT = (
    np.uint8(int(cell)) for cell in (PageCell.USED, PageCell.SHARED, PageCell.CACHED, PageCell.KEPT)
)
# Colour index by state, and level by age; 256 entries each, as `bytes.translate` needs.
_STATE_CODES = np.array([FREE, FIRST, FIRST + 1, CACHED, NULL, KEPT] + [CLEAR] * 250, np.uint8)
_AGE_LEVELS = np.array([max(0, NUM_AGES - 1 - int(3 * np.log2(1 + age))) for age in range(256)], np.uint8)


class GridColors(Struct, frozen=True):
    """The colours of the grid as `#rrggbb`."""

    free: str
    used: str
    shared: str
    cached: str
    kept: str
    host: str
    null: str
    ink: str
    young: str
    owners: tuple[str, ...]


class GridLayout(Struct, frozen=True):
    """Cells of `pitch` pixels, `gap` of these between neighbours, in rows; each cell stands for `per_cell` pages."""

    num_pages: int
    columns: int
    rows: int
    pitch: int
    gap: int
    per_cell: int

    @property
    def width(self) -> int:
        return self.columns * self.pitch

    @property
    def height(self) -> int:
        return self.rows * self.pitch

    def rect(self, page_id: int) -> tuple[int, int, int, int]:
        """`x, y, width, height` of a page's cell."""
        row, column = divmod(page_id // self.per_cell, self.columns)
        side = self.pitch - self.gap
        return column * self.pitch, row * self.pitch, side, side

    def hit(self, x: float, y: float) -> int | None:
        """The page at a point, the first of a run; None outside the grid."""
        column, row = int(x // self.pitch), int(y // self.pitch)
        if not (0 <= column < self.columns and 0 <= row < self.rows):
            return None
        page_id = (row * self.columns + column) * self.per_cell
        return page_id if page_id < self.num_pages else None


class PoolArrays:
    """One pool as one array per field, updated block by block: a step costs O(changed blocks)."""

    def __init__(self) -> None:
        self._blocks: tuple[npt.NDArray[np.void], ...] = ()
        self._fields: dict[str, npt.NDArray[np.generic]] = {}
        self.num_pages = 0
        self.page_size = 1

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        return self._fields[name]  # type: ignore[return-value]

    def follow(self, pool: PageMap) -> None:
        """Copy the blocks that have changed; an unchanged block is the same object in every record."""
        if pool.num_pages != self.num_pages or len(pool.blocks) != len(self._blocks):
            self.num_pages, self._blocks = pool.num_pages, ()
            self._fields = {name: np.zeros(pool.num_pages, PAGE_DTYPE[name]) for name in PAGE_DTYPE.names or ()}
        self.page_size = pool.page_size
        start = 0
        for number, block in enumerate(pool.blocks):
            if number >= len(self._blocks) or self._blocks[number] is not block:
                for name, values in self._fields.items():
                    values[start : start + len(block)] = block[name]
            start += len(block)
        self._blocks = pool.blocks


def arrange(num_pages: int, width: int, height: int, largest: int) -> GridLayout:
    """The layout with the largest square cells that fit; with several pages per pixel if there are more than pixels."""
    width, height = max(width, 1), max(height, 1)
    pitch = max(1, min(largest, width, height, int((width * height / max(num_pages, 1)) ** 0.5)))
    while pitch > 1 and (width // pitch) * (height // pitch) < num_pages:
        pitch -= 1
    per_cell = -(-num_pages // ((width // pitch) * (height // pitch)))
    num_cells = -(-num_pages // per_cell)
    columns = min(width // pitch, num_cells)
    even = columns - columns % 16  # rows of a round number of pages are easier to count
    if even >= 32 and -(-num_cells // even) * pitch <= height:
        columns = even
    gap = 2 if pitch >= 9 else 1 if pitch >= 4 else 0
    return GridLayout(num_pages, columns, -(-num_cells // columns), pitch, gap, per_cell)


def color_codes(pool: PoolArrays, mode: Mode, step: int) -> Codes:
    """A colour index for every page."""
    state = pool["state"]
    codes = _mapped(state, _STATE_CODES)
    if mode == "state":
        return codes
    is_held = (state == _USED) | (state == _SHARED)
    if mode == "owner":  # a kept page has no live owner
        own = (pool["owner"] & (NUM_OWNER_COLORS - 1)).astype(np.uint8)
    elif mode == "refs":
        is_held |= state == _KEPT
        own = (np.minimum(pool["ref_count"], NUM_REFS) - 1).astype(np.uint8)
    else:
        is_held |= (state == _CACHED) | (state == _KEPT)
        own = age_level(step - pool["step"])
    np.copyto(codes, own + np.uint8(FIRST), where=is_held)
    return codes


def age_level(age: npt.NDArray[np.int64]) -> Codes:
    """Levels for the steps since a page was touched, on a logarithmic scale: the most recent is the highest."""
    return _mapped(np.clip(age, 0, 255), _AGE_LEVELS)


def _mapped(values: npt.NDArray[np.generic], table: Codes) -> Codes:
    """`table[values]` for values below 256; `bytes.translate` takes a tenth of the time of array indexing."""
    translated = bytearray(values.astype(np.uint8).tobytes().translate(table.tobytes()))
    return np.frombuffer(translated, np.uint8)


def shapes(pool: PoolArrays, mode: Mode) -> Codes:
    """A shape for every page."""
    state = pool["state"]
    found = np.take(np.array([EMPTY, PLAIN, NOTCHED, FRAMED, EMPTY, DOTTED], np.uint8), state)
    if mode == "owner":
        is_used = state == _USED
        found[is_used] = pool["owner"][is_used] % _OWNER_SHAPES
    return found


def paint(layout: GridLayout, pool: PoolArrays, mode: Mode, step: int, colors: GridColors) -> Pixels:
    """The pool as one picture `[height, width]`, 0xAARRGGBB; gaps are transparent."""
    codes = color_codes(pool, mode, step)
    table = palette(mode, colors)
    if layout.pitch < LEAST_SHAPED:
        return _paint_small(layout, codes, table)
    side = layout.pitch - layout.gap
    # a page with a single token shows one line, and a page that is not full lacks at least one
    fill = -(-pool["fill"].astype(np.int64) * side // pool.page_size)
    fill = np.where(pool["fill"] < pool.page_size, np.minimum(fill, side - 1), side)
    key = ((codes.astype(np.int64) * 8 + shapes(pool, mode)) * (side + 1) + fill) * 2 + pool["on_host"]
    present = np.flatnonzero(np.bincount(key))
    drawn = np.stack([_cell(layout.pitch, layout.gap, int(k)) for k in present])
    number = np.zeros(int(present[-1]) + 1, np.intp)
    number[present] = np.arange(len(present))
    cells = np.zeros((layout.rows * layout.columns, layout.pitch, layout.pitch), np.uint8)
    cells[: layout.num_pages] = drawn[number[key]]
    grid = cells.reshape(layout.rows, layout.columns, layout.pitch, layout.pitch).swapaxes(1, 2)
    return table[grid.reshape(layout.height, layout.width)]


@lru_cache(maxsize=16)
def palette(mode: Mode, colors: GridColors) -> Pixels:
    """256 colour words: at the indices above the colours, 128 higher the ink for shapes on each, and last that of the
    copy on the host."""
    own: list[str] = {
        "state": [colors.used, colors.shared],
        "owner": list(colors.owners),
        "refs": _ramp(colors.used, colors.young, NUM_REFS),
        "age": _ramp(colors.free, colors.young, NUM_AGES + 3)[3:],
    }[mode]
    table = np.zeros(256, np.uint32)
    for index, color in enumerate([colors.free, colors.null, colors.cached, colors.kept, *own], FREE):
        table[index] = _word(color)
        table[index + _INK] = _word(_ramp(color, colors.ink, 7)[3])
    table[CACHED + _INK] = _word(_ramp(colors.cached, colors.free, 5)[3])
    table[_HOST] = _word(colors.host)
    return table


_INK, _HOST = 128, 255


def _paint_small(layout: GridLayout, codes: Codes, table: Pixels) -> Pixels:
    cells = np.zeros(layout.rows * layout.columns * layout.per_cell, np.uint8)
    cells[: len(codes)] = codes
    # the null page has the lowest importance: in a run with others it is not shown
    most = cells[:: layout.per_cell].copy()
    for offset in range(1, layout.per_cell):  # far faster than reducing over such a short axis
        np.maximum(most, cells[offset :: layout.per_cell], out=most)
    grid = most.reshape(layout.rows, layout.columns)
    picture: Pixels = table[grid]
    if layout.pitch == 1:
        return picture
    picture = picture.repeat(layout.pitch, axis=0).repeat(layout.pitch, axis=1)
    for offset in range(layout.pitch - layout.gap, layout.pitch):
        picture[offset :: layout.pitch] = 0
        picture[:, offset :: layout.pitch] = 0
    return picture


@lru_cache(maxsize=4096)
def _cell(pitch: int, gap: int, key: int) -> Codes:
    """One cell as palette indices, `[pitch, pitch]`."""
    side = pitch - gap
    key, is_on_host = divmod(key, 2)
    key, fill = divmod(key, side + 1)
    color, shape = divmod(key, 8)
    pixels = np.zeros((pitch, pitch), np.uint8)
    cell = pixels[:side, :side]
    cell[:] = FREE
    ink = color + _INK
    if shape == EMPTY:
        if color == NULL:
            cell[:] = CLEAR
            cell[np.eye(side, dtype=bool)[::-1]] = NULL  # struck out: never belongs to a sequence
            cell[[0, -1], :] = cell[:, [0, -1]] = NULL
    else:
        body = cell[side - fill :]
        body[:] = color
        _mark(body, cell, shape, ink)
    if is_on_host:
        cell[-max(2, side // 6) :] = _HOST
    return pixels


def _mark(body: Codes, cell: Codes, shape: int, ink: int) -> None:
    """Draw a shape on the filled part of a cell."""
    side = len(cell)
    if shape == FRAMED:
        body[1:-1, 1:-1] = ink
    elif shape == NOTCHED:
        size = max(3, side // 2)
        top = body[:size, -size:]
        top[np.triu(np.ones((size, size), bool))[: len(top)]] = ink
    elif shape == UPRIGHT:
        body[:, 1::3] = ink
    elif shape == LEVEL:
        body[1::3] = ink
    elif shape == DOTTED:
        body[1::3, 1::3] = ink


def _ramp(start: str, end: str, count: int) -> list[str]:
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in blend((start, end), count)]


def _word(color: str) -> int:
    red, green, blue = rgb(color)
    return 0xFF000000 | red << 16 | green << 8 | blue
