"""Makes the export command for what the user wants exported, from the models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from app.models import Models
from app.models.selection import Selected
from engine.geometry.dimensions import CacheGeometry
from engine.spec.lenses import LENSES
from engine.wire.encoding import packed
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from engine.wire.slices import TensorName

MOST_PACKED = 100


def whole_session(models: Models, path: Path, notes: str = "") -> Export:
    """The command for a snapshot of the selected sequence as it is now, with all steps."""
    return export_of(models, path, None, None, notes=notes)


def export_of(models: Models, path: Path, first: int | None, last: int | None, *, notes: str = "") -> Export:
    """The command to export the cache of the selected sequence after step `last` (None: as it is now), with the records
    from step `first` (None: the first) to `last`."""
    timeline, seq_id = models.timeline.live_path, models.selection.now.seq_id
    is_past = last is not None and timeline.latest is not None and last < timeline.latest.step
    records = tuple(records_between(timeline.records, first, last))
    steps = {record.step for record in records}
    return Export(
        path,
        seq_id,
        timeline.num_tokens(seq_id, last) if is_past else None,
        notes,
        records=records,
        bookmarks=tuple(one for one in models.bookmarks.all if one.target.step in steps),
    )


def records_between(records: Sequence[StepRecord], first: int | None, last: int | None) -> list[StepRecord]:
    """The records of the steps `first` to `last`, both included, as the engine sent them: without page maps, which a
    reader builds again from the page events."""
    wanted = (r for r in records if (first is None or r.step >= first) and (last is None or r.step <= last))
    return [replace(record, page_maps=()) if record.page_maps else record for record in wanted]


def records_bytes(records: Sequence[StepRecord]) -> int:
    """About how many bytes the records take in a snapshot, extrapolated from at most about `2 × MOST_PACKED` of
    them."""
    some = records[:: max(1, len(records) // MOST_PACKED)]
    return round(sum(len(packed(record)) for record in some) * len(records) / len(some)) if some else 0


class SavedSelection(msgspec.Struct, frozen=True):
    """The part of a selection that still has a meaning in a file. Files written before there were lenses name K or V
    as their `tensor`."""

    layer: int = 0
    kv_head: int = 0
    position: int | None = None
    lens: str = ""
    change: bool = False
    tensor: TensorName = "keys"

    @property
    def place(self) -> dict[str, object]:
        """What to select."""
        lens = self.lens if self.lens in LENSES else self.tensor
        where = {"layer": self.layer, "kv_head": self.kv_head, "position": self.position}
        return {**where, "lens": lens, "change": self.change}


class SavedView(msgspec.Struct, frozen=True):
    """What the window showed when it wrote a snapshot."""

    selection: SavedSelection = SavedSelection()
    layout: str = ""


def view_text(selected: Selected, layout: str) -> str:
    """What the window shows, as a JSON object for a snapshot."""
    return json.dumps({"selection": asdict(selected), "layout": layout}, default=asdict)


def view_of(text: str, geometry: CacheGeometry, num_tokens: int) -> SavedView:
    """Read what the window showed from a snapshot; the place is left out if the file has no such layer, head or
    token."""
    try:
        view = msgspec.json.decode(text, type=SavedView)
    except msgspec.MsgspecError:
        return SavedView()
    place, layers = view.selection, geometry.layers
    is_there = 0 <= place.layer < len(layers) and 0 <= place.kv_head < max(1, layers[place.layer].num_kv_heads)
    if not is_there or not 0 <= (place.position or 0) < max(1, num_tokens):
        return SavedView(layout=view.layout)
    return view
