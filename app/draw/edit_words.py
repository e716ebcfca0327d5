"""The name of an edit, where it was made, and how many numbers it affects, in words."""

from __future__ import annotations

from app.draw.format import byte_size, counted
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, dtype_bytes
from engine.spec.edit import Edit, Mask, Pin, Rows


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
