"""The requests for slices: of K and V, of attention, of page tables."""

from __future__ import annotations

from typing import Literal

from engine.wire.message import Variant

TensorName = Literal["keys", "values"]
Side = Literal["a", "b", "difference"]


class WallRequest(Variant, frozen=True):
    """Thumbnails of every layer and head through a lens: tokens `0 … num_tokens`, pooled to at most `max_columns` x
    `max_rows` cells.

    With `change`, only what the step at `num_tokens` changed: the difference from the state with `previous_tokens`.
    """

    seq_id: int
    num_tokens: int
    previous_tokens: int
    lens: str
    change: bool
    max_columns: int
    max_rows: int


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
    to the newest query). The attention map is of one `head`: its queries are the rows, at most `max_rows`."""

    seq_id: int
    step: int
    layer: int
    max_columns: int
    start: int = 0
    stop: int | None = None
    lens: str = "attention"
    head: int = 0
    max_rows: int = 64


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


SliceRequest = WallRequest | HeadRequest | AttentionRequest | RowRequest | TableRequest | OutliersRequest
