"""Files that the engine writes: what is asked for, and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.spec.bookmark import Bookmark
from engine.wire.message import CommandMessage, EventMessage
from engine.wire.records import StepRecord

ExportKind = Literal["snapshot", "npz", "table", "trace", "session"]


class Export(CommandMessage, frozen=True):
    """Write the cache of a sequence as it was with `num_tokens` tokens (None: now) to one safetensors file.

    `form` says whether coded rows are written as they are stored or as the numbers that they stand for; `layers` and
    `kv_heads` choose some (None: all). `records` are the steps to be kept beside them, and `view` is what the window
    looks at, a JSON object; `bookmarks` go along. `with_script`: a Python script beside it goes on from it in plain
    transformers.

    Another `kind` is for other programs: `npz` has the rows as numbers; `table` (CSV, or Parquet by the name), `trace`
    (timings, for Perfetto) and `session` (a script that repeats the steps) are made of the records alone.
    """

    path: Path
    seq_id: int
    num_tokens: int | None = None
    notes: str = ""
    form: Literal["stored", "rows"] = "stored"
    layers: tuple[int, ...] | None = None
    kv_heads: tuple[int, ...] | None = None
    records: tuple[StepRecord, ...] = ()
    view: str = "{}"
    kind: ExportKind = "snapshot"
    with_script: bool = False
    bookmarks: tuple[Bookmark, ...] = ()


class EstimateExport(CommandMessage, frozen=True):
    """Say how many bytes the rows of an export have, before it is written; what it would refuse is refused."""

    export: Export


class Exported(EventMessage, frozen=True):
    """A file was written, and maybe a script beside it."""

    path: Path
    num_bytes: int
    took_ms: float
    script: Path | None = None


class ExportCancelled(EventMessage, frozen=True):
    """An export was cancelled: what stood at its path before stands there still."""

    path: Path


class ExportEstimate(EventMessage, frozen=True):
    """What an export would write, its step records apart: bytes of `num_layers` layers of `num_tokens` tokens.
    `why_not` says why decoding could not go on from it; empty where it could."""

    num_bytes: int
    num_tokens: int
    num_layers: int
    why_not: str
