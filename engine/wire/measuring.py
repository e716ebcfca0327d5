"""Commands that measure what a cache mode changes, saves and costs. The answers are in `measurements`."""

from __future__ import annotations

from typing import ClassVar

from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec
from engine.spec.grid import SweepMode
from engine.spec.texts import SweepText
from engine.wire.message import Command, Facts


class WhatIf(Command, frozen=True):
    """Compute the next token if the live rows were kept as the mode `cache` keeps them. The live cache is not changed;
    where it has dropped rows, it is compared with exact ones, computed from the tokens by one prefill."""

    facts: ClassVar[Facts] = Facts(
        "trying another cache", effect="measures", newest=type, ends_trial=True, is_quiet=True
    )

    seq_id: int
    cache: CacheSpec


class CheckParity(Command, frozen=True):
    """Compare the logits and rows of a sequence's steps with another way of computing them: in the cache mode
    `against`, which is fed the same tokens, or (None) without any cache, with the model's own attention."""

    facts: ClassVar[Facts] = Facts("comparing with another cache", answers="one", effect="measures")

    seq_id: int
    against: CacheSpec | None = None


class MapDamage(Command, frozen=True):
    """Measure what a codec does to the rows held now; with `budget_bytes`, also suggest the bits of each layer. Where
    the live cache has dropped rows, exact ones are computed from the tokens by one prefill."""

    facts: ClassVar[Facts] = Facts("measuring what the codec does", answers="one", effect="measures")

    seq_id: int
    codec: CodecSpec
    max_columns: int = 512
    budget_bytes: int | None = None


class MeasureRegret(Command, frozen=True):
    """Measure what removing each page of `page_size` rows does to the next token, with the score that the rule of
    `cache` gives the page. Where the live cache has dropped rows, exact ones are computed from the tokens by one
    prefill."""

    facts: ClassVar[Facts] = Facts("removing rows, one after the other", answers="one", effect="measures")

    seq_id: int
    cache: CacheSpec
    page_size: int = 1


class Sweep(Command, frozen=True):
    """Run every mode on every text for `num_steps` steps (for a recalled fact, as many as it has tokens). Answers come
    text by text, in the order of the modes. `done` are the names of modes and texts whose rows are known already. The
    live session is not touched."""

    facts: ClassVar[Facts] = Facts("a sweep", effect="measures")

    texts: tuple[SweepText, ...]
    num_steps: int
    modes: tuple[SweepMode, ...]
    done: tuple[tuple[str, str], ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows of the whole sweep, known ones included."""
        return len(self.texts) * len(self.modes)


class Bench(Command, frozen=True):
    """Measure the speed of cache modes against each other: each at every context and batch, for `num_steps` decode
    steps. The live session is not touched. `caches` are pairs of name and spec."""

    facts: ClassVar[Facts] = Facts("a benchmark", effect="measures")

    caches: tuple[tuple[str, CacheSpec], ...]
    contexts: tuple[int, ...]
    num_steps: int
    batches: tuple[int, ...] = (1,)
