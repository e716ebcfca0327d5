"""Makes the export command for what the user wants exported, from the models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from app.models import Models
from engine.wire.encoding import packed
from engine.wire.exporting import Export
from engine.wire.records import StepRecord

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
    return round(sum(map(_record_bytes, some)) * len(records) / len(some)) if some else 0


def _record_bytes(record: StepRecord) -> int:
    """The bytes of a record in a file, which has the norms of all rows and not only of the newest."""
    missing = (
        part.rows.nbytes * (part.num_tokens - part.first_position - part.rows.num_rows)
        for part in record.sequences
        if part.rows is not None
    )
    return len(packed(record)) + sum(missing)
