"""What each lens shows of a layer: rows as they are, what `COMPUTE` makes of them, or the attention of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from msgspec import Struct

from engine.cache.stacking import stacked_view
from engine.look.source import ALL_ROWS, Difference, Held, Rows, Source, subtracted, within
from engine.spec.lenses import Lens

STACKED_NUMBERS = 1 << 21  # most numbers of several layers that are copied into one tensor

# Numbers [H, T, D] of one layer as a source gives them, their positions [H, T], source, and layer, to [H, T, values].
# What is made of a row must depend on that row and its position alone: rows come in pieces and with gaps between them,
# and only the cells of rows that a step has written are drawn again.
Compute = Callable[[torch.Tensor, torch.Tensor, Source, int], torch.Tensor]


def norm(numbers: torch.Tensor, positions: torch.Tensor, source: Source, layer: int) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.vector_norm(numbers, dim=-1, keepdim=True)
    return found


def before_rotation(numbers: torch.Tensor, positions: torch.Tensor, source: Source, layer: int) -> torch.Tensor:
    rotation = source.rotation
    assert not isinstance(rotation, str), "a source without one says why not"
    return rotation.undone(numbers, positions, layer)


COMPUTE: dict[str, Compute] = {"keys-norm": norm, "values-norm": norm, "keys-before-rotation": before_rotation}


def read(source: Source, lens: Lens, layer: int, span: range | None = None, head: int | None = None) -> Rows | None:
    """What a lens shows of a layer, `[H, T, values]`, of one head or all; consecutive rows only at the positions of
    `span`. None where the layer has none."""
    if lens.part is not None:
        rows = source.rows(layer, lens.part, span, head)
        if rows is None or lens.name not in COMPUTE:
            return rows
        return Rows(computed(lens, rows.numbers, rows.places, source, layer), rows.first, rows.positions)
    if isinstance(source, Difference):  # of attention, what is computed of each side is subtracted
        return subtracted(*(read(side, lens, layer, span, head) for side in (source.a, source.b)))
    if lens.values == "tokens":
        if source.queries is None or (head or 0) >= source.queries.num_heads(layer):
            return None
        return source.queries.map_of(layer, head or 0, source.num_queries, span)
    if lens.reads == "weights":
        return within(source.weights(layer), span, head)
    found = None if source.queries is None else source.queries.measured(lens.name, layer, source.num_queries)
    return within(found, span, head)


class RowsOfLayers(Struct, frozen=True, eq=False):
    """`Rows` `[L, H, T, D]` of some layers, which are these `places` among those that were asked for."""

    places: Sequence[int]
    numbers: torch.Tensor
    first: int
    positions: torch.Tensor | None = None  # [L, H, T]


def read_all(
    source: Source, lens: Lens, layers: list[int], held: Held, span: range | None = None, head: int | None = None
) -> Iterator[RowsOfLayers]:
    """`read` of layers that hold rows of one form, as `held` is, small ones together: for these the number of
    operations costs more than the numbers, for large ones the copy would."""
    if span and span.stop <= held.stop and lens.name == lens.part:
        num_numbers = len(layers) * held.num_heads * held.dim(lens.part) * len(span)
        numbers = source.together(layers, lens.part, span) if num_numbers <= STACKED_NUMBERS else None
        if numbers is not None:
            yield RowsOfLayers(range(len(layers)), numbers if head is None else numbers.narrow(1, head, 1), span.start)
            return
    forms: dict[object, list[tuple[int, Rows]]] = {}
    for place, layer in enumerate(layers):
        if (rows := read(source, lens, layer, span, head)) is not None:
            numbers = rows.numbers
            form = numbers.shape, numbers.dtype, numbers.device, rows.first, rows.positions is None
            forms.setdefault(form, []).append((place, rows))
    for items in forms.values():
        at_once = max(1, STACKED_NUMBERS // max(1, items[0][1].numbers.numel()))
        for start in range(0, len(items), at_once):
            places, rows_of = zip(*items[start : start + at_once], strict=True)
            positions = [rows.positions for rows in rows_of if rows.positions is not None]
            at = stacked_view(positions) if positions else None
            yield RowsOfLayers(places, stacked_view([rows.numbers for rows in rows_of]), rows_of[0].first, at)


def computed(lens: Lens, numbers: torch.Tensor, positions: torch.Tensor, source: Source, layer: int) -> torch.Tensor:
    """The values `[H, T, values]` of a lens, of numbers `[H, T, D]` of rows at these positions `[H, T]`."""
    compute = COMPUTE.get(lens.name)
    return numbers if compute is None else compute(numbers.float(), positions, source, layer)


def held_of(source: Source, lens: Lens, layer: int) -> Held | None:
    """Which columns a lens has of a layer; None where it has none, or cannot be."""
    if why_not(source, lens):
        return None
    if lens.part is not None:
        return source.held(layer)
    if lens.values == "tokens":
        if isinstance(source, Difference):
            return held_of(source.a, lens, layer)
        assert source.queries is not None, "a source without them says why not"
        heads, count = source.queries.num_heads(layer), source.num_queries
        return Held(heads, count, count, "float32", source.queries.first(count), count) if heads else None
    rows = read(source, lens, layer)
    if rows is None:
        return None
    heads, count, _ = rows.numbers.shape
    return Held(heads, 1, 1, "float32", rows.first, rows.first + count, rows.positions)


def held_of_all(source: Source, lens: Lens, layers: Iterable[int]) -> dict[int, Held]:
    """`held_of` of those layers that have any."""
    hold = source.held if lens.name == lens.part else partial(held_of, source, lens)
    return {layer: held for layer in layers if (held := hold(layer)) is not None}


def why_not(source: Source, lens: Lens) -> str:
    """Why a lens cannot be had of a source; empty where it can."""
    if isinstance(source, Difference):
        return why_not(source.a, lens) or why_not(source.b, lens)
    if lens.name == "keys-before-rotation" and isinstance(source.rotation, str):
        return source.rotation
    if lens.reads != "queries":
        return ""
    if source.queries is None:
        return "Only the attention of the newest query is known here, not that of earlier ones."
    return source.queries.why_not(source.num_queries)


def queries_words(source: Source, lens: Lens) -> str:
    """Which queries a picture of them is of: over how many a sum is, and whether a suspended step has more."""
    if lens.reads != "queries" or isinstance(source, Difference) or source.queries is None:
        return ""
    words = [] if source.half is None else [source.half.queries_note]
    if lens.name == "attention-received":
        every = source.num_queries
        count = every - source.queries.summed_from(every)
        latest = "" if count == every else f"the latest {count:,} of "
        words = [f"Summed over {latest}{every:,} queries.", *words]
    return " ".join(words)


def rows_at_once(source: Source, lens: Lens, layer: int) -> int:
    """How many rows of a layer are to be read at once, so that little memory is needed."""
    return ALL_ROWS if lens.part is None else source.rows_at_once(layer, lens.part)
