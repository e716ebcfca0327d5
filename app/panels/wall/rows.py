"""The rows of the wall: one for every layer of the model, with titles above the groups of an encoder-decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from app.models import Models
from app.models.places import geometry_of, num_source
from app.panels.wall.draw import WallRow
from engine.counted import counted
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.lenses import LENSES, Lens
from engine.wire.pictures import WallPicture

GROUP = -1  # layer number of a row that is the title of a group


def wall_rows(models: Models, picture: WallPicture | None) -> tuple[WallRow, ...]:
    """Every layer of the model: with thumbnails where the picture has some, else with the reason."""
    geometry = geometry_of(models)
    if geometry is None:
        if picture is None:
            return ()
        return tuple(WallRow(layer, heads) for layer, heads in zip(picture.layers, picture.heads, strict=True))
    lens = LENSES[picture.request.lens if picture is not None else models.selection.now.lens]
    held = dict(zip(picture.layers, picture.heads, strict=True)) if picture is not None else None
    counts = Counter(state.layer for state in picture.states) if picture is not None else Counter[int]()
    rows = [row for layer in geometry.layers for row in layer_rows(layer, held, lens, counts[layer.index])]
    if not geometry.has_encoder:
        return tuple(rows)
    return tuple(grouped(rows, geometry, num_source(models)))


def layer_rows(layer: LayerGeometry, held: dict[int, int] | None, lens: Lens, num_states: int) -> Iterator[WallRow]:
    """A layer's row for K or V, and its row for a recurrent state: the state alone, or below if it has both."""
    num_rows = (held or {}).get(layer.index, 0)
    if num_rows or not num_states:
        yield _row(layer, held, lens)
    if num_states:
        yield WallRow(layer.index, num_states, name=f"L{layer.index} state", first_head=num_rows)


def _row(layer: LayerGeometry, held: dict[int, int] | None, lens: Lens) -> WallRow:
    num_heads = layer.num_heads if lens.heads == "query" else layer.num_kv_heads
    num_heads = num_heads if held is None else held.get(layer.index, 0)
    if layer.kind in ("linear", "shared", "none") and layer.index not in (held or {}):
        return WallRow(layer.index, 0, _why_empty(layer, is_asked=held is not None))
    if not num_heads:
        return WallRow(layer.index, 0, "holds no K and V now" if lens.part is not None else "no attention is known")
    dims = 1 if lens.values == 1 else layer.key_dim if lens.part == "keys" else layer.value_dim
    return WallRow(layer.index, num_heads, "", dims or None)


def _why_empty(layer: LayerGeometry, *, is_asked: bool) -> str:
    if layer.kind == "linear" and is_asked:
        return "recurrent state, kept of the live step alone: go to this step to see it"
    if layer.kind == "linear":
        return "recurrent state of constant size, no K and V"
    if layer.kind == "shared":
        return f"reads the K and V of layer {layer.shares_with}"
    return "no attention, no K and V"


def grouped(rows: list[WallRow], geometry: CacheGeometry, num_source: int) -> Iterator[WallRow]:
    """The layers of an encoder-decoder in two groups with titles; the encoder read `num_source` tokens."""
    titles = {
        False: "self-attention · a row more with every token of the decoder",
        True: f"cross-attention · {counted(num_source, 'row')} of what the encoder read, written once" if num_source
        else "cross-attention · rows of what the encoder reads, written once",
    }  # fmt: skip
    for row in rows:
        is_cross = geometry.layers[row.layer].kind == "cross"
        if row.layer in (0, geometry.num_blocks):
            yield WallRow(GROUP - is_cross, 0, titles[is_cross], name="")
        yield replace(row, name=geometry.layer_label(row.layer))
