"""An opened snapshot: takes pictures of it with the same functions as for a live sequence."""

from __future__ import annotations

import re
import tempfile
from functools import cached_property
from pathlib import Path

import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.files.text import kind_of
from engine.look.pictures import (
    NewestQuery,
    Seen,
    attention_picture,
    limited,
    of_queries,
    outliers_picture,
    picture_of,
    row_picture,
)
from engine.opened.description import model_info, opened_file, readable_steps, sequence_info, tokens_of
from engine.opened.rows import FileRows, FileSource
from engine.saved.session import joined_text
from engine.snapshot.read import SnapshotFile
from engine.spec.lenses import LENSES
from engine.spec.sampling import SamplingParams
from engine.wire.pictures import AttentionRequest, OutliersRequest, Picture, PictureRequest, RowRequest
from engine.wire.records import RowStats
from engine.wire.status import EngineStatus, Work

MARKER = re.compile(r"<(?![0-9A-F]{2}>)[^<>\s]+>|\[CLS\]")  # a token that begins a text, as vocabularies write it


class OpenedSnapshot:
    """One opened snapshot. The header is read when it is opened, everything else on request.

    An npz and a state file of llama.cpp (with its `model`, or the one beside it) are converted first. Raises
    `InputError` for a file that is none of these, and later for parts that cannot be read.
    """

    def __init__(self, path: Path, model: Path | None = None) -> None:
        is_foreign = path.suffix == ".npz" or kind_of(path) != ""
        self.file = opened_foreign(path, model) if is_foreign else SnapshotFile(path)
        try:
            self.info = model_info(self.file)
            self.sequence = sequence_info(self.file)
            self.opened = opened_file(self.file)
            self.token_ids, self.texts = tokens_of(self.file)
        except BaseException:
            self.close()
            raise
        self.rows = FileRows(self.file)
        self._seen = Seen(self.rows)
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
                return outliers_picture(request, source, geometry, self._seen, known, self.num_tokens)
            case AttentionRequest():
                if LENSES[request.lens].reads == "queries":
                    return attention_picture(request, of_queries(request, source), geometry)
                row = self.attention(request.layer) if self._is_newest(request.step) else None
                note = "" if row is not None else f"The attention of step {request.step} is not in the file."
                return attention_picture(request, NewestQuery(row, self.num_tokens - 1, "recorded", note), geometry)
            case RowRequest():
                return replace(row_picture(request, source, geometry), written=self._norms_of(request.position))
        return picture_of(request, source, geometry, self._seen)

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


def opened_foreign(path: Path, model: Path | None = None) -> SnapshotFile:
    """Convert another program's file to a temporary snapshot, whose name is deleted at once. Raises `InputError` if it
    is not valid or lacks something that is needed; `model` is that of a state file of llama.cpp."""
    from engine.snapshot.foreign import snapshot_of_file  # imports transformers, 30 MiB that snapshots do not need
    from engine.snapshot.write import write_snapshot

    with tempfile.TemporaryDirectory(prefix="kvloupe-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder) / "opened.safetensors"
        for _ in write_snapshot(snapshot_of_file(path, model), inside):
            pass
        file = SnapshotFile(inside)
    file.path = path
    return file
