"""The history of steps as a table: one row per step and sequence."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable

from engine.spec.bookmark import Bookmark, BookmarkTarget, OnHead, OnPage, OnToken
from engine.spec.cache import cache_name
from engine.wire.records import SequenceStep, StepRecord

COLUMNS = (
    "step", "phase", "cache", "dtype", "random_weights", "seq_id", "first_position", "num_tokens", "token_ids", "text",
    "surprisal_nats", "forced", "sampled", "sampled_text", "entropy_nats", "stop", "prepare_ms", "forward_ms",
    "sample_ms", "observe_ms", "total_ms", "stored_bytes", "cache_stored_bytes", "cache_reserved_bytes", "non_finite",
    "wall_time", "notes",
)  # fmt: skip

CellValue = int | float | str | None


def step_table(records: Iterable[StepRecord], bookmarks: Iterable[Bookmark] = ()) -> list[tuple[CellValue, ...]]:
    """The rows of the table, in the order of `COLUMNS`. Notes on a step or a page are repeated for each of its
    sequences."""
    noted: dict[int, list[Bookmark]] = {}
    for bookmark in bookmarks:
        noted.setdefault(bookmark.target.step, []).append(bookmark)
    return [_row(record, part, noted.get(record.step, ())) for record in records for part in record.sequences]


def step_csv(records: Iterable[StepRecord], bookmarks: Iterable[Bookmark] = ()) -> str:
    """The table as CSV with a header line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(step_table(records, bookmarks))
    return out.getvalue()


def _row(record: StepRecord, part: SequenceStep, noted: Iterable[Bookmark]) -> tuple[CellValue, ...]:
    timings, num_bytes = record.timings, record.num_bytes
    return (
        record.step, record.phase, cache_name(record.cache), record.dtype, int(record.random_weights), part.seq_id,
        part.first_position, part.num_tokens, _ids(part.token_ids), _quoted("".join(part.texts)),
        " ".join("" if s is None else f"{s:z.4f}" for s in part.surprisal).strip(), int(part.forced), part.sampled,
        _quoted(part.sampled_text), _rounded(part.entropy), part.stop, _rounded(timings.prepare_ms),
        _rounded(timings.forward_ms), _rounded(timings.sample_ms), _rounded(timings.observe_ms),
        _rounded(timings.total_ms), part.stored_bytes, num_bytes.stored, num_bytes.reserved,
        sum(found.count for found in record.non_finite), f"{record.wall_time:z.6f}", _notes(noted, part.seq_id),
    )  # fmt: skip


def _notes(bookmarks: Iterable[Bookmark], seq_id: int) -> str:
    """A JSON list of bookmarked places with their notes; empty if there are none."""
    found = [f"{place}: {one.text}" for one in bookmarks if (place := _place(one.target, seq_id))]
    return json.dumps(found) if found else ""


def _place(target: BookmarkTarget, seq_id: int) -> str:
    """The bookmarked place in words; empty if it is in another sequence."""
    match target:
        case OnToken(seq_id=own, position=position):
            return f"position {position}" if own == seq_id else ""
        case OnHead(seq_id=own, layer=layer, kv_head=kv_head):
            return f"layer {layer}, kv head {kv_head}" if own == seq_id else ""
        case OnPage(pool=pool, page_id=page_id):
            return f"pool {pool}, page {page_id}"
        case _:
            return "step"


def _ids(token_ids: Iterable[int]) -> str:
    return " ".join(map(str, token_ids))


def _quoted(text: str) -> str:
    # A JSON string escapes newlines, control characters and lone surrogates, and no spreadsheet reads it as a formula.
    return json.dumps(text)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
