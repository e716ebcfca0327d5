"""A source: one sequence at one step, from which pictures are made, whatever holds its rows.

There are four kinds: `CacheSource` (a cache, now or at an earlier step of any branch), `FileSource` (an opened
snapshot, in `engine.opened`), `Difference` (of two sources) and `Nothing` (the rows of that step are not kept).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct, structs

from engine.cache.contract import HeldRows, RowDelta, StateMatrix
from engine.history.state import Move, are_kept
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS, Part
from engine.wire.records import Floats, Ints, Provenance, read_only_ints

if TYPE_CHECKING:
    from engine.cache.rotation import ModelRotation
    from engine.cache.sequence_cache import SequenceCache
    from engine.session.pictures import Queries

NO_POSITION = 1 << 40  # position of a row that is missing: behind every token, so that it is never drawn
ALL_ROWS = 1 << 40


class Rows(Struct, frozen=True, eq=False):
    """Numbers `[H, T, D]` of one layer at consecutive positions from `first` on; where rows in between are missing,
    `positions` `[H, T]` are theirs, ascending in every head."""

    numbers: torch.Tensor
    first: int
    positions: torch.Tensor | None = None

    @classmethod
    def of(cls, held: HeldRows | None, part: Part, span: range | None = None, head: int | None = None) -> Rows | None:
        """K or V of some rows, of one head or all; consecutive ones only at the positions of `span`."""
        return None if held is None else within(cls(chosen(held, part)[0], held.first, held.positions), span, head)

    @property
    def places(self) -> torch.Tensor:
        """The positions `[H, T]`."""
        if self.positions is not None:
            return self.positions
        heads, count = self.numbers.shape[:2]
        return torch.arange(self.first, self.first + count, device=self.numbers.device).expand(heads, -1)


class Held(Struct, frozen=True, eq=False, dict=True):
    """Which rows a layer holds: in how many heads, of what size and dtype, at positions `first … stop - 1`; where some
    in between are missing, at `positions` `[H, T]`."""

    num_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    first: int
    stop: int
    positions: torch.Tensor | None = None

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Equal for layers whose rows can be read and drawn together."""
        shape = None if self.positions is None else self.positions.shape
        return self.num_heads, self.key_dim, self.value_dim, self.dtype, self.first, self.stop, shape

    @classmethod
    def of(cls, rows: HeldRows | None) -> Held | None:
        if rows is None:
            return None
        dtype = str(rows.keys.dtype).removeprefix("torch.")
        heads, key_dim, value_dim = rows.keys.shape[1], rows.keys.shape[3], rows.values.shape[3]
        stop = rows.stop if rows.positions is None else 0
        return cls(heads, key_dim, value_dim, dtype, rows.first, stop, rows.positions)

    def dim(self, part: Part) -> int:
        return self.key_dim if part == "keys" else self.value_dim


@dataclass(frozen=True)
class HalfWritten:
    """The progress of a suspended step in one sequence: the first `num_passed` of `num_layers` layers have their rows
    of it, up to `num_tokens` tokens; the others have rows of `had` tokens. `weights` are those of its newest query
    `[H, S]`, by layer that has computed them."""

    step: int
    had: int
    num_tokens: int
    num_passed: int
    num_layers: int
    weights: Mapping[int, torch.Tensor] = field(default_factory=dict, compare=False)

    def has_passed(self, layer: int) -> bool:
        """Whether a layer has its rows of the step; a cross layer counts as part of its block."""
        return layer % self.num_layers < self.num_passed

    def rows_of(self, layer: int) -> int:
        """Of how many tokens a layer has rows."""
        return self.num_tokens if self.has_passed(layer) else self.had

    @property
    def note(self) -> str:
        """What a picture says about the suspended step; empty where every layer has its rows."""
        if self.num_passed == self.num_layers:
            return ""
        if not self.num_passed:
            return f"Step {self.step} is scheduled: no layer has its rows yet."
        where = f"Step {self.step} is suspended after layer {self.num_passed - 1}"
        return f"{where}: later layers do not have its rows yet."

    @property
    def queries_note(self) -> str:
        """What a picture of all queries says about the suspended step."""
        return f"Step {self.step} is suspended: its queries are added when it ends."


