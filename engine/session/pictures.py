"""Answers requests for pictures: screen-sized pictures of the rows of a session, now or at an earlier step."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.history.history import History
from engine.look.canvas import Canvas
from engine.look.pictures import (
    NewestQuery,
    attention_picture,
    drawn,
    limited,
    of_queries,
    outliers_picture,
    picture_of,
    row_picture,
)
from engine.look.source import LiveSource, Source
from engine.model.loader import LoadedModel
from engine.session.live import LiveSequences
from engine.session.queries import Queries
from engine.session.stepper import Stepper
from engine.session.visible import OtherBranches, VisibleSequence, exact_provenance
from engine.spec.lenses import LENSES
from engine.wire.pictures import (
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    OutliersPicture,
    OutliersRequest,
    Picture,
    PictureRequest,
    RowRequest,
    TablePicture,
    TableRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import Provenance, read_only_floats


class PictureReader:
    """Takes pictures of live sequences and of states of other branches; see `engine.look.pictures`."""

    def __init__(
        self, model: LoadedModel, live: LiveSequences, history: History, stepper: Stepper, others: OtherBranches
    ) -> None:
        self._model, self._geometry, self._live = model, model.info.geometry, live
        self._history, self._stepper = history, stepper
        self._others = others

    def rows_at(self, seq_id: int, num_tokens: int) -> LiveSource:
        """The rows of a live sequence as they were when it had `num_tokens` tokens."""
        source = self.visible(seq_id).source
        assert isinstance(source, LiveSource)
        return source.at(num_tokens)

    def visible(self, seq_id: int, node: int | None = None) -> VisibleSequence:
        """A live sequence, or one as it was at a node; on the live path from a kept state only where the live cache has
        other rows since."""
        if node is not None and self._history.is_before_first(node):
            node = None
        if node is not None and self._others.is_on_other_branch(node):
            found = self._others.sequence_at(seq_id, node)
            if found is None:
                raise InputError(f"There was no sequence {seq_id} at step {node}: choose one of that step.")
            return found
        live, journal, phases = self._live.get(seq_id), self._history.journal, self._stepper.phases
        half = None if phases is None else phases.half_written(seq_id)  # how far a suspended step has come
        num_tokens = live.cache.num_tokens if half is None else half.num_tokens
        sequence, held = live.sequence, exact_provenance(self._live.mode, "live cache")
        state = journal.state(seq_id, node) if node is not None and sequence.moves_since(node) else None
        seen = self._live.seen.of(seq_id, live.cache)
        if seen.queries is None:
            seen.queries = Queries(self._model, live.cache, self._history, live)
        source = LiveSource(
            live.cache, num_tokens, held, sequence.moves, half, is_past=state is not None, kept_by=seen,
            queries=seen.queries, turned=lambda: self._model.rotation, full=seen.full,
        )  # fmt: skip
        if node is not None and state is not None and not source.at(state.num_tokens).is_known:
            kept = self._others.sequence_at(seq_id, node)
            if kept is not None and not kept.source.why_not:
                return kept
        return VisibleSequence(source, journal, seen)

    @torch.inference_mode()
    def take(self, request: PictureRequest, node: int | None = None) -> Picture:
        """A picture of a live sequence, or of the state at a node of any branch; empty and with the reason in its note
        where the rows of that node are not kept."""
        return self.picture(request, self.visible(request.seq_id, node), node)

    def picture(self, request: PictureRequest, visible: VisibleSequence, node: int | None = None) -> Picture:
        """A picture of a sequence that is visible, or was at a node."""
        request, source = limited(request, visible.source, self._geometry, "this model")
        match request:
            case OutliersRequest():
                return self._outliers(request, source, visible)
            case AttentionRequest():
                return attention_picture(request, self._query(request, visible), self._geometry)
            case TableRequest() if not visible.has_tables:
                return TablePicture(request, 1, (), request.num_tokens, "Its rows were moved to other pages since.")
            case RowRequest():
                return self._row(request, source, visible, node)
        return picture_of(request, source, self._geometry, visible.seen)

    def drawn(
        self,
        request: WallRequest | HeadRequest,
        visible: VisibleSequence,
        canvas: Canvas,
        before: WallPicture | HeadPicture | None,
        *,
        is_counted: bool,
    ) -> WallPicture | HeadPicture | CellUpdate:
        """A watched wall or head: an update of the picture before, or whole; see `engine.look.pictures.drawn`."""
        source = visible.source
        if before is None:  # what was drawn before exists
            limited(request, source, self._geometry, "this model")
        return drawn(request, source, self._geometry, visible.seen, canvas, before, is_counted=is_counted)

    def _row(self, request: RowRequest, source: Source, visible: VisibleSequence, node: int | None) -> Picture:
        """A row as the cache holds it, its norms as it was written, and as it was computed if that was captured for
        every layer that holds it."""
        steps = visible.journal.steps
        step = steps[-1] if node is None and steps else node
        norms = self._history.norms_of(request.seq_id, step, request.position)
        picture = replace(row_picture(request, source, self._geometry), written=norms)
        if not visible.is_live:
            return picture
        num_source = self._live.get(request.seq_id).cache.num_source
        stops = {layer.index: num_source for layer in self._geometry.layers if layer.kind == "cross"}
        written = self._history.written_rows(request.seq_id, request.position, stops)
        if not all(layer in written for layer in picture.layers):
            return picture
        keys, values = (
            tuple(read_only_floats(written[layer][part].float().numpy()) for layer in picture.layers) for part in (0, 1)
        )
        return replace(picture, written_keys=keys, written_values=values)

    def _outliers(self, request: OutliersRequest, source: Source, visible: VisibleSequence) -> OutliersPicture:
        attention = self._history.attention_at(request.seq_id, request.step, visible.journal)
        state = visible.journal.state(request.seq_id, request.step)
        num_attended = state.num_tokens if state is not None else source.num_tokens
        return outliers_picture(request, source, self._geometry, visible.seen, attention, num_attended)

    def _query(self, request: AttentionRequest, visible: VisibleSequence) -> NewestQuery:
        if LENSES[request.lens].reads == "weights":
            return self._newest_query(request, visible)
        state = visible.journal.state(request.seq_id, request.step)
        count = visible.source.num_tokens if state is None else state.num_tokens
        return of_queries(request, visible.source if count == visible.source.num_tokens else visible.source.at(count))

    def _newest_query(self, request: AttentionRequest, visible: VisibleSequence) -> NewestQuery:
        """The attention of the newest query of a step, as it was recorded: it needs no rows."""
        seq_id, step, history, phases = request.seq_id, request.step, self._history, self._stepper.phases
        journal, half = visible.journal, visible.source.half
        gone = f"The attention of step {step} was not measured, or is no longer kept."
        if phases is not None and half is not None and step == phases.step:
            weights = half.weights.get(request.layer)
            return NewestQuery(
                weights, half.num_tokens - 1, "live cache", "" if weights is not None else half.note or gone
            )
        state, computed_by = journal.state(seq_id, step), journal.computed_by(seq_id, step)
        row = (history.attention.get(computed_by) or {}).get(request.layer)
        last = history.last_step if visible.is_live else None
        newest = computed_by if step == last else None if last is None else journal.computed_by(seq_id, last)
        # after a change of the mode the cache may no longer hold the rows that this attention is about
        is_newest = False
        if newest is not None and computed_by == newest:
            is_newest = not self._live.get(seq_id).sequence.moves_since(newest[0])
        provenance: Provenance = "live cache" if is_newest else "recorded"
        if state is not None and not state.num_tokens:
            waited = f"The sequence held no rows after step {step}: it waited for room in the pool."
            return NewestQuery(None, 0, provenance, waited)
        return NewestQuery(
            row, 0 if state is None else state.num_tokens - 1, provenance, "" if row is not None else gone
        )
