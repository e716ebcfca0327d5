"""Requests for pictures, and the pictures that answer them: screen-sized reductions of K, V and attention, and their
updates after a step.

Shapes: L attention layers, H query heads, H_kv key/value heads, S rows, D head_dim.
"""

from __future__ import annotations

from typing import Literal

from engine.wire.message import Event, Nested, Variant
from engine.wire.records import Floats, Ints, Provenance, RowStats

Side = Literal["a", "b", "difference"]


class WallRequest(Variant, frozen=True):
    """Thumbnails of every layer and head through a lens: tokens `0 … num_tokens`, pooled to at most `max_columns` x
    `max_rows` cells.

    With `change`, only what the step at `num_tokens` changed: the difference from the state with `previous_tokens`.
    With `only_farthest` a cell is one number, its value farthest from zero: half the bytes.
    """

    seq_id: int
    num_tokens: int
    previous_tokens: int
    lens: str
    change: bool
    max_columns: int
    max_rows: int
    only_farthest: bool = False


class HeadRequest(Variant, frozen=True):
    """One head of one layer through a lens: rows `start … stop` of the first `num_tokens`, pooled to at most
    `max_columns`."""

    seq_id: int
    num_tokens: int
    lens: str
    layer: int
    kv_head: int
    start: int
    stop: int
    max_columns: int


class AttentionRequest(Variant, frozen=True):
    """What a lens of queries shows of one layer at `step`, in every query head, at positions `start … stop` (None: up
    to the newest query). The attention map is of one `head`: its queries are the rows, at most `max_rows`. `latest`: so
    many queries alone, 0 for all that are known."""

    seq_id: int
    step: int
    layer: int
    max_columns: int
    start: int = 0
    stop: int | None = None
    lens: str = "attention"
    head: int = 0
    max_rows: int = 64
    latest: int = 0


class RowRequest(Variant, frozen=True):
    """The exact K and V of one position in all layers."""

    seq_id: int
    num_tokens: int
    position: int


class TableRequest(Variant, frozen=True):
    """The page table of a sequence when it had `num_tokens` tokens."""

    seq_id: int
    num_tokens: int


class OutliersRequest(Variant, frozen=True):
    """The largest |K| and |V| of a sequence when it had `num_tokens` tokens, and the tokens that the query of `step`
    attended to most."""

    seq_id: int
    num_tokens: int
    step: int
    count: int = 10


PictureRequest = WallRequest | HeadRequest | AttentionRequest | RowRequest | TableRequest | OutliersRequest


class Magnitudes(Nested, frozen=True, eq=False):
    """Magnitudes of one tensor per layer `[L]`, over all rows of all kv heads, even if a picture shows only some of
    them: the `limit` of the colour scale, the `largest` finite magnitude, and the share of numbers beyond the limit,
    `clipped`."""

    limit: Floats
    largest: Floats
    clipped: Floats


class StatePicture(Nested, frozen=True, eq=False):
    """One tensor of the state of a recurrent layer, as it is now: lowest and highest value of each cell `[columns,
    rows]`, the `shape` of the tensor, and its largest finite magnitude."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    low: Floats
    high: Floats
    largest: float


class WallPicture(Event, frozen=True, eq=False):
    """Lowest and highest value per thumbnail cell, `[L, H_kv, columns, rows]`, for the layers that keep K and V; one
    array where both are the same.

    `heads[i]` is the number of kv heads of layer `layers[i]`; heads beyond it are NaN. `absent` `[L, H_kv, columns]`
    counts the positions of a column whose rows were evicted; a column without rows is NaN. None: nothing was evicted.
    `held` `[L, 2]`: the rows of each layer are at positions `held[l, 0] … held[l, 1] - 1`, fewer than `num_tokens` in
    a layer with a sliding window, or in an encoder-decoder. None: every layer has rows from 0 to `num_tokens - 1`.
    `holders` `[2, num_tokens]`: how many kv heads, and how many layers, hold each position; None: all of them.
    `magnitudes` are those of the tensor that is shown, `other_magnitudes` those of the other one, for the same layers;
    None if not measured. `states` are those of recurrent layers; only the present ones are shown. `exact_from[i]` is
    the position from which on the rows of layer `layers[i]` are exact: attention reads those before it from quantised
    codes. Empty: all rows are exact.
    """

    request: WallRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    low: Floats
    high: Floats
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
    held: Ints | None = None
    exact_from: tuple[int, ...] = ()


class HeadPicture(Event, frozen=True, eq=False):
    """One head, `[columns, D]`: lowest and highest value of each cell (one array if a column is one token).

    `positions` are those of the first token of each column. The histogram (`counts`, `edges`) covers the finite values
    of the shown rows; `limit` is the 99.5th percentile of their magnitudes. `absent` `[columns]` counts the positions
    of a column whose rows this head has evicted; a column without rows is NaN, which does not count as non-finite.
    None: all are held. `magnitudes` are those of the layer, `[1]`. If the picture shows a part of a layer's recurrent
    state, `state_shape` is the shape of that tensor, and columns are not tokens but indices along its longer side.
    Rows from position `exact_from` on are exact; attention reads those before it from quantised codes. `values_per_row`
    values of the lens share a cell; more than one only where these are as many as tokens. Where not `is_causal`, the
    positions are those of an encoder's tokens, of which every query reads all.
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
    exact_from: int = 0
    values_per_row: int = 1
    is_causal: bool = True