@dataclass(frozen=True, eq=False)
class Extremes:
    """Stored extremes of a layer: `low` and `high` `[H, columns, rows]` of cells of so many tokens and channels, of
    which the columns in `held` have rows."""

    low: Floats
    high: Floats
    held: range


class Source:
    """One sequence at one step: what is here are the answers of one that holds nothing. Positions are those of tokens,
    from 0 on; a part is K or V.

    `owner` is what the rows belong to: sources with the same owners are steps of the same rows, so that cells and
    counts of final rows are reused among them. `stamp`: equal if the rows of two such steps are. `half` tells which
    layers have the newest rows while a step is suspended. `why_not` says why there are no rows; empty where there are.
    `rotation` is how keys were turned by their positions, or why that is not known. `queries`: the attention of earlier
    queries; None where only that of the newest may be known.
    """

    half: HalfWritten | None = None
    queries: Queries | None = None

    if TYPE_CHECKING:  # a field of some sources, computed by others

        @property
        def num_tokens(self) -> int: ...

        @property
        def spec(self) -> CacheSpec: ...

    @property
    def num_queries(self) -> int:
        """How many queries may be known: those of all tokens, but for those that a suspended step computes."""
        return self.num_tokens

    @property
    def why_not(self) -> str:
        return ""

    @property
    def rotation(self) -> ModelRotation | str:
        return ""

    @property
    def owner(self) -> tuple[object, ...]:
        return (self,)

    @property
    def stamp(self) -> tuple[object, ...]:
        return (self.num_tokens,)

    @property
    def is_known(self) -> bool:
        """Whether the rows are, bit for bit, those that the sequence held then."""
        return True

    @property
    def is_now(self) -> bool:
        """Whether these are the present rows, so that the present states belong to them."""
        return True

    @property
    def gave_rows_up(self) -> bool:
        """Whether the sequence gave its rows up and computes them anew when it goes on."""
        return False

    def at(self, num_tokens: int) -> Source:
        """The same rows when there were `num_tokens` tokens."""
        raise NotImplementedError

    def held(self, layer: int, *, ever: bool = False) -> Held | None:
        """Which rows a layer holds; None if none. Numbers are read for it only where that cannot be avoided. `ever`:
        those of later tokens too."""
        return None

    def rows(self, layer: int, part: Part, span: range | None = None, head: int | None = None) -> Rows | None:
        """K or V of a layer, of one head or all, without those of later tokens unless positions are given. Consecutive
        rows only at the positions of `span`, and others are not read where that can be avoided. None: no rows."""
        return None

    def together(self, layers: list[int], part: Part, span: range) -> torch.Tensor | None:
        """K or V `[L, H, T, D]`, at the positions of `span`, of layers that hold rows of one form there; None where
        they are to be read one by one."""
        return None

    def num_final(self, layer: int, part: Part) -> int:
        """How many rows, from position 0 on, have the same numbers at every later step; 0 where some are missing."""
        return 0

    def changes(self, num_tokens: int) -> list[RowDelta] | None:
        """What happened to the rows of each layer since there were `num_tokens` tokens; None where it is not known."""
        return None

    def before(self, num_tokens: int) -> Source | None:
        """The rows that the step after `num_tokens` tokens started with; None where they are not known."""
        return None

    def exact_from(self, layer: int, part: Part) -> int:
        """The position from which on the rows of a layer are exact: those before it are read from quantised codes."""
        return 0

    @property
    def exact_provenance(self) -> Provenance:
        """The provenance of the rows that attention does not read from quantised codes."""
        return "kept"

    def is_cheap(self, part: Part) -> bool:
        """Whether all rows of a part may be counted beside a picture of the other one."""
        return False

    def states(self, layer: int) -> tuple[StateMatrix, ...]:
        """The parts of a layer's recurrent state; empty for an earlier step: earlier states are not kept."""
        return ()

    def weights(self, layer: int) -> Rows | None:
        """The newest query's attention weights `[H, T, 1]` as its step computed them; None where they are not kept."""
        return None

    def pages(self) -> tuple[int, list[list[int]]]:
        """How many tokens have pages, and the page ids in logical order, one list per table."""
        return self.num_tokens, []

    # ---- what a file stores beside its rows, so that not all of them need be read for a picture ----------------------

    def rows_at_once(self, layer: int, part: Part) -> int:
        """How many rows of a layer are to be read at once, so that little memory is needed."""
        return ALL_ROWS

    def ranges(self, layers: Iterable[int], lens: str) -> dict[int, tuple[float, float, float]]:
        """Colour limit, largest magnitude and share beyond the limit, of all rows of those of the layers for which they
        are stored."""
        return {}

    def coarseness(self, lens: str) -> tuple[int, int, int] | None:
        """Of how many tokens and channels a cell of the extremes is, and how many numbers the layers with extremes
        have; None where there are none, or not of these rows."""
        return None

    def extremes(self, layer: int, lens: str) -> Extremes | None:
        """The extremes that are stored of a layer; None where there are none."""
        return None


