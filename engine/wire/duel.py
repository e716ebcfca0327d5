"""Two runs side by side: what a duel is asked for, and what it says of each step.

Side A is the sequence at work; side B the other run, which is fed the same tokens. Shapes: L attention layers.
"""

from __future__ import annotations

from engine.wire.message import EventMessage, Part
from engine.wire.records import Candidate, Floats
from engine.wire.requests import TensorName


class DuelSide(Part, frozen=True):
    """One of the two: what it is called in few words, its model, cache mode and dtype. `is_lossy`: its rows may differ
    from exact ones, as its mode asks. `moves`: it goes on with the sequence at work. `edited_from`: the first position
    whose row was changed by hand; None where none was."""

    name: str
    model: str
    cache: str
    dtype: str
    is_lossy: bool
    moves: bool
    edited_from: int | None = None


class Parting(Part, frozen=True):
    """Where two branches begin to be fed other tokens: behind their first `num_tokens`, with these of A and of B."""

    num_tokens: int
    texts: tuple[str, str]


class DuelStep(EventMessage, frozen=True, eq=False):
    """Both sides when they had the same `num_tokens`; `step` is that of side A.

    Of the next token: KL(A || B) in nats, the largest difference of two logits, whether both have the same token first,
    and the most probable ones of each. None where a side kept no logits of then. Of the newest row: by how much B
    differs, layer by layer `[L]`, as a part of the row's own size, in the kv head where it is most; NaN where a side
    has no such row. Of the newest query: the total variation distance of both attention rows, `[L]`, in the head where
    it is most. `is_beyond_rounding` is None where nothing of the step itself is compared, and where the sides were fed
    other tokens since `parting`: they differ then, and may. `ms` and `kv_bytes` are (A, B), None where a side has none.
    """

    step: int
    num_tokens: int
    kl: float | None
    max_abs_logit_diff: float | None
    top1_agrees: bool | None
    top: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]
    keys: Floats
    values: Floats
    attention: Floats
    is_beyond_rounding: bool | None
    ms: tuple[float | None, float | None]
    kv_bytes: tuple[int | None, int | None]
    parting: Parting | None = None


class Departure(Part, frozen=True):
    """The first row, in order of position and then of layer, that differs by more than rounding: `error` is a part of
    the row's own size, `tolerance` what rounding may do there; `channel` is the one that differs most, with both
    numbers."""

    position: int
    layer: int
    tensor: TensorName
    kv_head: int
    channel: int
    number: float
    other_number: float
    error: float
    tolerance: float


class DuelStarted(EventMessage, frozen=True, eq=False):
    """Both sides of a comparison of the sequence `seq_id` (0 where side A is an opened file), and every step that they
    can be compared at, oldest first. `layers` are those of the arrays `[L]`; `no_rows` says why K and V cannot be
    compared, empty where they can."""

    seq_id: int
    a: DuelSide
    b: DuelSide
    layers: tuple[int, ...]
    steps: tuple[DuelStep, ...]
    no_rows: str
    tolerance: float


class DuelScanned(EventMessage, frozen=True):
    """All rows of the first `num_tokens` tokens, which both were fed, were compared as they are held now; None: they
    are the same within rounding."""

    num_tokens: int
    first: Departure | None


class DuelEnded(EventMessage, frozen=True):
    """There is no duel any more, and why; empty: it was asked to end."""

    reason: str = ""
