"""What the window shows, as a saved session or a snapshot keeps it: the place, the panels, and what pictures are pinned
to."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from app.models import Models
from app.models.selection import WantedPictures
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.saved.named import decoded, encoded
from engine.spec.codec import Part
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES


class SavedSelection(Struct, frozen=True):
    """The part of a selection that still has a meaning in a file. Files written before there were lenses name K or V
    as their `tensor`."""

    layer: int = 0
    kv_head: int = 0
    position: int | None = None
    lens: str = ""
    change: bool = False
    tensor: Part = "keys"
    step: int | None = None
    seq_id: int = 0
    channel: int | None = None
    area: Rows | None = None


class ChosenPictures(Struct, frozen=True):
    """What a person has chosen of `WantedPictures`; the rest of them follows from the sizes of panels."""

    attention_lens: str = WantedPictures().attention_lens
    attention_latest: int = 0
    head_place: tuple[int, int, str] | None = None
    attention_layer: int | None = None
    query_head: int = 0


class Arrangement(Struct, frozen=True):
    """How the panels stand: in a named `layout`, with these in front of others, and the segment chosen in each by its
    name; `docks` is Qt's description in base64, if a person has moved any of them."""

    layout: str = ""
    fronts: tuple[str, ...] = ()
    docks: str = ""
    choices: dict[str, str] = {}

    @property
    def state(self) -> bytes:
        """Qt's description as bytes; empty if it is none."""
        try:
            return base64.b64decode(self.docks, validate=True)
        except ValueError:
            return b""


class SavedView(Struct, frozen=True):
    """What the window showed. Files written before there was an `arrangement` have its `layout` alone."""

    selection: SavedSelection = SavedSelection()
    layout: str = ""
    arrangement: Arrangement = Arrangement()
    pictures: ChosenPictures = ChosenPictures()


def view_text(models: Models, arrangement: Arrangement) -> str:
    """What the window shows, as a JSON object."""
    selection = SavedSelection(**_shared(SavedSelection, models.selection.now))
    pictures = ChosenPictures(**_shared(ChosenPictures, models.viewport.now))
    return encoded(SavedView(selection, arrangement.layout, arrangement, pictures)).decode()


def _shared(kind: type[Struct], given: Struct) -> dict[str, Any]:
    """The fields of `given` that structs of that kind have too."""
    return {name: getattr(given, name) for name in kind.__struct_fields__ if hasattr(given, name)}


def read_view(text: str) -> SavedView | None:
    """Read what `view_text` returned; None from any other text, and from that of no window, `{}`."""
    try:
        view = decoded(text, SavedView)
    except (msgspec.MsgspecError, InputError, ValueError):
        return None
    return None if view == SavedView() else view


def show_place(view: SavedView, models: Models) -> None:
    """Select what was selected, at the step looked at, as far as the session has it; nothing but the step if the model
    has no such layer or head, or the sequence not so many tokens."""
    place, status, timeline = view.selection, models.status.now, models.timeline
    if status.model is None:
        return
    counts = {info.seq_id: info.num_tokens for info in status.sequences}
    step = place.step if place.step in models.history else None
    if step is not None:
        models.selection.update(step=step)
        counts |= {seq_id: timeline.num_tokens(seq_id, step) for seq_id in timeline.sequence_ids()}
    seq_id = place.seq_id if place.seq_id in counts else models.selection.now.seq_id
    num_tokens, geometry = counts.get(seq_id, 0), status.model.geometry
    if not _has(geometry, place.layer, place.kv_head) or not 0 <= (place.position or 0) < max(1, num_tokens):
        return
    lens = place.lens if place.lens in LENSES else place.tensor
    where = {"layer": place.layer, "kv_head": place.kv_head, "position": place.position, "channel": place.channel}
    area = _there(place.area, geometry, num_tokens)
    models.selection.update(seq_id=seq_id, **where, lens=lens, change=place.change, area=area)
    _show_pictures(view.pictures, models, geometry)


def _show_pictures(chosen: ChosenPictures, models: Models, geometry: CacheGeometry) -> None:
    layer, kv_head, lens = chosen.head_place or (0, 0, "keys")
    are_there = _has(geometry, layer, kv_head) and _has(geometry, chosen.attention_layer or 0, 0)
    if are_there and {lens, chosen.attention_lens} <= LENSES.keys():
        models.viewport.update(**asdict(chosen))


def _has(geometry: CacheGeometry, layer: int, kv_head: int) -> bool:
    layers = geometry.layers
    return 0 <= layer < len(layers) and 0 <= kv_head < max(1, layers[layer].num_kv_heads)


def _there(area: Rows | None, geometry: CacheGeometry, num_tokens: int) -> Rows | None:
    """The rows that were dragged over, if there are such."""
    try:
        if area is not None:
            area.check(geometry, num_tokens)
    except InputError:
        return None
    return area