def provenance_of(source: Source, layers: Iterable[int], parts: Collection[Part] = PARTS, first: int = 0) -> Provenance:
    """The provenance of these rows from position `first` on: "dequantised" if attention read any from codes."""
    return provenance_from(source, [source.exact_from(layer, part) for layer in layers for part in parts], first)


def provenance_from(source: Source, exact_from: Iterable[int], first: int = 0) -> Provenance:
    """The provenance from position `first` on of rows that are exact from these positions on."""
    exact = source.exact_provenance
    is_coded = exact in ("live cache", "kept", "recorded") and max(exact_from, default=first) > first
    return "dequantised" if is_coded else exact


@dataclass(frozen=True, eq=False)
class CacheSource(Source):
    """A sequence of a session when it had `num_tokens` tokens, read from its `cache`.

    `moves`: the changes of all its rows at once, which rows of an earlier step do not survive. `provenance_now` is the
    provenance of its present rows as far as they are exact. `is_past`: some of the moves came after the step that is
    meant, even if the sequence had as many tokens then as now. `is_as_now`: the rows as they are held now are meant, up
    to `num_tokens`. `kept_by` has what was counted and drawn of these rows (a `PictureMemo`): another object once rows
    that were there before may have other numbers. `turned` finds how the model turns keys; None: that is not looked
    for. `full`: what layers held when they held all rows, which tells the form of those that come.
    """

    cache: SequenceCache
    num_tokens: int
    provenance_now: Provenance
    moves: tuple[Move, ...] = ()
    half: HalfWritten | None = None
    is_past: bool = False
    is_as_now: bool = False
    kept_by: object = None
    queries: Queries | None = None
    turned: Callable[[], ModelRotation | str] | None = None
    full: dict[int, Held] = field(default_factory=dict)
    _kept: dict[int, HeldRows | None] = field(default_factory=dict, init=False)
    # as they were read last: the layers, the positions, and K or V [L, H, T, D]
    _together: dict[Part, tuple[list[int], range, torch.Tensor]] = field(default_factory=dict, init=False)
    _final: dict[Part, list[int]] = field(default_factory=dict, init=False)

    @property
    def spec(self) -> CacheSpec:
        return self.cache.spec

    @property
    def num_queries(self) -> int:
        return self.num_tokens if self.half is None else min(self.num_tokens, self.cache.num_tokens)

    @property
    def rotation(self) -> ModelRotation | str:
        if self.spec.retention.rerotate:
            return "These keys were turned again to the places that are left: their angles are not those of positions."
        return (
            "The keys of a kept state are not turned back: go to that step." if self.turned is None else self.turned()
        )

    @property
    def owner(self) -> tuple[object, ...]:
        return (self.kept_by or self.cache,)

    @cached_property
    def stamp(self) -> tuple[object, ...]:
        return (self.num_tokens, self.cache.num_tokens, self.is_as_now, self.exact_provenance, self.half)

    @property
    def provenance(self) -> Provenance:
        """The provenance of all rows together."""
        return provenance_of(self, range(len(self.cache.layers)))

    def at(self, num_tokens: int) -> CacheSource:
        half = self.half if self.half is not None and num_tokens > self.half.had else None
        return replace(self, num_tokens=num_tokens, half=half)

    @cached_property
    def is_known(self) -> bool:
        # >=, because the last step before a change of mode had equally many tokens, but other rows
        later = (move for move in self.moves if move.had >= self.num_tokens)
        is_present = self.num_tokens >= self.cache.num_tokens and not self.is_past
        return (
            not self.is_as_now
            and (is_present or are_kept(self.num_tokens, later))
            and self.cache.knows(self.num_tokens)
        )

    @property
    def is_now(self) -> bool:
        return self.half is None and self.num_tokens >= self.cache.num_tokens

    @property
    def gave_rows_up(self) -> bool:
        return any(move.had and not move.num_tokens for move in self.moves[-1:])

    @property
    def exact_provenance(self) -> Provenance:
        if not self.is_known:
            return "as stored now"
        is_restored = self.num_tokens < self.cache.num_tokens and not self.spec.retention.keeps_all
        return "recorded" if is_restored else self.provenance_now

    def exact_from(self, layer: int, part: Part) -> int:
        layers = self.cache.layers
        return layers[layer].exact_from(self._shown_at, part) if layer < len(layers) else 0

    @cached_property
    def _shown_at(self) -> int:
        """The number of tokens at which the cache held these rows: where it no longer knows them, the present."""
        return self.num_tokens if self.is_known else self.cache.num_tokens

    def _whole(self, layer: int) -> HeldRows | None:
        """K and V of a layer. The cache is asked only once for each layer, as it may have to dequantise the rows."""
        if layer not in self._kept:
            written = self.num_tokens if self.half is None else self.half.rows_of(layer)
            stored = self.cache.rows_at(layer, self.num_tokens) if self.is_known else self.cache.rows(layer)
            self._kept[layer] = cut(stored, min(self.num_tokens, written))
        return self._kept[layer]

    def _from(self, layer: int, first: int) -> HeldRows | None:
        """K and V of a layer with final rows, from a position on: earlier ones are not dequantised."""
        if layer in self._kept or not first:
            return self._whole(layer)
        return cut(self.cache.rows_at(layer, self._shown_at, first), self.num_tokens)

    def held(self, layer: int, *, ever: bool = False) -> Held | None:
        if ever:
            return Held.of(self.cache.rows(layer))
        if layer not in self._held:
            self._held[layer] = self._held_now(layer)
        return self._held[layer]

    @cached_property
    def _held(self) -> dict[int, Held | None]:
        """What layers hold, as far as that is known: at first of those that still hold every row. Layers that hold the
        same share one object."""
        now = {full: structs.replace(full, stop=self.num_tokens) for full in dict.fromkeys(self.full.values())}
        # no row was evicted since where any are final; but in an encoder-decoder some layers get none of new tokens
        final = [] if self.cache.num_source else self._final_rows("keys")
        return {layer: now[full] for layer, full in self.full.items() if final and final[layer]}

    def _held_now(self, layer: int) -> Held | None:
        last = self.num_tokens - 1
        if layer not in self._kept and last > 0 < min(self.num_final(layer, "keys"), self.num_final(layer, "values")):
            found = Held.of(self._from(layer, last))
            if found is not None and found.positions is None and found.first == last:
                found = structs.replace(found, first=0)
                alike = [full for full in self.full.values() if full.form == found.form]
                self.full[layer] = found = alike[0] if alike else found
                return found
        return Held.of(self._whole(layer))

    def rows(self, layer: int, part: Part, span: range | None = None, head: int | None = None) -> Rows | None:
        first = 0 if span is None or not self.num_final(layer, part) else span.start
        return Rows.of(self._from(layer, first), part, span, head)

    def together(self, layers: list[int], part: Part, span: range) -> torch.Tensor | None:
        known, whole, rows = self._together.get(part, ([], range(0), None))
        is_known = whole.start <= span.start and span.stop <= whole.stop
        if rows is None or not is_known or not (layers == known or (len(layers) == 1 and layers[0] in known)):
            final = self._final_rows(part)
            if not final or not min([final[layer] for layer in layers]) or not self._kept.keys().isdisjoint(layers):
                return None
            known, whole, rows = layers, span, self.cache.together(part, span, layers, self._shown_at)
            self._together[part] = known, whole, rows
        if len(layers) < len(known):
            rows = rows.narrow(0, known.index(layers[0]), 1)
        return rows if whole == span else rows.narrow(2, span.start - whole.start, len(span))

    def num_final(self, layer: int, part: Part) -> int:
        found = self._final_rows(part)
        return found[layer] if layer < len(found) else 0

    def _final_rows(self, part: Part) -> list[int]:
        """For each layer, `num_final`; none while a step is suspended, which may still be undone."""
        if part not in self._final:
            found = [] if self.half is not None else self.cache.num_final(part, self._shown_at)
            is_now = self._shown_at == self.num_tokens
            self._final[part] = found if is_now else [min(count, self.num_tokens) for count in found]
        return self._final[part]

    def changes(self, num_tokens: int) -> list[RowDelta] | None:
        return self.cache.changes_since(num_tokens, self.num_tokens) if self.is_known else None

    def before(self, num_tokens: int) -> CacheSource | None:
        moves = tuple(move for move in self.moves if move.had > num_tokens)
        found = replace(self, num_tokens=num_tokens, moves=moves)
        return found if found.is_known else None

    def is_cheap(self, part: Part) -> bool:
        """Where rows are counted as they come: counting all of them again would cost as much as the picture."""
        return self.spec.retention.keeps_all and not self.spec.recomputes and not self.spec.row.has_quantiser

    def states(self, layer: int) -> tuple[StateMatrix, ...]:
        return self.cache.states(layer) if self.is_now else ()

    def weights(self, layer: int) -> Rows | None:
        if self.half is not None:
            row = self.half.weights.get(layer)
        else:
            row = None if self.queries is None else self.queries.newest(self.num_tokens).get(layer)
        return None if row is None else rows_of_weights(row, self.num_tokens - row.shape[1])

    def pages(self) -> tuple[int, list[list[int]]]:
        return min(self.num_tokens, self.cache.num_tokens), self.cache.page_ids_at(self.num_tokens)