class AttentionPicture(Event, frozen=True, eq=False):
    """Attention weights of one step's newest query, `[H, columns]`, the largest in each column. The weights of a row
    sum to less than one if the model has sink logits. Through another lens, its numbers, of the queries from
    `first_query` on; those of the attention map are the weights of one head, `[rows, columns]`, with `queries_per_row`
    queries in each row.

    `absent` `[H, columns]` counts the positions of a column whose rows had been evicted before the query; a column
    without rows is NaN, which does not count as non-finite. None: all were there. `top_positions` and `top_weights`
    `[H, N]` are the positions of the whole row with the largest weights, in descending order; heads with fewer than `N`
    rows are padded with weight NaN. `entropy` `[H]` in nats is that of the whole row, of the newest query alone. Where
    not `is_causal`, the positions are those of an encoder's tokens, of which every query reads all.
    """

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
    first_query: int = 0
    queries_per_row: int = 1
    is_causal: bool = True


class RowPicture(Event, frozen=True, eq=False):
    """K and V of one position: `[H_kv, D]` for every attention layer that holds it, as attention reads them.

    A head that has evicted the row is NaN; `evicted` lists those heads for each layer (empty: no head has).
    `written_keys` and `written_values` are the rows as their step wrote them; later steps may have coded or rotated
    them since. A codec that codes each row at once had coded them already. Empty if they were not captured or are no
    longer kept. `coded_keys` and `coded_values` tell for each layer whether attention reads the row from quantised
    codes; empty: from none. `written` are the statistics of the row as its step wrote it; None where not kept.
    """

    request: RowRequest
    provenance: Provenance
    dtype: str
    layers: tuple[int, ...]
    keys: tuple[Floats, ...]
    values: tuple[Floats, ...]
    note: str
    took_ms: float
    evicted: tuple[tuple[int, ...], ...] = ()
    written_keys: tuple[Floats, ...] = ()
    written_values: tuple[Floats, ...] = ()
    coded_keys: tuple[bool, ...] = ()
    coded_values: tuple[bool, ...] = ()
    written: RowStats | None = None


class TablePicture(Event, frozen=True, eq=False):
    """The page table of a sequence, logical order → page_id, one array per pool (0: the page left the window or was
    evicted)."""

    request: TableRequest
    page_size: int
    tables: tuple[Ints, ...]
    num_tokens: int
    note: str


class Outlier(Nested, frozen=True):
    """The largest number of one channel: its place, its value, and its ratio to the range of the layer. `is_coded`:
    attention reads it from quantised codes."""

    layer: int
    kv_head: int
    channel: int
    position: int
    value: float
    ratio: float
    is_coded: bool = False


class Attended(Nested, frozen=True):
    """A position and its attention weight in the mean over all layers and heads. The query head `head` of `layer`,
    which reads `kv_head`, gave it the largest weight, `most`."""

    position: int
    weight: float
    layer: int
    head: int
    kv_head: int
    most: float


class OutliersPicture(Event, frozen=True, eq=False):
    """The channels of K and V that exceed the range of their layer most, and the tokens with the most attention."""

    request: OutliersRequest
    provenance: Provenance
    keys: tuple[Outlier, ...]
    values: tuple[Outlier, ...]
    attended: tuple[Attended, ...]
    note: str
    took_ms: float


Picture = WallPicture | HeadPicture | AttentionPicture | RowPicture | TablePicture | OutliersPicture


class CellUpdate(Event, frozen=True, eq=False):
    """What steps changed in a watched wall or head: a few cells, however long the context is.

    `picture` is as it is now, with these exceptions: `low`, `high` and `absent` hold only the `N` changed
    cells, `holders` only the positions `holders_at` `[M]`, and `positions` of a head only its first column. `places`
    are the indices of the changed cells: `[3, N]` for layer (index in `picture.layers`), head and column of a wall,
    `[1, N]` for the column of a head. The picture now has `num_columns`, after its first `num_removed` were removed;
    new cells are in `places` or are empty.

    The statistics of all rows in `picture` (magnitudes, histogram, limit, lowest and highest value, number of
    non-finite values) are updated four times a second during a run, and with every picture if all steps are
    shown. They are complete when the engine pauses, or when a run waits longer for its next step.
    """

    picture: WallPicture | HeadPicture
    places: Ints
    num_columns: int
    num_removed: int = 0
    holders_at: Ints | None = None

    @property
    def request(self) -> WallRequest | HeadRequest:
        return self.picture.request

    @property
    def took_ms(self) -> float:
        return self.picture.took_ms


class Unchanged(Event, frozen=True):
    """A watched picture that the steps have not changed; it is the answer to this newer request as well."""

    request: PictureRequest


PictureUpdate = CellUpdate | Unchanged
