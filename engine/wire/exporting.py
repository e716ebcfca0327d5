"""Messages about files that the engine writes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from engine.spec.bookmark import Bookmark
from engine.wire.message import Answer, Command, Facts
from engine.wire.records import StepRecord

ExportKind = Literal["snapshot", "npz", "table", "trace", "session"]


class Export(Command, frozen=True):
    """Write the cache of a sequence as it was with `num_tokens` tokens (None: now) to one safetensors file.

    `form` says whether coded rows are written as they are stored or dequantised; `layers` and `kv_heads` select some
    (None: all). `records` are the steps written with them, `view` the state of the window as a JSON object, and
    `bookmarks` are written too. `with_script`: also write a Python script that continues from the file in plain
    transformers.

    The other values of `kind` are for other programs: `npz` has the dequantised rows; `table` (CSV, or Parquet by the
    file's suffix), `trace` (timings, for Perfetto) and `session` (a script that repeats the steps) are made from the
    records alone.

    `comes_here`: an engine on another machine writes into a folder of its own there, and the client brings the files to
    `path` on this one.
    """

    facts: ClassVar[Facts] = Facts("writing a file", needs="rows", answers="one", effect="measures")

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
    comes_here: bool = False


class EstimateExport(Command, frozen=True):
    """Answer with the bytes of the rows of an export without writing it; an export that would be refused is refused."""

    facts: ClassVar[Facts] = Facts("measuring an export", needs="rows", answers="one", effect="measures", newest=type)

    export: Export


class Exported(Answer, frozen=True):
    """A file was written, and with `script` a script beside it."""

    path: Path
    num_bytes: int
    took_ms: float
    script: Path | None = None


class ExportCancelled(Answer, frozen=True):
    """An export was cancelled; a file that was at its path before is still there."""

    path: Path


class ExportEstimate(Answer, frozen=True):
    """What an export would write, without the step records: bytes of `num_layers` layers of `num_tokens` tokens.
    `why_not` says why decoding could not continue from it; empty if it could."""

    num_bytes: int
    num_tokens: int
    num_layers: int
    why_not: str