@dataclass(frozen=True)
class Nothing(Source):
    """A step with `num_tokens` tokens whose rows are not kept; `why_not` says so in words."""

    spec: CacheSpec
    num_tokens: int
    why_not: str = ""

    def at(self, num_tokens: int) -> Nothing:
        return replace(self, num_tokens=num_tokens)

    def before(self, num_tokens: int) -> Source | None:
        return self


def of_latest(source: Source, count: int) -> Source:
    """A source of which only the latest `count` queries are known; the same source where it is 0."""
    if count and isinstance(source, Difference):
        return Difference(of_latest(source.a, count), of_latest(source.b, count))
    if not count or not isinstance(source, CacheSource) or source.queries is None:
        return source
    return replace(source, queries=source.queries.latest(count))


@dataclass(frozen=True, eq=False)
class Difference(Source):
    """A - B, in float32, at the positions that both hold. What is asked about the cache is answered for A."""

    a: Source
    b: Source
    _kept: dict[tuple[int, Part], Rows | None] = field(default_factory=dict, init=False)

    @property
    def num_tokens(self) -> int:
        return min(self.a.num_tokens, self.b.num_tokens)

    @property
    def spec(self) -> CacheSpec:
        return self.a.spec

    @property
    def rotation(self) -> ModelRotation | str:
        return self.a.rotation

    @property
    def why_not(self) -> str:
        return self.a.why_not or self.b.why_not

    @property
    def is_known(self) -> bool:
        return self.a.is_known and self.b.is_known

    @property
    def is_now(self) -> bool:
        return False

    @property
    def gave_rows_up(self) -> bool:
        return self.a.gave_rows_up

    @property
    def exact_provenance(self) -> Provenance:
        return "difference"

    @property
    def owner(self) -> tuple[object, ...]:
        return (*self.a.owner, *self.b.owner)

    @property
    def stamp(self) -> tuple[object, ...]:
        return (self.a.stamp, self.b.stamp)

    def at(self, num_tokens: int) -> Difference:
        return Difference(self.a.at(num_tokens), self.b.at(num_tokens))

    def held(self, layer: int, *, ever: bool = False) -> Held | None:
        one, other = self.a.held(layer, ever=ever), self.b.held(layer, ever=ever)
        if one is None or other is None:
            return None
        if one.positions is None and other.positions is None:
            first, stop = max(one.first, other.first), min(one.stop, other.stop)
            return None if first >= stop else structs.replace(one, dtype="float32", first=first, stop=stop)
        rows = self.rows(layer, "keys")
        if rows is None or rows.positions is None:
            return None
        return structs.replace(one, dtype="float32", first=rows.first, stop=0, positions=rows.positions)

    def rows(self, layer: int, part: Part, span: range | None = None, head: int | None = None) -> Rows | None:
        if span is not None and span.start and self.num_final(layer, part):
            return subtracted(*(side.rows(layer, part, span, head) for side in (self.a, self.b)))
        if (layer, part) not in self._kept:
            self._kept[layer, part] = subtracted(*(side.rows(layer, part) for side in (self.a, self.b)))
        return within(self._kept[layer, part], span, head)

    def num_final(self, layer: int, part: Part) -> int:
        return min(self.a.num_final(layer, part), self.b.num_final(layer, part))

    def is_cheap(self, part: Part) -> bool:
        return self.a.is_cheap(part)


