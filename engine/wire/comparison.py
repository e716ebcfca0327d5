"""Messages of a comparison: what a sequence is compared with, and two runs that are given the same tokens, step by
step.

Side A is the live sequence; side B is the other run. Shapes: L attention layers.
"""

from __future__ import annotations

from pathlib import Path

from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.spec.model import ModelSpec
from engine.wire.message import Event, Nested, Variant
from engine.wire.records import Candidate, Floats


class ComparedSide(Nested, frozen=True):
    """One side of a comparison: its short name, model, cache mode and dtype. `is_lossy`: its mode makes rows differ
    from exact ones. `moves`: it steps along with the live sequence. `edited_from`: the first position whose row was
    edited by hand; None if there is none."""

    name: str
    model: str
    cache: str
    dtype: str
    is_lossy: bool
    moves: bool
    edited_from: int | None = None


class TokenDivergence(Nested, frozen=True):
    """The point from which two branches are given different tokens: after their first `num_tokens`, with the texts of
    the next token of A and of B."""

    num_tokens: int
    texts: tuple[str, str]


class ComparedStep(Event, frozen=True, eq=False):
    """Comparison of both sides at the same `num_tokens`; `step` is that of side A.

    For the next token: KL(A || B) in nats, the largest absolute difference of logits, whether both rank the same token
    first, and the most probable tokens of each side. These are None if a side has not kept its logits. For the newest
    row: the error of B in each layer `[L]`, relative to the norm of the row, in the kv head where it is largest; NaN if
    a side has no such row. For the newest query: the total variation distance of the attention rows, `[L]`, in the head
    where it is largest.

    `is_beyond_rounding` is None if the step itself cannot be compared, or if the sides were given different tokens
    since `divergence`, so that differences are expected. `ms` and `kv_bytes` are (A, B), None where unknown.
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
    divergence: TokenDivergence | None = None


class FirstDifference(Nested, frozen=True):
    """The first row, ordered by position and then by layer, that differs by more than rounding. `error` and `tolerance`
    (the largest error that rounding explains) are relative to the norm of the row; `channel` is the one that differs
    most, with the numbers of both sides."""

    position: int
    layer: int
    tensor: Part
    kv_head: int
    channel: int
    number: float
    other_number: float
    error: float
    tolerance: float


class OtherRun(Variant, frozen=True):
    """The same tokens in another cache mode, computed by the loaded model, or by `model`: another one with the same
    vocabulary, or the same one in another dtype."""

    cache: CacheSpec
    model: ModelSpec | None = None


class OtherStep(Variant, frozen=True):
    """The sequence as it was after a step of its own or another branch. It is compared with the live one, or with the
    sequence as it was after the step `of`."""

    step: int
    of: int | None = None


class OtherFile(Variant, frozen=True):
    """The contents of a snapshot file."""

    path: Path


Opponent = OtherRun | OtherStep | OtherFile


class ComparisonStarted(Event, frozen=True, eq=False):
    """The comparison of sequence `seq_id` has started (0: side A is an opened file). Holds what it is compared with,
    both sides and all steps that can be compared, oldest first. `layers` are those of the arrays `[L]`, whose rows are
    compared; `no_rows` says why K and V cannot be compared, empty if they can; `tolerance` is the difference of a logit
    that rounding may cause."""

    seq_id: int
    against: Opponent
    a: ComparedSide
    b: ComparedSide
    layers: tuple[int, ...]
    steps: tuple[ComparedStep, ...]
    no_rows: str
    tolerance: float

    @property
    def is_lossy(self) -> bool:
        """Whether the cache mode of a side is lossy."""
        return self.a.is_lossy or self.b.is_lossy

    def is_edited(self, num_tokens: int) -> bool:
        """Whether one of the first `num_tokens` rows of a side was edited by hand."""
        return any(side.edited_from is not None and side.edited_from < num_tokens for side in (self.a, self.b))


class ComparisonScanned(Event, frozen=True):
    """All rows of the first `num_tokens` tokens that both sides have were compared as they are held now. `first` is
    the first difference; None if all are equal within rounding."""

    num_tokens: int
    first: FirstDifference | None


class ComparisonEnded(Event, frozen=True):
    """The comparison has ended, with the reason; empty if `EndComparison` ended it."""

    reason: str = ""
