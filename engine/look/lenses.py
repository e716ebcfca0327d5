"""What each lens computes: one function for each row of `engine.spec.lenses` that does not show rows as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.look.source import ALL_ROWS, Rows, Source, within
from engine.spec.lenses import Lens

# Numbers [H, T, D] of one layer, as a source gives them -> [H, T, values]
Compute = Callable[[torch.Tensor], torch.Tensor]

COMPUTE: dict[str, Compute] = {}


def read(source: Source, lens: Lens, layer: int, span: range | None = None, head: int | None = None) -> Rows | None:
    """What a lens shows of a layer, `[H, T, values]`, of one head or all; consecutive rows only at the positions of
    `span`. None where the layer has none."""
    rows = unread(source, lens, layer, span, head)
    return None if rows is None else Rows(computed(lens, rows.numbers), rows.first, rows.positions)


def unread(source: Source, lens: Lens, layer: int, span: range | None = None, head: int | None = None) -> Rows | None:
    """The numbers of a source that a lens reads, before it computes anything."""
    if lens.part is None:
        return within(source.weights(layer), span, head)
    return source.rows(layer, lens.part, span, head)


def computed(lens: Lens, numbers: torch.Tensor) -> torch.Tensor:
    """The values `[H, T, values]` of a lens, of numbers `[H, T, D]` as a source gives them."""
    compute = COMPUTE.get(lens.name)
    return numbers if compute is None else compute(numbers.float())


def rows_at_once(source: Source, lens: Lens, layer: int) -> int:
    """How many rows of a layer are to be read at once, so that little memory is needed."""
    is_all = source.stored is None or lens.part is None
    return ALL_ROWS if is_all else source.stored.rows_at_once(layer, lens.part)  # type: ignore[union-attr,arg-type]
