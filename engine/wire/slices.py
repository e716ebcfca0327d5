"""Pictures of the present: screen-sized reductions of K, V and attention, and what a step adds to them.

Shapes: L attention layers, H query heads, H_kv key/value heads, S rows, D head_dim.
"""

from __future__ import annotations

import numpy as np

from engine.wire.message import EventMessage, Part
from engine.wire.records import Floats, Ints, Provenance
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    WallRequest,
)


class Magnitudes(Part, frozen=True, eq=False):
    """Of one tensor, layer by layer `[L]`, over all rows of all kv heads, however few of them a picture shows: the
    `limit` that colours span, the `largest` finite magnitude, and which part of the numbers is beyond the limit,
    `clipped`."""

    limit: Floats
    largest: Floats
    clipped: Floats


class StatePicture(Part, frozen=True, eq=False):
    """A part of the state of a recurrent layer, of fixed size, as it is now: lowest and highest value of each cell
    `[columns, rows]`, `shape` of the whole tensor, and its largest finite magnitude."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    low: Floats
    high: Floats
    largest: float


class WallSlice(EventMessage, frozen=True, eq=False):
    """Extremes per thumbnail cell, `[L, H_kv, columns, rows]`; None where a layer keeps no K and V.

    `heads[i]` is the number of kv heads of layer `layers[i]`; unused heads are NaN. `absent` `[L, H_kv, columns]`
    counts the positions of a column whose rows were dropped; a column with none left is NaN. None: nothing was dropped.
    `holders` `[2, num_tokens]`: how many kv heads, and how many layers, hold each position; None: all of them.
    `magnitudes` of K or V of the same layers, whichever the picture or its change is of, `other_magnitudes` of the
    other one; None where nobody looks. `states` are those of layers that keep one, where the present is looked at.
    """

    request: WallRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    low: Floats
    high: Floats
    first_position: int
    num_tokens: int
    tokens_per_column: int
    dims_per_row: int
    note: str
    took_ms: float
    absent: Ints | None = None
    holders: Ints | None = None
    magnitudes: Magnitudes | None = None
    other_magnitudes: Magnitudes | None = None
    states: tuple[StatePicture, ...] = ()


class HeadSlice(EventMessage, frozen=True, eq=False):
    """One head, `[columns, D]`: lowest and highest value of each cell (equal where a column is one token).

    `positions` are the absolute positions of the columns' first tokens; the histogram covers the finite values of the
    tile; `limit` is the 99.5th percentile of their magnitudes. `absent` `[columns]` counts the positions of a column
    whose rows this head has dropped: one with none left is NaN, which is no non-finite value. None: all are held.
    `magnitudes` are those of its layer, `[1]`. `state_shape` is that of the whole tensor where the picture is of a part
    of a layer's state, which has no tokens: columns count its longer side.
    """

    request: HeadRequest
    provenance: Provenance
    dtype: str
    low: Floats
    high: Floats
    positions: Ints
    tokens_per_column: int
    counts: Ints
    edges: Floats
    limit: float
    lowest: float
    highest: float
    num_nan: int
    num_inf: int
    query_heads: tuple[int, ...]
    tensor_label: str
    note: str
    took_ms: float
    absent: Ints | None = None
    magnitudes: Magnitudes | None = None
    state_shape: tuple[int, ...] = ()


class AttentionSlice(EventMessage, frozen=True, eq=False):
    """Weights of one step's newest query, `[H, columns]`, the largest of each column; rows may sum to less than one
    where a model has sink logits. `absent` `[H, columns]` counts the positions of a column whose rows had been dropped
    before the query looked: one with none left is NaN, which is no non-finite weight. None: all were there.
    `top_positions` and `top_weights` `[H, N]` are the positions of the whole row that received most, most first; fewer
    than `N` where a head has fewer rows: their weight is NaN. `entropy` `[H]` in nats is that of the whole row."""

    request: AttentionRequest
    provenance: Provenance
    weights: Floats
    positions: Ints
    tokens_per_column: int
    group_size: int
    query_position: int
    note: str
    took_ms: float
    absent: Ints | None = None
    top_positions: Ints | None = None
    top_weights: Floats | None = None
    entropy: Floats | None = None


class RowSlice(EventMessage, frozen=True, eq=False):
    """K and V of one position: for every attention layer that holds it `[H_kv, D]`, as attention reads them. A head
    that has dropped the row is NaN; `dropped` names those heads, layer by layer (empty: no head of any has).
    `written_keys` and `written_values` are the same as the step wrote them, before a later one coded, rotated or
    dropped them; empty where its rows were not captured or are no longer kept."""

    request: RowRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    keys: tuple[Floats, ...]
    values: tuple[Floats, ...]
    note: str
    took_ms: float
    dropped: tuple[tuple[int, ...], ...] = ()

    @property
    def key_norms(self) -> tuple[Floats, ...]:
        """L2 norms `[H_kv]` of K as stored, layer by layer; NaN in heads that have dropped the row."""
        return tuple(np.linalg.norm(keys, axis=-1) for keys in self.keys)

    @property
    def value_norms(self) -> tuple[Floats, ...]:
        """L2 norms `[H_kv]` of V as stored, layer by layer; NaN in heads that have dropped the row."""
        return tuple(np.linalg.norm(values, axis=-1) for values in self.values)

    written_keys: tuple[Floats, ...] = ()
    written_values: tuple[Floats, ...] = ()


class TableSlice(EventMessage, frozen=True, eq=False):
    """A sequence's page table, logical order -> page_id, one array per pool (0: a page that left the window or was
    dropped)."""

    request: TableRequest
    page_size: int
    tables: tuple[Ints, ...]
    num_tokens: int
    note: str


class Outlier(Part, frozen=True):
    """The largest number of one channel: where it stands, and how many times the range of its layer it is."""

    layer: int
    kv_head: int
    channel: int
    position: int
    value: float
    ratio: float


class Attended(Part, frozen=True):
    """A position and its weight in the mean of all layers and heads; `head` of `layer`, which reads `kv_head`, gave it
    the most of all, `most`."""

    position: int
    weight: float
    layer: int
    head: int
    kv_head: int
    most: float


class OutliersSlice(EventMessage, frozen=True, eq=False):
    """The channels of K and of V farthest beyond the range of their layer, and the tokens attended to most."""

    request: OutliersRequest
    provenance: Provenance
    keys: tuple[Outlier, ...]
    values: tuple[Outlier, ...]
    attended: tuple[Attended, ...]
    note: str
    took_ms: float


Slice = WallSlice | HeadSlice | AttentionSlice | RowSlice | TableSlice | OutliersSlice


class CellUpdate(EventMessage, frozen=True, eq=False):
    """What steps changed in a watched wall or head: a few cells, whatever the length of the context.

    `piece` is the slice as it is now, except that `low`, `high` and `absent` are of `N` cells alone and `holders` of
    the positions `holders_at` `[M]`, and that a head has the `positions` of its first column alone. `places` says
    which cells: `[3, N]` layer (counted as in `piece.layers`), head and column of a wall, `[1, N]` column of a head.
    The picture has `num_columns` now, after its first `num_removed` went; cells that it did not have before are in
    `places` or hold nothing.

    What `piece` says of all rows (magnitudes, histogram, limit, lowest and highest, how many are not finite) follows
    four times a second while a run goes on, and with every picture of one that shows every step; at a rest, and where
    a run waits longer for its next step, it is that of all rows.
    """

    piece: WallSlice | HeadSlice
    places: Ints
    num_columns: int
    num_removed: int = 0
    holders_at: Ints | None = None

    @property
    def request(self) -> WallRequest | HeadRequest:
        return self.piece.request

    @property
    def took_ms(self) -> float:
        return self.piece.took_ms


class Unchanged(EventMessage, frozen=True):
    """A watched picture that steps have not altered: it is that of this request too."""

    request: SliceRequest


SliceUpdate = CellUpdate | Unchanged
