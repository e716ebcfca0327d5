"""Answers requests for slices: screen-sized pictures of the rows of a session, now or at an earlier step."""

from __future__ import annotations

import time

from msgspec.structs import replace

from engine.errors import InputError
from engine.history.history import History
from engine.look.drawn_wall import next_wall
from engine.look.outliers import outliers_slice
from engine.look.rows_at import HalfWritten, RowsAt
from engine.look.slices import attention_slice, checked, head_slice, row_slice, table_slice
from engine.model.loader import LoadedModel
from engine.session.live import LiveSequences
from engine.session.stepper import Stepper
from engine.session.visible import OtherBranches, VisibleSequence, exact_provenance
from engine.wire.arrays import read_only_floats
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.slices import AttentionSlice, HeadSlice, OutliersSlice, Slice, TableSlice, WallSlice


class SliceReader:
    """Takes slices of live sequences and of states of other branches; see `engine.look.slices`."""

    def __init__(
        self, model: LoadedModel, live: LiveSequences, history: History, stepper: Stepper, others: OtherBranches
    ) -> None:
        self._geometry, self._live, self._history, self._stepper = model.info.geometry, live, history, stepper
        self._others = others

    def rows_at(self, seq_id: int, num_tokens: int) -> RowsAt:
        """The rows of a live sequence as they were when it had `num_tokens` tokens."""
        return self._visible(seq_id).rows_at(num_tokens)

    def _visible(self, seq_id: int, node: int | None = None) -> VisibleSequence:
        """A live sequence, or one as it was at a node; on the live path from a kept state only where the live cache has
        other rows since."""
        if node is not None and self._history.is_before_first(node):
            node = None
        if node is not None and self._others.is_on_other_branch(node):
            found = self._others.sequence_at(seq_id, node)
            if found is None:
                raise InputError(f"There was no sequence {seq_id} at step {node}: choose one of that step.")
            return found
        live, journal, half = self._live.get(seq_id), self._history.journal, self.half_written(seq_id)
        num_tokens = live.cache.num_tokens if half is None else half.num_tokens
        moves = journal.all_moves(seq_id)
        held = exact_provenance(self._live.mode, "live cache")
        mark = journal.mark(seq_id, node) if node is not None and journal.has_moved(seq_id, node) else None
        visible = VisibleSequence(
            live.cache, num_tokens, held, moves, journal, self._live.magnitudes, half, is_past=mark is not None
        )
        if node is not None and mark is not None and not visible.rows_at(mark.num_tokens).is_known:
            kept = self._others.sequence_at(seq_id, node)
            if kept is not None and not kept.why_not:
                return kept
        return visible

    def half_written(self, seq_id: int) -> HalfWritten | None:
        """How far a suspended step has written the rows of a sequence; None if no step is suspended or it does not feed
        the sequence."""
        phases = self._stepper.phases
        return None if phases is None else phases.half_written(seq_id)

    def num_tokens(self, seq_id: int) -> int:
        """The number of tokens of a sequence, those that a suspended step feeds included."""
        half = self.half_written(seq_id)
        return self._live.get(seq_id).cache.num_tokens if half is None else half.num_tokens

    def take(self, request: SliceRequest, node: int | None = None) -> Slice:
        """A slice of a live sequence, or of the state at a node of any branch; empty and with the reason in its note
        where the rows of that node are not kept."""
        geometry, visible = self._geometry, self._visible(request.seq_id, node)
        request = checked(request, geometry, visible.num_tokens, "this model")
        rows = visible.rows_at(getattr(request, "num_tokens", visible.num_tokens))
        began, piece = time.perf_counter(), self._slice_of(request, rows, visible)
        if visible.why_not and not isinstance(piece, AttentionSlice):  # attention is recorded and needs no rows
            piece = replace(piece, note=visible.why_not)
        if isinstance(piece, WallSlice | HeadSlice | OutliersSlice):  # the time includes counting the magnitudes
            return replace(piece, took_ms=(time.perf_counter() - began) * 1e3)
        return piece

    def _slice_of(self, request: SliceRequest, rows: RowsAt, visible: VisibleSequence) -> Slice:
        geometry, magnitudes = self._geometry, visible.magnitudes
        match request:
            case WallRequest():
                return next_wall(request, rows, geometry, magnitudes)
            case HeadRequest():
                return head_slice(request, rows, geometry, magnitudes.of_head(request, rows))
            case OutliersRequest():
                return self._outliers(request, rows, visible)
            case RowRequest():
                return self._row(request, rows, visible)
            case AttentionRequest():
                return self._attention(request, visible)
            case TableRequest():
                return self._table(request, visible)

    def _table(self, request: TableRequest, visible: VisibleSequence) -> Slice:
        if visible.has_tables:
            return table_slice(request, visible.cache)
        return TableSlice(request, 1, (), request.num_tokens, "Its rows were moved to other pages since.")

    def _row(self, request: RowRequest, rows: RowsAt, visible: VisibleSequence) -> Slice:
        """A row as the cache holds it, and as it was computed if that was captured for every layer that holds it."""
        piece = row_slice(request, rows, self._geometry)
        if not visible.is_live:
            return piece
        num_source = self._live.get(request.seq_id).cache.num_source
        stops = {layer.index: num_source for layer in self._geometry.layers if layer.kind == "cross"}
        written = self._history.written_rows(request.seq_id, request.position, stops)
        if not all(layer in written for layer in piece.layers):
            return piece
        keys, values = (
            tuple(read_only_floats(written[layer][part].float().numpy()) for layer in piece.layers) for part in (0, 1)
        )
        return replace(piece, written_keys=keys, written_values=values)

    def _outliers(self, request: OutliersRequest, rows: RowsAt, visible: VisibleSequence) -> Slice:
        keys, values = visible.magnitudes.of_all(request.seq_id, rows, self._geometry)
        attention = self._history.attention_at(request.seq_id, request.step, visible.journal)
        mark = visible.journal.mark(request.seq_id, request.step)
        num_attended = mark.num_tokens if mark is not None else rows.num_tokens
        return outliers_slice(request, rows, self._geometry, keys, values, attention, num_attended)

    def _attention(self, request: AttentionRequest, visible: VisibleSequence) -> Slice:
        seq_id, history, phases = request.seq_id, self._history, self._stepper.phases
        journal, half = visible.journal, visible.half
        if phases is not None and half is not None and request.step == phases.step:
            weights = phases.weights(seq_id, request.layer)
            piece = attention_slice(request, weights, half.num_tokens - 1, self._geometry, True)
            return piece if weights is not None or not half.note else replace(piece, note=half.note)
        row = history.attention_at(seq_id, request.step, journal).get(request.layer)
        mark, fed_at = journal.mark(seq_id, request.step), journal.fed_at(seq_id, request.step)
        position = 0 if mark is None else mark.num_tokens - 1 if mark.num_tokens else None
        newest = (
            journal.fed_at(seq_id, history.last_step) if visible.is_live and history.last_step is not None else None
        )
        # after a change of the mode the cache may no longer hold the rows that this attention is about
        is_newest = fed_at is not None and fed_at == newest and not journal.has_moved(seq_id, fed_at[0])
        return attention_slice(request, row, position, self._geometry, is_newest)
