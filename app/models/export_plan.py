"""What of the session is exported: commands made of what the models know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from app.models import Models
from app.models.selection import Selected
from engine.geometry.dimensions import CacheGeometry
from engine.wire.encoding import packed
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from engine.wire.requests import TensorName

MOST_PACKED = 100


def whole_session(models: Models, path: Path, notes: str = "") -> Export:
    """A snapshot of the selected sequence as it stands now, with all steps."""
    return export_of(models, path, None, None, notes=notes)


def export_of(models: Models, path: Path, first: int | None, last: int | None, *, notes: str = "") -> Export:
    """The cache of the selected sequence after step `last` (None: now), with the records from step `first` (None: the
    first there is) to that one."""
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
    """Those of the steps from one to another, both included, as the engine sent them: maps of pages are folded anew by
    whoever reads."""
    wanted = (r for r in records if (first is None or r.step >= first) and (last is None or r.step <= last))
    return [replace(record, page_maps=()) if record.page_maps else record for record in wanted]


def records_bytes(records: Sequence[StepRecord]) -> int:
    """About how many bytes the records have in a snapshot: of a long history some are written to tell."""
    some = records[:: max(1, len(records) // MOST_PACKED)]
    return round(sum(len(packed(record)) for record in some) * len(records) / len(some)) if some else 0


class KeptPlace(msgspec.Struct, frozen=True):
    """The part of a selection that means the same in a file."""

    layer: int = 0
    kv_head: int = 0
    position: int | None = None
    tensor: TensorName = "keys"
    change: bool = False


class KeptView(msgspec.Struct, frozen=True):
    """What a window looked at when it wrote a snapshot."""

    selection: KeptPlace = KeptPlace()
    layout: str = ""


def view_text(selected: Selected, layout: str) -> str:
    """What the window looks at, as a snapshot keeps it: a JSON object."""
    return json.dumps({"selection": asdict(selected), "layout": layout}, default=asdict)


def view_of(text: str, geometry: CacheGeometry, num_tokens: int) -> KeptView:
    """What a window looked at, out of a snapshot, as far as the file has that place."""
    try:
        view = msgspec.json.decode(text, type=KeptView)
    except msgspec.MsgspecError:
        return KeptView()
    place, layers = view.selection, geometry.layers
    is_there = 0 <= place.layer < len(layers) and 0 <= place.kv_head < max(1, layers[place.layer].num_kv_heads)
    if not is_there or not 0 <= (place.position or 0) < max(1, num_tokens):
        return KeptView(layout=view.layout)
    return view