@torch.inference_mode()
def subtracted(a: Rows | None, b: Rows | None) -> Rows | None:
    """A - B of one layer at the positions that both hold; None if there are none."""
    if a is None or b is None:
        return None
    if a.positions is None and b.positions is None:
        first, stop = max(a.first, b.first), min(each.first + each.numbers.shape[1] for each in (a, b))
        if first >= stop:
            return None
        one, other = (each.numbers[:, first - each.first : stop - each.first].float() for each in (a, b))
        return Rows(one - other, first)
    here, there = a.places, b.places
    slots, is_held = slots_of(there, here)
    if not bool(is_held.any()):
        return None
    positions, order = here.masked_fill(~is_held, NO_POSITION).sort(1)
    difference = a.numbers.float() - gather_rows(b.numbers, slots).float()
    return Rows(gather_rows(difference, order), int(positions.min()), positions)


def rows_of_weights(row: torch.Tensor, first: int) -> Rows:
    """Attention weights `[H, S]` of one query as rows of one number; NaN marks tokens that had no row."""
    weights = row.float()[..., None]
    is_gone = row.isnan() & ~row.isnan()[:, -1:]  # the newest token always has one: else a computation has failed
    if not bool(is_gone.any()):
        return Rows(weights, first)
    places = torch.arange(first, first + row.shape[1], device=row.device).expand(len(row), -1)
    positions, order = places.masked_fill(is_gone, NO_POSITION).sort(1)
    return Rows(gather_rows(weights, order), first, positions)


