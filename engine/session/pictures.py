"""Answers requests for pictures: screen-sized pictures of the rows of a session, now or at an earlier step."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.history import History
from engine.history.tree import Tree, TreePath
from engine.look.canvas import Canvas
from engine.look.measures import entropy_of
from engine.look.pictures import (
    PictureMemo,
    PictureMemos,
    QueryWeights,
    attention_picture,
    drawn,
    limited,
    of_queries,
    outliers_picture,
    picture_of,
    row_picture,
)
from engine.look.source import CacheSource, Nothing, Rows, Source
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.going_back import StateRestorer
from engine.session.mode import CacheMode
from engine.session.rerun import CHUNK, ENDLESS
from engine.session.states import KeptStates, LiveSequence, LiveSequences
from engine.session.stepper import Stepper
from engine.spec.cache import CacheSpec
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

    def rows_at(self, seq_id: int, num_tokens: int) -> CacheSource:
        """The rows of a live sequence as they were when it had `num_tokens` tokens."""
        source = self.visible(seq_id).source
        assert isinstance(source, CacheSource)
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
        live, path, phases = self._live.get(seq_id), self._history.path, self._stepper.phases
        half = None if phases is None else phases.half_written(seq_id)  # how far a suspended step has come
        num_tokens = live.cache.num_tokens if half is None else half.num_tokens
        sequence, held = live.sequence, exact_provenance(self._live.mode, "live cache")
        state = path.state(seq_id, node) if node is not None and sequence.moves_since(node) else None
        memo = self._live.memos.of(seq_id, live.cache)
        if memo.queries is None:
            memo.queries = Queries(self._model, live.cache, self._history, live)
        source = CacheSource(
            live.cache, num_tokens, held, sequence.moves, half, is_past=state is not None, kept_by=memo,
            queries=memo.queries, turned=lambda: self._model.rotation, full=memo.full,
        )  # fmt: skip
        if node is not None and state is not None and not source.at(state.num_tokens).is_known:
            kept = self._others.sequence_at(seq_id, node)
            if kept is not None and not kept.source.why_not:
                return kept
        return VisibleSequence(source, path, memo)

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
        return picture_of(request, source, self._geometry, visible.memo)

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
        return drawn(request, source, self._geometry, visible.memo, canvas, before, is_counted=is_counted)

    def _row(self, request: RowRequest, source: Source, visible: VisibleSequence, node: int | None) -> Picture:
        """A row as the cache holds it, its norms as it was written, and as it was computed if that was captured for
        every layer that holds it."""
        steps = visible.path.steps
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
        attention = self._history.attention_at(request.seq_id, request.step, visible.path)
        state = visible.path.state(request.seq_id, request.step)
        num_attended = state.num_tokens if state is not None else source.num_tokens
        return outliers_picture(request, source, self._geometry, visible.memo, attention, num_attended)

    def _query(self, request: AttentionRequest, visible: VisibleSequence) -> QueryWeights:
        if LENSES[request.lens].reads == "weights":
            return self._newest_query(request, visible)
        state = visible.path.state(request.seq_id, request.step)
        count = visible.source.num_tokens if state is None else state.num_tokens
        return of_queries(request, visible.source if count == visible.source.num_tokens else visible.source.at(count))

    def _newest_query(self, request: AttentionRequest, visible: VisibleSequence) -> QueryWeights:
        """The attention of the newest query of a step, as it was recorded: it needs no rows."""
        seq_id, step, history, phases = request.seq_id, request.step, self._history, self._stepper.phases
        path, half, held = visible.path, visible.source.half, exact_provenance(self._live.mode, "live cache")
        gone = f"The attention of step {step} was not measured, or is no longer kept."
        if phases is not None and half is not None and step == phases.step:
            weights = half.weights.get(request.layer)
            return QueryWeights(weights, half.num_tokens - 1, held, "" if weights is not None else half.note or gone)
        state, computed_by = path.state(seq_id, step), path.computed_by(seq_id, step)
        row = (history.attention.get(computed_by) or {}).get(request.layer)
        last = history.last_step if visible.is_live else None
        newest = computed_by if step == last else None if last is None else path.computed_by(seq_id, last)
        # after a change of the mode the cache may no longer hold the rows that this attention is about
        is_newest = False
        if newest is not None and computed_by == newest:
            is_newest = not self._live.get(seq_id).sequence.moves_since(newest[0])
        provenance = held if is_newest else "recorded"
        if state is not None and not state.num_tokens:
            waited = f"The sequence held no rows after step {step}: it waited for room in the pool."
            return QueryWeights(None, 0, provenance, waited)
        return QueryWeights(
            row, 0 if state is None else state.num_tokens - 1, provenance, "" if row is not None else gone
        )


# ---- what a picture is taken from ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VisibleSequence:
    """A sequence as pictures can show it: the `source` of its rows, its `path` in the history tree, and the `memo` of
    its pictures. `has_tables` False: the rows are there but were moved to other pages since, so that the page tables of
    that step are unknown."""

    source: CacheSource | Nothing
    path: TreePath
    memo: PictureMemo
    has_tables: bool = True
    is_live: bool = True


@dataclass(eq=False)
class OtherBranches:
    """Finds the rows of nodes that are not on the live path, without going there: in kept states at the node or
    descending from it that still hold its rows. Nothing is computed, copied or changed."""

    history: History
    restorer: StateRestorer
    kept: KeptStates
    _path: tuple[Tree, int, TreePath] | None = field(default=None, init=False)
    _counted: tuple[Tree | None, int, PictureMemos] = field(default=(None, -1, PictureMemos()), init=False)

    def is_on_other_branch(self, node: int) -> bool:
        """Whether a node is off the live path; raises `InputError` for one that does not exist."""
        tree = self.history.tree
        tree.at(node)
        return not tree.is_on_path(node, self.history.last_step)

    def sequence_at(self, seq_id: int, node: int) -> VisibleSequence | None:
        """A sequence as it was at a node of another branch; None if it did not exist there."""
        entry, path = self.history.tree.at(node), self._path_to(node)
        there = entry.states.get(seq_id)
        if there is None:
            return None
        without_tables: VisibleSequence | None = None
        for state in (*self.restorer.sources(), *self.kept.removed):
            live = state.sequences.get(seq_id)
            if (
                live is None
                or not self.restorer.descends_from(state, node)
                or not state.holds(seq_id, node, there.num_tokens)
            ):
                continue
            # moves that led to this node itself do not hide its rows
            moves = live.sequence.moves
            moves = tuple(move for move in moves if move.step >= node or move.had < there.num_tokens)
            memo, held = self._memos.of(seq_id, live.cache), exact_provenance(state.mode, "kept")
            source = CacheSource(live.cache, there.num_tokens, held, moves, kept_by=memo, full=memo.full)
            has_tables = not state.mode.spec.is_paged or all(move.step < node for move in moves)
            found = VisibleSequence(source, path, memo, has_tables=has_tables, is_live=False)
            if source.is_known:
                if found.has_tables:
                    return found
                without_tables = without_tables or found
        if without_tables is not None:
            return without_tables
        gone = f"Step {node} is on another branch, and its K and V are not kept: going there computes them again."
        nothing = Nothing(entry.node.cache, there.num_tokens, gone)
        return VisibleSequence(nothing, path, PictureMemo(nothing), is_live=False)

    @property
    def _memos(self) -> PictureMemos:
        """The memos of states of other branches; discarded after every step or edit, since kept states only change
        then."""
        tree, step, memos = self._counted
        if tree is not self.history.tree or step != self.history.next_step:
            memos = PictureMemos()
            self._counted = self.history.tree, self.history.next_step, memos
        return memos

    def _path_to(self, node: int) -> TreePath:
        """The path to a node; the last one asked for is remembered, since it never changes."""
        if self._path is None or self._path[0] is not self.history.tree or self._path[1] != node:
            self._path = self.history.tree, node, self.history.path_to(node)
        return self._path[2]


def exact_provenance(mode: CacheMode, held: Provenance) -> Provenance:
    """The provenance of rows that are not read from codes, in a cache of this mode that `held` describes."""
    return "recomputed" if mode.spec.recomputes else held


# ---- the attention of all queries of a sequence --------------------------------------------------------------------

MOST_QUERIES = 1024  # the latest, of which pictures are made
TILE_NUMBERS = 1 << 22  # weights of one layer in a tile


@dataclass(eq=False)
class QueryMeasures:
    """What was measured of the queries from `first` on: by layer their entropies `[H, Q]`, and the sums `[H, S]` of
    their weights."""

    first: int
    stop: int
    num_dropped: int = 0
    entropy: dict[int, torch.Tensor] = field(default_factory=dict)
    received: dict[int, torch.Tensor] = field(default_factory=dict)

    def add(self, weights: dict[int, torch.Tensor], stop: int) -> None:
        """Add the weights `[H, Q, S]` by layer of the next queries, up to `stop`."""
        for layer, found in weights.items():
            entropy, sums = entropy_of(found), found.nan_to_num(0.0).sum(1)
            if layer in self.entropy:
                entropy = torch.cat([self.entropy[layer], entropy], 1)
                room = sums.shape[1] - self.received[layer].shape[1]
                sums = sums + torch.nn.functional.pad(self.received[layer], (0, room))
            self.entropy[layer], self.received[layer] = entropy, sums
        self.stop = stop

    def drop(self, weights: dict[int, torch.Tensor], first: int) -> None:
        """Take the weights `[H, 1, S]` by layer of the oldest query out again, so that those from `first` on are
        left."""
        for layer, found in weights.items():
            sums, room = found.nan_to_num(0.0).sum(1), self.received[layer].shape[1] - found.shape[2]
            self.received[layer] = self.received[layer] - torch.nn.functional.pad(sums, (0, room))
            self.entropy[layer] = self.entropy[layer][:, 1:]
        self.num_dropped += 1
        self.first = first


class Queries:
    """The attention of the queries of one sequence. A query whose step is in the log is as that step computed it. The
    others are computed again from the tokens: only in an exact cache without edits are these the weights of then."""

    def __init__(self, model: LoadedModel, cache: SequenceCache, history: History, live: LiveSequence) -> None:
        self._model, self._cache, self._history, self._live = model, cache, history, live
        self._latest = 0  # how many queries alone are asked for; 0: as many as pictures are made of
        self._narrowed: Queries | None = None  # the same with the latest ones alone, as it was asked for last
        self._known: QueryMeasures | None = None
        self._map: tuple[tuple[int, int], int, torch.Tensor] | None = None  # of a layer and head, from a query on

    def latest(self, count: int) -> Queries:
        """These queries, but the latest `count` alone; as they are where it is 0."""
        if not count:
            return self
        if self._narrowed is None or self._narrowed._latest != count:
            self._narrowed = Queries(self._model, self._cache, self._history, self._live)
            self._narrowed._latest = count
        return self._narrowed

    def newest(self, num_tokens: int) -> dict[int, torch.Tensor]:
        """The weights `[H, S]` by layer of the query with which there were `num_tokens` tokens; empty where they are
        not kept."""
        return self._history.attention_with(self._live.seq_id, num_tokens)

    def why_not(self, num_tokens: int) -> str:
        """Why no query is known; empty where some are."""
        if not self._model.info.captures_attention:
            return "This model computes its attention in a way that cannot be watched."
        return "" if self.first(num_tokens) < num_tokens else self._why_not_again or "No query has been computed yet."

    @property
    def _why_not_again(self) -> str:
        """Why queries cannot be computed again; empty where they can."""
        geometry, spec = self._model.info.geometry, self._cache.spec
        if geometry.has_encoder:
            return "The attention of earlier queries is not computed again behind an encoder."
        if not (spec.is_append_only or spec.recomputes):
            return "The rows that earlier queries read are coded or evicted by now: only recorded queries are known."
        return "Rows were edited since: only recorded queries are known." if self._cache.by_hand else ""

    def first(self, num_tokens: int) -> int:
        """The first of the queries up to `num_tokens` of which all are known or can be computed."""
        least = max(0, num_tokens - (self._latest or MOST_QUERIES))
        if not self._why_not_again:
            return least
        logged = self._history.logged_queries(self._live.seq_id, num_tokens)
        return next((query + 1 for query in range(num_tokens - 1, least - 1, -1) if query not in logged), least)

    def provenance(self, num_tokens: int) -> Provenance:
        """Whether all of the queries are as their steps recorded them, or some are computed again."""
        logged = self._history.logged_queries(self._live.seq_id, num_tokens)
        is_logged = all(query in logged for query in range(self.first(num_tokens), num_tokens))
        return "recorded" if is_logged else "recomputed"

    def num_heads(self, layer: int) -> int:
        """The number of query heads of a layer; 0 if it has no attention of its own."""
        found = self._model.info.geometry.layers[layer]
        return 0 if found.kind == "linear" else found.num_heads

    def measured(self, name: str, layer: int, num_tokens: int) -> Rows | None:
        """Entropy by query, or the sum of the weights by token, `[H, T, 1]`; None where the layer has no attention."""
        known = self._known
        first = self.first(num_tokens)
        is_sum = name == "attention-received"
        is_joined = known is not None and known.first <= first <= known.stop
        if known is None or not is_joined or (is_sum and known.stop > num_tokens) or self._is_left(known, first):
            known = self._known = QueryMeasures(first, first)
        elif self._latest and known.first < first:
            for start, weights in self.weights(range(known.first, first)):
                known.drop(weights, start + 1)
        if known.stop < num_tokens:
            for start, weights in self.weights(range(known.stop, num_tokens)):
                known.add(weights, start + next(iter(weights.values())).shape[1] if weights else num_tokens)
        found = (known.received if is_sum else known.entropy).get(layer)
        if found is None:
            return None
        return (
            Rows(found[:, :num_tokens, None], 0)
            if is_sum
            else Rows(found[:, : num_tokens - known.first, None], known.first)
        )

    def _is_left(self, known: QueryMeasures, first: int) -> bool:
        """Whether the sums are to be made anew: queries that are wanted no more cannot be taken out as they were
        recorded, or so many were taken out that rounding would show. Where no number was asked for, all stay in."""
        if not self._latest or known.first >= first:
            return False
        logged, leaving = self._history.logged_queries(self._live.seq_id, known.stop), range(known.first, first)
        return known.num_dropped + len(leaving) > known.stop - first or any(query not in logged for query in leaving)

    def summed_from(self, num_tokens: int) -> int:
        """The first of the queries that the sums which were measured are over."""
        first, known = self.first(num_tokens), self._known
        return first if known is None or self._latest else min(first, known.first)

    def map_of(self, layer: int, head: int, num_tokens: int, span: range | None) -> Rows | None:
        """The weights `[1, Q, num_tokens]` of one head: NaN where a query had no row, zero behind it."""
        first, stop = self.first(num_tokens), num_tokens
        if span is not None:
            first, stop = max(first, span.start), min(span.stop, num_tokens)
        if first >= stop:
            return None
        begins, known = self._map_from(layer, head, first)
        if begins + len(known) < stop:
            tiles = [
                torch.nn.functional.pad(weights[layer][head], (0, num_tokens - weights[layer].shape[2]))
                for _, weights in self.weights(range(begins + len(known), stop), [layer])
                if layer in weights
            ]
            if not tiles:
                return None
            room = num_tokens - known.shape[1]
            known = torch.cat([torch.nn.functional.pad(known, (0, room)).to(tiles[0].device), *tiles])
            self._map = (layer, head), begins, known
        numbers = known[first - begins : stop - begins, :num_tokens]
        if numbers.shape[1] < num_tokens:  # no query here reads behind what was known
            numbers = torch.nn.functional.pad(numbers, (0, num_tokens - numbers.shape[1]))
        return Rows(numbers[None], first)

    def _map_from(self, layer: int, head: int, first: int) -> tuple[int, torch.Tensor]:
        """The map of a head as it was asked for last, with its first query, as far as it goes on from `first`; an empty
        one where none does."""
        if self._map is not None:
            place, begins, known = self._map
            if place == (layer, head) and begins <= first <= begins + len(known):
                return begins, known
        return first, torch.empty(0, 0)

    # ---- weights ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def weights(
        self, queries: range, layers: Collection[int] | None = None
    ) -> Iterator[tuple[int, dict[int, torch.Tensor]]]:
        """Yield the weights of these queries in pieces: the first query, and `[H, Q, S]` by layer for the tokens from
        position 0 up to the last of them; NaN where there was no row, zero behind a query."""
        logged = self._history.logged_queries(self._live.seq_id, queries.stop)
        start = queries.start
        while start < queries.stop:
            if start in logged:
                found = {x: row[:, None] for x, row in logged[start].items() if layers is None or x in layers}
                yield start, {layer: from_zero(row.float(), start + 1) for layer, row in found.items()}
                start += 1
                continue
            stop = next((query for query in range(start, queries.stop) if query in logged), queries.stop)
            yield from self._computed(range(start, stop), layers)
            start = stop

    def _computed(
        self, queries: range, layers: Collection[int] | None
    ) -> Iterator[tuple[int, dict[int, torch.Tensor]]]:
        """Weights of queries that were not recorded: a forward of their tokens, in tiles, on a scratch cache."""
        info = self._model.info
        driver = Driver.in_mode(self._model, CacheSpec(), ENDLESS)
        attending = [x for x in info.geometry.layers if self.num_heads(x.index)]  # those that share rows too
        wanted = [x for x in attending if layers is None or x.index in layers]
        numbers = queries.stop * sum(layer.num_heads for layer in wanted)
        at_once = max(1, TILE_NUMBERS // max(1, numbers))
        edges = [*range(0, queries.start, CHUNK), *range(queries.start, queries.stop, at_once), queries.stop]
        for start, stop in itertools.pairwise(edges):
            is_wanted = start >= queries.start
            probe = Probe(stop - start, layers=frozenset(x.index for x in wanted)) if is_wanted else None
            driver.compute(self._live.sequence.token_ids[start:stop], probe=probe)
            if probe is not None:
                rows = (
                    {x: row[0][:, None] for x, row in probe.rows().items()}
                    if stop - start == 1
                    else {x: row[0] for x, row in probe.latest.items()}
                )
                yield start, {x.index: from_zero(rows[x.index].float(), stop) for x in wanted if x.index in rows}


def from_zero(weights: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Weights `[H, Q, S]` of the latest tokens as those of all, with NaN where there was no row."""
    return torch.nn.functional.pad(
        weights[..., -num_tokens:], (max(0, num_tokens - weights.shape[2]), 0), value=torch.nan
    )
