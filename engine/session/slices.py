"""Screen-sized pictures of the rows that a session holds, now or as they were."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from engine.errors import InputError
from engine.history.history import History
from engine.look.outliers import outliers_slice
from engine.look.rows_at import HalfWritten, RowsAt
from engine.look.slices import attention_slice, head_slice, row_slice, table_slice, within
from engine.look.wall import wall_slice
from engine.model.loader import LoadedModel
from engine.session.live import LiveSequences
from engine.session.stepper import Stepper
from engine.wire.arrays import read_only_floats
from engine.wire.records import Provenance
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.slices import HeadSlice, OutliersSlice, Slice, WallSlice


class Slices:
    """Answers requests for slices; see `engine.look.slices`."""

    def __init__(self, model: LoadedModel, live: LiveSequences, history: History, stepper: Stepper) -> None:
        self._geometry, self._live, self._history, self._stepper = model.info.geometry, live, history, stepper

    @property
    def provenance(self) -> Provenance:
        """Where the rows of now come from."""
        spec = self._live.mode.spec
        if spec.recomputes:
            return "recomputed"
        return "live cache" if spec.codec.is_exact and spec.layout != "quantized" else "dequantised"

    def past(self, seq_id: int, num_tokens: int) -> RowsAt:
        """The rows of a sequence as they were with so many tokens."""
        half = self.half_written(seq_id)
        return RowsAt(
            self._live.get(seq_id).cache, num_tokens, self.provenance, self._history.journal.all_moves(seq_id),
            half if half is not None and num_tokens > half.had else None,
        )  # fmt: skip

    def half_written(self, seq_id: int) -> HalfWritten | None:
        """What a suspended step has written of a sequence; None where none is, or it is not fed."""
        phases = self._stepper.phases
        return None if phases is None else phases.half_written(seq_id)

    def num_tokens(self, seq_id: int) -> int:
        """How many tokens there are of a sequence now, those of a suspended step among them."""
        half = self.half_written(seq_id)
        return self._live.get(seq_id).cache.num_tokens if half is None else half.num_tokens

    def take(self, request: SliceRequest) -> Slice:
        geometry, magnitudes = self._geometry, self._live.magnitudes
        cache = self._live.get(request.seq_id).cache
        layer = getattr(request, "layer", 0)
        if not 0 <= layer < len(geometry.layers):
            raise InputError(f"There is no layer {layer}: this model has layers 0 … {len(geometry.layers) - 1}.")
        if getattr(request, "kv_head", 0) < 0:
            raise InputError(f"There is no kv head {request.kv_head}: count from 0.")  # type: ignore[union-attr]
        count = self.num_tokens(request.seq_id)
        request = within(request, count)
        past = self.past(request.seq_id, getattr(request, "num_tokens", count))
        take: dict[type, Callable[[], Slice]] = {
            WallRequest: lambda: wall_slice(request, past, geometry, magnitudes.of_wall(request, past, geometry)),  # type: ignore[arg-type]
            HeadRequest: lambda: head_slice(request, past, geometry, magnitudes.of_head(request, past)),  # type: ignore[arg-type]
            OutliersRequest: lambda: self._outliers(request, past),  # type: ignore[arg-type]
            RowRequest: lambda: self._row(request, past),  # type: ignore[arg-type]
            AttentionRequest: lambda: self._attention(request),  # type: ignore[arg-type]
            TableRequest: lambda: table_slice(request, cache),  # type: ignore[arg-type]
        }
        began = time.perf_counter()
        piece = take[type(request)]()
        if isinstance(piece, WallSlice | HeadSlice | OutliersSlice):  # with what counting its magnitudes took
            return replace(piece, took_ms=(time.perf_counter() - began) * 1e3)
        return piece

    def _row(self, request: RowRequest, past: RowsAt) -> Slice:
        """A row as it is held, and as it was written, where that was captured of every layer that holds it."""
        piece = row_slice(request, past, self._geometry)
        written = self._history.written_rows(request.seq_id, request.position)
        if not all(layer in written for layer in piece.layers):
            return piece
        keys, values = (
            tuple(read_only_floats(written[layer][part].float().numpy()) for layer in piece.layers) for part in (0, 1)
        )
        return replace(piece, written_keys=keys, written_values=values)

    def _outliers(self, request: OutliersRequest, past: RowsAt) -> Slice:
        keys, values = self._live.magnitudes.of_all(request.seq_id, past, self._geometry)
        attention = self._history.attention_at(request.seq_id, request.step)
        return outliers_slice(request, past, self._geometry, keys, values, attention)

    def _attention(self, request: AttentionRequest) -> Slice:
        seq_id, history, phases = request.seq_id, self._history, self._stepper.phases
        journal, half = history.journal, self.half_written(request.seq_id)
        if phases is not None and half is not None and request.step == phases.step:
            weights = phases.weights(seq_id, request.layer)
            piece = attention_slice(request, weights, half.num_tokens - 1, self._geometry, True)
            return piece if weights is not None or not half.note else replace(piece, note=half.note)
        row = history.attention_at(seq_id, request.step).get(request.layer)
        mark, fed_at = journal.mark(seq_id, request.step), journal.fed_at(seq_id, request.step)
        position = 0 if mark is None else mark.num_tokens - 1 if mark.num_tokens else None
        newest = journal.fed_at(seq_id, history.last_step) if history.last_step is not None else None
        # in another mode since, the row is of rows that the cache may hold no more
        is_newest = fed_at is not None and fed_at == newest and not journal.has_moved(seq_id, fed_at[0])
        return attention_slice(request, row, position, self._geometry, is_newest)
