"""The attention of all queries of a sequence: as their steps recorded it, or computed again."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.look.measures import entropy_of
from engine.look.source import Rows
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.session.rerun import CHUNK, ENDLESS
from engine.spec.cache import CacheSpec
from engine.wire.records import Provenance

MOST_QUERIES = 1024  # the latest, of which pictures are made
TILE_NUMBERS = 1 << 22  # weights of one layer in a tile


@dataclass(eq=False)
class Measured:
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
        self._known: Measured | None = None
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
            known = self._known = Measured(first, first)
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

    def _is_left(self, known: Measured, first: int) -> bool:
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
        driver = Driver(self._model, CacheMode(self._model, CacheSpec()).new_cache(0, ENDLESS), ENDLESS)
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
