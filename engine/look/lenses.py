"""What each lens computes: one function for each row of `engine.spec.lenses` that does not show rows as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.look.source import ALL_ROWS, Difference, Held, Rows, Source, subtracted, within
from engine.spec.lenses import Lens

# Numbers [H, T, D] of one layer as a source gives them, their positions [H, T], and the source -> [H, T, values]
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
        return source.queries.map_of(layer, head or 0, source.num_tokens, span)
    if lens.reads == "weights":
        return within(source.weights(layer), span, head)
    found = None if source.queries is None else source.queries.measured(lens.name, layer, source.num_tokens)
    return within(found, span, head)


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
        heads, count = source.queries.num_heads(layer), source.num_tokens
        return Held(heads, count, count, "float32", source.queries.first(count), count) if heads else None
    rows = read(source, lens, layer)
    if rows is None:
        return None
    heads, count, _ = rows.numbers.shape
    return Held(heads, 1, 1, "float32", rows.first, rows.first + count, rows.positions)


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
    return source.queries.why_not(source.num_tokens)


def queries_words(source: Source, lens: Lens) -> str:
    """Over how many queries a sum is; empty for other lenses."""
    if lens.name != "attention-received" or isinstance(source, Difference) or source.queries is None:
        return ""
    count = source.num_tokens - source.queries.first(source.num_tokens)
    if count == source.num_tokens:
        return f"Summed over {count:,} queries."
    return f"Summed over the latest {count:,} of {source.num_tokens:,} queries."


def rows_at_once(source: Source, lens: Lens, layer: int) -> int:
    """How many rows of a layer are to be read at once, so that little memory is needed."""
    is_all = source.stored is None or lens.part is None
    return ALL_ROWS if is_all else source.stored.rows_at_once(layer, lens.part)  # type: ignore[union-attr,arg-type]
