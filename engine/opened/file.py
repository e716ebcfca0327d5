"""An opened snapshot: takes pictures of it with the same functions as for a live sequence. Its rows are read on
request, only those that a picture shows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from msgspec import structs

from engine.cache.contract import StateMatrix, matrices_of
from engine.errors import InputError
from engine.files.text import kind_of
from engine.look.pictures import (
    PictureMemo,
    QueryWeights,
    attention_picture,
    limited,
    of_queries,
    outliers_picture,
    picture_of,
    row_picture,
)
from engine.look.source import (
    NO_POSITION,
    Extremes,
    Held,
    Rows,
    Source,
    rewrites,
    rows_of_weights,
)
from engine.opened.description import (
    bare_step,
    model_info,
    opened_file,
    readable_steps,
    sequence_info,
    steps_of,
    tokens_of,
)
from engine.saved.session import joined_text
from engine.snapshot.format import LayerEntry, table_name
from engine.snapshot.llama_state import ModelOfState
from engine.snapshot.read import SnapshotFile
from engine.snapshot.verify import num_numbers
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS, Part
from engine.spec.lenses import LENSES
from engine.spec.model import Dtype, ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.events import Event, SessionOpened, Submitted
from engine.wire.pictures import AttentionRequest, OutliersRequest, Picture, PictureRequest, RowRequest
from engine.wire.records import Provenance, RowStats
from engine.wire.status import EngineStatus, Work

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session

MARKER = re.compile(r"<(?![0-9A-F]{2}>)[^<>\s]+>|\[CLS\]")  # a token that begins a text, as vocabularies write it


class OpenedSnapshot:
    """One opened snapshot. The header is read when it is opened, everything else on request.

    An npz and a state file of llama.cpp (with its `model`, or the one beside it) are converted first. It is shown as
    `name` if it is a copy of that. Raises `InputError` for a file that is none of these, and later for parts that
    cannot be read.
    """

    def __init__(self, path: Path, model: ModelOfState | None = None, name: Path | None = None) -> None:
        is_foreign = path.suffix == ".npz" or kind_of(path) != ""
        self.file = opened_foreign(path, model) if is_foreign else SnapshotFile(path)
        self.file.path = name or path
        try:
            self.info = model_info(self.file)
            self.sequence = sequence_info(self.file)
            self.opened = opened_file(self.file)
            self.token_ids, self.texts = tokens_of(self.file)
        except BaseException:
            self.close()
            raise
        self.rows = FileRows(self.file)
        self.computed_before: int | None = None  # tokens before the newest step that `events` has given
        self._memo = PictureMemo(self.rows)
        self._texts = dict(zip(self.token_ids, self.texts, strict=True))

    def close(self) -> None:
        self.file.close()

    @property
    def num_tokens(self) -> int:
        return self.rows.num_tokens

    @property
    def last_step(self) -> int | None:
        return self.file.manifest.step

    def status(self, sampling: SamplingParams, work: Work | None, *, running: bool = False) -> EngineStatus:
        """The status of an engine that shows this file instead of a session."""
        return EngineStatus(
            model=self.info,
            cache=self.rows.spec,
            sampling=sampling,
            sequences=(self.sequence,),
            step=self.last_step,
            running=running,
            work=work,
            opened=self.opened,
        )

    def events(self, report: Callable[[InputError], None]) -> Iterator[Event]:
        """The events that an engine sends of such a sequence: its tokens, what was written about them, and its steps. A
        record that cannot be read is passed to `report` and ends them; where it is the first, a step with only the
        tokens of the snapshot stands for all."""
        manifest, seq_id, is_first = self.file.manifest, self.sequence.seq_id, True
        yield Submitted(seq_id, self.token_ids, self.texts)
        yield SessionOpened(self.prompt, self.sequence.sampling, bookmarks=manifest.bookmarks, view=manifest.view)
        try:
            for record in steps_of(self.file):
                if (part := record.of(seq_id)) is not None:
                    self.computed_before = part.first_position
                yield record
                is_first = False
        except InputError as error:
            report(error)
            if is_first:
                yield bare_step(self.file, 0, self.last_step or 0)

    # ---- going on with a model -----------------------------------------------------------------------------------

    def fits(self, model: LoadedModel) -> bool:
        """Whether it can be gone on from with this model."""
        from engine.snapshot.resume import why_not_resumable

        return not why_not_resumable(model, self.file)

    def with_dtype_of(self, model: ModelSpec) -> ModelSpec:
        """The model to go on with; where no dtype was chosen, in that of the rows."""
        dtype = self.file.manifest.dtype
        return structs.replace(model, dtype=dtype) if model.dtype == "auto" and dtype in get_args(Dtype) else model

    def in_other_numbers(self, asked: ModelSpec, model: LoadedModel) -> ModelSpec | None:
        """What to load instead of `model`, which `asked` gave: the same weights in the dtype of the rows, if that is
        another one and no dtype was chosen; else None."""
        wanted, manifest = self.with_dtype_of(asked), self.file.manifest
        # one that can go on and does not say whose it is may be this model's: what that computes is compared then
        is_its = model.info.fingerprint == (
            manifest.fingerprint or ("" if manifest.why_not else model.info.fingerprint)
        )
        return wanted if is_its and wanted.dtype not in ("auto", model.info.dtype) else None

    def resumed(self, model: LoadedModel) -> Session:
        """A session that goes on from it; raises `InputError` with the reason where that cannot be."""
        from engine.snapshot.resume import resumed

        session = resumed(model, self.file)
        for record in readable_steps(self.file):
            session.history.log_norms(record)
        return session

    # ---- what it holds -------------------------------------------------------------------------------------------

    def at(self, num_tokens: int) -> FileSource:
        """Its rows as they were with `num_tokens` tokens."""
        return FileSource(self.rows, min(num_tokens, self.num_tokens))

    def text_of(self, token_id: int) -> str:
        """The text of a token if the file has it, among the tokens computed or the candidates of its last step; else
        its id."""
        return self._texts.get(token_id) or self._candidates.get(token_id, f"#{token_id}")

    @cached_property
    def _candidates(self) -> dict[int, str]:
        try:
            parts = self.file.records[-1].sequences if len(self.file.records) else ()
        except InputError:  # reported when that step is shown
            return {}
        return {each.token_id: each.text for part in parts for each in part.candidates}

    @property
    def prompt(self) -> str:
        """The text of the prompt without the marker of its beginning, or its ids where the model has no tokenizer;
        empty if the file does not have it whole."""
        num_prompt = self.sequence.num_prompt_tokens
        if "token_texts" not in self.file or num_prompt > len(self.texts):
            return ""
        ids, texts = self.token_ids[:num_prompt], self.texts[:num_prompt]
        if all(text == f"<{token_id}>" for token_id, text in zip(ids, texts, strict=True)):
            return " ".join(map(str, ids))
        return joined_text(texts[1:] if texts and MARKER.fullmatch(texts[0]) else texts)

    def logits(self) -> torch.Tensor | None:
        """The newest logits `[V]`; None if the file has none."""
        return torch.from_numpy(self.file.numbers("logits").copy()) if "logits" in self.file else None

    def attention(self, layer: int) -> torch.Tensor | None:
        """The attention weights `[H, n]` of the newest query; None if the file has none."""
        found = self.file.attention(layer) if self.rows.entry(layer) is not None else None
        heads = self.info.geometry.layers[layer].num_heads
        if found is None or found.shape[0] % heads or found.shape[1] > self.num_tokens:
            return None
        return torch.from_numpy(found.copy())

    # ---- pictures ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def take(self, request: PictureRequest) -> Picture:
        """Take one picture, as a session does of a live sequence."""
        geometry = self.info.geometry
        request, source = limited(request, self.at(self.num_tokens), geometry, "this snapshot")
        match request:
            case OutliersRequest():
                layers = geometry.attention_layers if self._is_newest(request.step) else ()
                rows = ((layer.index, self.attention(layer.index)) for layer in layers)
                known = {layer: row for layer, row in rows if row is not None}
                return outliers_picture(request, source, geometry, self._memo, known, self.num_tokens)
            case AttentionRequest():
                if LENSES[request.lens].reads == "queries":
                    return attention_picture(request, of_queries(request, source), geometry)
                row = self.attention(request.layer) if self._is_newest(request.step) else None
                note = "" if row is not None else f"The attention of step {request.step} is not in the file."
                return attention_picture(request, QueryWeights(row, self.num_tokens - 1, "recorded", note), geometry)
            case RowRequest():
                return structs.replace(row_picture(request, source, geometry), written=self._norms_of(request.position))
        return picture_of(request, source, geometry, self._memo)

    @cached_property
    def _norms(self) -> list[tuple[int, RowStats]]:
        """The statistics of rows in its records, each with the number of tokens after the step; oldest first."""
        parts = (record.of(self.sequence.seq_id) for record in readable_steps(self.file))
        return [(part.num_tokens, part.rows) for part in parts if part is not None and part.rows is not None]

    def _norms_of(self, position: int) -> RowStats | None:
        for stop, stats in reversed(self._norms):
            if stop - stats.num_rows <= position < stop:
                return stats.of(position - stop)
        return None

    def _is_newest(self, step: int) -> bool:
        return self.last_step is None or step >= self.last_step


def opened_foreign(path: Path, model: ModelOfState | None = None) -> SnapshotFile:
    """Convert another program's file to a temporary snapshot, whose name is deleted at once. Raises `InputError` if it
    is not valid or lacks something that is needed; `model` is that of a state file of llama.cpp."""
    from engine.snapshot.foreign import snapshot_of_file  # imports transformers, 30 MiB that snapshots do not need
    from engine.snapshot.write import write_snapshot

    with tempfile.TemporaryDirectory(prefix="kvloupe-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder) / "opened.safetensors"
        for _ in write_snapshot(snapshot_of_file(path, model), inside):
            pass
        return SnapshotFile(inside)


# ---- rows -----------------------------------------------------------------------------------------------------------

NUMBERS_AT_ONCE = 1 << 20
HEAD_NUMBERS_AT_ONCE = 1 << 19  # read at once of one head, as float32: 2 MiB
COUNTED_NUMBERS = 1 << 20  # a larger tensor is not counted if the picture shows the other one


class FileRows:
    """Reads the rows of a snapshot."""

    def __init__(self, file: SnapshotFile) -> None:
        self.file = file
        self.spec: CacheSpec = file.manifest.cache_spec or CacheSpec()
        self.num_tokens = file.manifest.num_tokens
        self._entries = {entry.index: entry for entry in file.layers}
        self._positions: dict[int, torch.Tensor] = {}
        self._last: tuple[object, torch.Tensor] | None = None  # the last query and its result

    def entry(self, layer: int) -> LayerEntry | None:
        """The entry of a layer in the file; None if it has no rows there."""
        return self._entries.get(layer)

    @cached_property
    def are_final(self) -> bool:
        """Whether no row was evicted or rewritten after it had been written."""
        spec = self.spec
        is_final = (
            spec.retention.keeps_all and not rewrites(spec) and not spec.recomputes and not spec.row.has_quantiser
        )
        is_told = self.file.manifest.cache_spec is not None
        return is_told and is_final and all(entry.first == 0 for entry in self._entries.values())

    @cached_property
    def num_coded(self) -> dict[int, tuple[int, ...]]:
        """How many rows of K and of V of each layer were coded. A file of plain numbers does not say it: there it
        follows from the cache mode."""
        if self.file.manifest.form == "stored":
            return {entry.index: (entry.keys.num_coded, entry.values.num_coded) for entry in self.file.layers}
        return {
            entry.index: tuple(
                0 if entry.kind == "cross" else coding.num_coded(entry.num_rows, part)
                for coding, part in zip(self.spec.codec.at(entry.index), PARTS, strict=True)
            )
            for entry in self.file.layers
        }

    def positions(self, entry: LayerEntry) -> torch.Tensor | None:
        """The positions `[H_kv, S]` of rows with gaps between them, or of a layer of which some heads were not
        written; else None."""
        if is_run(entry):
            return None
        if entry.index not in self._positions:
            positions = np.full((entry.num_kv_heads, entry.num_rows), NO_POSITION, np.int64)
            for head in entry.heads:
                positions[head] = self.file.positions(entry.index, head)
            self._positions[entry.index] = torch.from_numpy(positions)
        return self._positions[entry.index]

    def numbers(self, entry: LayerEntry, part: Part, heads: range, rows: range) -> torch.Tensor:
        """Numbers `[H, T, D]` in the dtype of the rows. The last result is kept."""
        query = entry.index, part, heads, rows
        if self._last is None or self._last[0] != query:
            found = torch.empty(len(heads), len(rows), entry.dim(part), dtype=getattr(torch, entry.dtype))
            for number, head in enumerate(heads):
                self._read_head(entry, part, head, rows, found[number])
            self._last = query, found
        return self._last[1]

    def _read_head(self, entry: LayerEntry, part: Part, head: int, rows: range, into: torch.Tensor) -> None:
        """Read rows `[T, D]` of a head; zeros if the head was not written."""
        if head not in entry.heads:
            into.zero_()
            return
        at_once = max(1, HEAD_NUMBERS_AT_ONCE // entry.dim(part))
        for start in range(0, len(rows), at_once):
            piece = rows[start : start + at_once]
            numbers = np.array(self.file.rows(entry.index, part, head, piece))
            into[start : start + len(piece)] = torch.from_numpy(numbers)


def is_run(entry: LayerEntry) -> bool:
    """Whether the rows of all heads are written, at consecutive positions."""
    return not entry.has_positions and len(entry.heads) == entry.num_kv_heads


@dataclass(frozen=True, eq=False)
class FileSource(Source):
    """The rows of a snapshot as they were with `num_tokens` tokens."""

    reader: FileRows
    num_tokens: int

    @property
    def rotation(self) -> str:
        return "How keys were turned by their positions is not known without the model: go on with it."

    @property
    def owner(self) -> tuple[object, ...]:
        return (self.reader,)

    @property
    def spec(self) -> CacheSpec:
        return self.reader.spec

    @property
    def is_known(self) -> bool:
        return self.num_tokens >= self.reader.num_tokens or self.reader.are_final

    @property
    def is_now(self) -> bool:
        return self.num_tokens >= self.reader.num_tokens

    @property
    def exact_provenance(self) -> Provenance:
        return written_provenance(self.reader.file) if self.is_known else "as stored now"

    def at(self, num_tokens: int) -> FileSource:
        return replace(self, num_tokens=min(num_tokens, self.reader.num_tokens))

    def held(self, layer: int, *, ever: bool = False) -> Held | None:
        entry = self.reader.entry(layer)
        if entry is None or (entry.first >= self.num_tokens and not ever):
            return None
        positions = self.reader.positions(entry)
        stop = entry.first + entry.num_rows
        if positions is None:
            stop = stop if ever else min(stop, self.num_tokens)
        elif not ever:
            counts = (positions < self.num_tokens).sum(1)
            keep = int(counts[0])
            if keep and not bool((counts != keep).any()):
                positions = positions[:, :keep]
        dims = entry.dim("keys"), entry.dim("values")
        return Held(entry.num_kv_heads, *dims, entry.dtype, entry.first, stop, positions)

    def rows(self, layer: int, part: Part, span: range | None = None, head: int | None = None) -> Rows | None:
        entry, held = self.reader.entry(layer), self.held(layer)
        if entry is None or held is None:
            return None
        heads = range(entry.num_kv_heads) if head is None else range(head, head + 1)
        if held.positions is None:
            start = held.first if span is None else min(max(span.start, held.first), held.stop)
            stop = held.stop if span is None else max(start, min(span.stop, held.stop))
            numbers = self.reader.numbers(entry, part, heads, range(start - entry.first, stop - entry.first))
            return Rows(numbers, start)
        positions = held.positions[heads.start : heads.stop]
        rows = range(positions.shape[1])
        if span is not None:
            places = ((positions >= span.start) & (positions < span.stop)).any(0).nonzero()[:, 0].tolist()
            rows = range(places[0], places[-1] + 1) if places else range(0)
        numbers = self.reader.numbers(entry, part, heads, rows)
        return Rows(numbers, held.first, positions[:, rows.start : rows.stop].contiguous())

    def num_final(self, layer: int, part: Part) -> int:
        entry = self.reader.entry(layer)
        is_final = entry is not None and self.reader.are_final and is_run(entry)
        return min(entry.num_rows, self.num_tokens) if entry is not None and is_final else 0

    def before(self, num_tokens: int) -> Source | None:
        found = self.at(num_tokens)
        return found if found.is_known else None

    def exact_from(self, layer: int, part: Part) -> int:
        """Before this position, the file has codes, or what was read from codes when it was written."""
        reader, entry = self.reader, self.reader.entry(layer)
        num_tokens = self.num_tokens if self.is_known else reader.num_tokens
        if entry is None or reader.file.manifest.provenance != "dequantised":
            return 0
        if not any(map(any, reader.num_coded.values())):  # the file says it of all rows
            return num_tokens
        num_coded = reader.num_coded[layer][PARTS.index(part)]
        return num_tokens if num_coded >= entry.num_rows else entry.first + num_coded if num_coded else 0

    def is_cheap(self, part: Part) -> bool:
        entries = self.reader.file.layers
        stored = self.ranges([entry.index for entry in entries], part)
        counted = [len(each.heads) * each.num_rows * each.dim(part) for each in entries if each.index not in stored]
        return sum(counted) <= COUNTED_NUMBERS

    def states(self, layer: int) -> tuple[StateMatrix, ...]:
        file, found = self.reader.file, list[StateMatrix]()
        for state in file.manifest.states if self.is_now else ():
            if state.layer == layer:
                numbers = torch.from_numpy(np.array(file.array(state.name)))
                is_bfloat16 = file.entries[state.name].dtype == "BF16"
                found += matrices_of(state.kind, numbers.view(torch.bfloat16) if is_bfloat16 else numbers)
        return tuple(found)

    def weights(self, layer: int) -> Rows | None:
        row = self.reader.file.attention(layer) if self.is_now and self.reader.entry(layer) is not None else None
        if row is None or row.shape[1] > self.num_tokens:
            return None
        return rows_of_weights(torch.from_numpy(row.copy()), self.num_tokens - row.shape[1])

    def pages(self) -> tuple[int, list[list[int]]]:
        file, source = self.reader.file, self.reader.file.manifest.num_source
        return self.num_tokens, [
            file.array(table_name(number))[: -(-max(0, self.num_tokens - source) // table.page_size)].tolist()
            for number, table in enumerate(file.manifest.tables)
        ]

    # ---- what is stored beside the rows ----------------------------------------------------------------------------

    def rows_at_once(self, layer: int, part: Part) -> int:
        entry = self.reader.entry(layer)
        return 1 if entry is None else max(1, NUMBERS_AT_ONCE // (entry.num_kv_heads * entry.dim(part)))

    def ranges(self, layers: Iterable[int], lens: str) -> dict[int, tuple[float, float, float]]:
        found = {layer: self._beside(layer, f"{lens}.magnitudes") for layer in layers}
        return {layer: (float(it[0]), float(it[1]), float(it[2])) for layer, it in found.items() if it is not None}

    def coarseness(self, lens: str) -> tuple[int, int, int] | None:
        file, part = self.reader.file, LENSES[lens].part
        pyramid = file.manifest.pyramid
        if pyramid is None or part != lens or not self.is_now:  # of K and V themselves, and of all rows
            return None
        return pyramid.tokens_per_column, pyramid.channels(part), num_numbers(file, part)

    def extremes(self, layer: int, lens: str) -> Extremes | None:
        entry, coarse = self.reader.entry(layer), self.coarseness(lens)
        low, high = self._beside(layer, f"{lens}.low"), self._beside(layer, f"{lens}.high")
        if entry is None or coarse is None or low is None or high is None or len(entry.heads) < entry.num_kv_heads:
            return None
        return Extremes(low, high, range(entry.first // coarse[0], -(-(entry.first + entry.num_rows) // coarse[0])))

    def _beside(self, layer: int, what: str) -> np.ndarray | None:
        entry, file = self.reader.entry(layer), self.reader.file
        name = "" if entry is None else entry.name(what)
        return file.numbers(name) if name in file else None


def written_provenance(file: SnapshotFile) -> Provenance:
    """The provenance of exact rows in a file: "recorded" if they came from a live cache, else as it was when they were
    written. An unknown word becomes "as stored now", which promises nothing."""
    match file.manifest.provenance:
        case "recomputed":
            return "recomputed"
        case "live cache" | "recorded" | "dequantised":
            return "recorded"
    return "as stored now"
