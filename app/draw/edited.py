"""Which rows were edited by hand, from the sequence of edits: for marks in pictures and on the tree, and in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.draw.format import byte_size
from engine.counted import counted
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, dtype_bytes
from engine.spec.edit import AddNoise, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Rows, Scale, Zero
from engine.spec.lenses import LENSES
from engine.wire.records import Change, EditMade, ModeChanged, SamplingChanged, SequenceAdded, TokensForced


class EditedRows(Struct, frozen=True):
    """Rows that the edit at node `step` changed. `is_hidden`: masked from attention."""

    rows: Rows
    step: int
    edit: Edit
    is_hidden: bool = False


def edited_rows(edits: Iterable[tuple[int, Edit]]) -> tuple[EditedRows, ...]:
    """The rows changed by edits, each given with its step, oldest first. Rows that were unmasked or unpinned later lose
    the mark of that mask or pin."""
    found: list[EditedRows] = []
    for step, edit in edits:
        match edit:
            case Mask(hidden=False):
                found = [piece for one in found for piece in _without(one, edit.rows, Mask)]
            case Pin(pinned=False):
                found = [piece for one in found for piece in _without(one, edit.rows, Pin)]
            case ReplaceTokens():
                is_later = edit.how == "re-prefill"  # all rows from here on are recomputed
                stop = None if is_later else edit.stop
                found = [piece for one in found for piece in _outside(one, edit.position, stop)]
                if edit.token_ids:
                    found.append(EditedRows(Rows(edit.position, edit.position + len(edit.token_ids)), step, edit))
            case Mask() | Pin() | Zero() | Scale() | AddNoise() | Overwrite() | Drop():
                found.append(EditedRows(edit.rows, step, edit, isinstance(edit, Mask)))
    return tuple(found)


def _outside(one: EditedRows, start: int, stop: int | None) -> list[EditedRows]:
    """The rest of an edit's rows after those at `start … stop` (None: to the end) were replaced. If tokens were only
    overwritten (`stop` given), masks, pins and drops there stay."""
    if stop is not None and isinstance(one.edit, Mask | Pin | Drop):
        return [one]
    rows = one.rows
    spans = [(rows.start, min(rows.stop, start))]
    if stop is not None:
        spans.append((max(rows.start, stop), rows.stop))
    return [replace(one, rows=_spanning(rows, *span)) for span in spans if span[0] < span[1]]


def _without(one: EditedRows, gone: Rows, kind: type) -> list[EditedRows]:
    """The rest of an edit of that kind after it was undone for the rows `gone`: the tokens before and after these, if
    `gone` covers the edit's layers and heads; otherwise the whole edit."""
    rows = one.rows
    covers = all(
        whole is None or (some is not None and set(some) <= set(whole))
        for some, whole in ((rows.layers, gone.layers), (rows.kv_heads, gone.kv_heads))
    )
    if not isinstance(one.edit, kind) or not covers:
        return [one]
    spans = (rows.start, min(rows.stop, gone.start)), (max(rows.start, gone.stop), rows.stop)
    return [replace(one, rows=_spanning(rows, *span)) for span in spans if span[0] < span[1]]


def _spanning(rows: Rows, start: int, stop: int) -> Rows:
    return Rows(start, stop, rows.layers, rows.kv_heads, rows.channels, rows.part)


def touches(rows: Rows, layer: int | None = None, kv_head: int | None = None, lens: str = "") -> bool:
    """Whether rows include some of a layer, head and part of the rows that a lens reads; arguments not given, and a
    lens of attention, match any."""
    part = LENSES[lens].part if lens else None
    if part is not None and rows.part not in ("both", part):
        return False
    is_of_layer = layer is None or rows.layers is None or layer in rows.layers
    return is_of_layer and (kv_head is None or rows.kv_heads is None or kv_head in rows.kv_heads)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges `first … last` (exclusive) without gaps."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def at(found: Iterable[EditedRows], position: int, channel: int | None = None) -> list[EditedRows]:
    """The edits that changed a position, or if given a channel of it."""
    return [
        one
        for one in found
        if one.rows.start <= position < one.rows.stop
        and (channel is None or one.rows.channels is None or channel in one.rows.channels)
    ]


def rows_words(rows: Rows) -> str:
    """`positions 4 … 7 · layer 3 · kv head 1 · K and V`; where the rows are not restricted, "every layer" and so on."""
    words = rows.describe()
    if rows.layers is None:
        words += " · every layer"
    if rows.kv_heads is None:
        words += " · every head"
    return f"{words} · K and V" if rows.part == "both" else words


def num_numbers(rows: Rows, geometry: CacheGeometry) -> int:
    """How many numbers of K and V the rows contain; heads and channels that a layer does not have are not counted."""
    return max(0, rows.stop - rows.start) * sum(_numbers_a_token(rows, layer) for layer in rows.layers_of(geometry))


def _numbers_a_token(rows: Rows, layer: LayerGeometry) -> int:
    heads = range(layer.num_kv_heads)
    num_heads = len(heads) if rows.kv_heads is None else sum(head in heads for head in rows.kv_heads)
    dims = [layer.key_dim if part == "keys" else layer.value_dim for part in rows.parts]
    if rows.channels is not None:
        dims = [sum(channel < dim for channel in rows.channels) for dim in dims]
    return num_heads * sum(dims)


def size_words(rows: Rows, geometry: CacheGeometry, dtype: str) -> str:
    """`1,024 numbers, 4.0 KiB`: the size of the rows in the model's dtype."""
    count = num_numbers(rows, geometry)
    return f"{counted(count, 'number')}, {byte_size(count * dtype_bytes(dtype))}"


def edit_name(edit: Edit) -> str:
    """The name of the edit's operation."""
    match edit:
        case Mask(hidden=False):
            return "Unmask"
        case Pin(pinned=False):
            return "Unpin"
        case _:
            return edit.label


def edit_place(edit: Edit) -> str:
    """Where an edit is made and with which parameters: its description without its name."""
    words = edit.describe()
    for name in (edit_name(edit).lower(), edit_name(edit).lower().split()[0]):
        if words.startswith(name):
            return words.removeprefix(name).removeprefix(":").strip() or words
    return words


MarkKind = Literal["edit", "mode", "branch", "other"]
ORDER: tuple[MarkKind, ...] = ("edit", "mode", "branch", "other")  # priority, where several fall on one pixel


def kind_of(changes: Iterable[Change]) -> MarkKind | None:
    """The mark of a node with these changes; None if there are none but added prompts."""
    found: set[MarkKind] = set()
    for change in changes:
        match change:
            case EditMade():
                found.add("edit")
            case ModeChanged():
                found.add("mode")
            case TokensForced() | SamplingChanged():
                found.add("branch")
            case SequenceAdded():
                pass
            case _:
                found.add("other")
    return next((kind for kind in ORDER if kind in found), None)