def gather_rows(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Select rows of `[H, R, D]` at the indices `slots` `[H, S]`."""
    return rows.gather(1, slots[..., None].expand(-1, -1, rows.shape[2]))


def within(rows: Rows | None, span: range | None, head: int | None) -> Rows | None:
    """Some rows of one head or all; consecutive ones only at the positions of `span`."""
    if rows is None:
        return None
    heads = slice(None) if head is None else slice(head, head + 1)
    if rows.positions is not None:
        return Rows(rows.numbers[heads], rows.first, rows.positions[heads])
    if span is None:
        return Rows(rows.numbers[heads], rows.first)
    end = rows.first + rows.numbers.shape[1]
    start = min(max(span.start, rows.first), end)
    stop = max(start, min(span.stop, end))
    return Rows(rows.numbers[heads, start - rows.first : stop - rows.first], start)


# ---- rows as the cache holds them ----------------------------------------------------------------------------------


def chosen(rows: HeldRows, part: Part) -> torch.Tensor:
    """K or V of some rows, `[1, H_kv, S, D]`."""
    return rows.keys if part == "keys" else rows.values


def places_of(rows: HeldRows | Held) -> torch.Tensor:
    """The positions `[H_kv, S]` of rows."""
    if rows.positions is not None:
        return rows.positions
    count, device = (rows.num_heads, None) if isinstance(rows, Held) else (rows.keys.shape[1], rows.keys.device)
    return torch.arange(rows.first, rows.stop, device=device).expand(count, -1)


def slots_of(held: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For positions `wanted` `[H, S]`: their slots among the `held` ones `[H, R]` (ascending), and which of them are
    held."""
    slots = torch.searchsorted(held.contiguous(), wanted.contiguous()).clamp(max=held.shape[1] - 1)
    return slots, held.gather(1, slots) == wanted


def rewrites(spec: CacheSpec) -> bool:
    """Whether a step may overwrite older rows: with residuals that are quantised late, scales that wait for the
    prompt's end, or keys that are rotated again."""
    return spec.retention.rerotate or any(c.is_kivi or c.waits_for_prompt for c in spec.codec.codings)


def cut(rows: HeldRows | None, num_tokens: int) -> HeldRows | None:
    """The rows as they were when the sequence had `num_tokens` tokens.

    Rows whose number would differ between heads are returned whole; they are cut where they are drawn.
    """
    if rows is None or rows.first >= num_tokens:
        return None
    positions, keep = rows.positions, num_tokens - rows.first
    if positions is not None:
        counts = (positions < num_tokens).sum(1)
        keep = int(counts[0])
        if keep == 0 or bool((counts != keep).any()):
            return rows
        positions = positions[:, :keep]
    return HeldRows(rows.keys[:, :, :keep], rows.values[:, :, :keep], rows.first, positions)


def row_at(rows: Rows, position: int) -> torch.Tensor | None:
    """K or V `[H_kv, D]` of one position, NaN in heads that have evicted it; None where no head holds it."""
    if rows.positions is None:
        offset = position - rows.first
        return rows.numbers[:, offset].float() if 0 <= offset < rows.numbers.shape[1] else None
    is_here = rows.positions == position
    if not bool(is_here.any()):
        return None
    slots, lost = is_here.int().argmax(1), ~is_here.any(1)
    heads = torch.arange(len(slots), device=slots.device)
    return rows.numbers[heads, slots].float().masked_fill(lost[:, None], torch.nan)


def holders(held: Iterable[Held], positions: npt.NDArray[np.int64]) -> Ints:
    """For each of the positions `[M]`, how many kv heads and how many layers hold it: `[2, M]`."""
    found = np.zeros((2, len(positions)), np.int64)
    scattered: dict[torch.device, torch.Tensor] = {}
    for rows in held:
        if rows.positions is None:
            is_held = (positions >= rows.first) & (positions < rows.stop)
            found += np.array([[rows.num_heads], [1]]) * is_held
        elif rows.positions.shape[1]:
            wanted = torch.tensor(positions, device=rows.positions.device).expand(len(rows.positions), -1)
            heads = slots_of(rows.positions, wanted)[1].sum(0)
            here = torch.stack([heads, (heads > 0).long()])
            scattered[here.device] = scattered[here.device] + here if here.device in scattered else here
    for here in scattered.values():
        found += here.cpu().numpy()
    return read_only_ints(found)
