"""What the cache changes, saves and costs: the questions. Their answers are in `measurements`."""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec
from engine.spec.grid import SweepMode
from engine.spec.texts import SweepText
from engine.wire.message import CommandMessage


class WhatIf(CommandMessage, frozen=True):
    """What the next token would be had the live cache been kept as `cache` keeps it; nothing is altered.

    `rebuild`: where the live cache has dropped rows, compare with exact ones, computed from the tokens by one prefill.
    """

    seq_id: int
    cache: CacheSpec
    rebuild: bool = False


class CheckParity(CommandMessage, frozen=True):
    """Compare what a sequence's steps gave with another way to the same tokens: `against` a cache mode, which is fed
    them anew, or None: without any cache, through the model's own attention."""

    seq_id: int
    against: CacheSpec | None = None


class MapDamage(CommandMessage, frozen=True):
    """What a codec does to the rows held now; with `budget_bytes`, also which layers should take how few bits.

    `rebuild`: where the live cache has dropped rows, take exact ones, computed from the tokens by one prefill.
    """

    seq_id: int
    codec: CodecSpec
    max_columns: int = 512
    budget_bytes: int | None = None
    rebuild: bool = False


class MeasureRegret(CommandMessage, frozen=True):
    """What removing each page of `page_size` rows does to the next token, beside the score of `cache`'s rule.

    `rebuild`: where the live cache has dropped rows, take exact ones, computed from the tokens by one prefill.
    """

    seq_id: int
    cache: CacheSpec
    page_size: int = 1
    rebuild: bool = False


class Sweep(CommandMessage, frozen=True):
    """Every mode on every text, `num_steps` steps of each; a recalled fact has as many as it has tokens. Answered text
    by text, in the order of the modes. `done` are the names of modes and texts whose rows are known already. The live
    session is not touched."""

    texts: tuple[SweepText, ...]
    num_steps: int
    modes: tuple[SweepMode, ...]
    done: tuple[tuple[str, str], ...] = ()

    @property
    def num_rows(self) -> int:
        """How many rows there are in the end, those that were known among them."""
        return len(self.texts) * len(self.modes)


class Bench(CommandMessage, frozen=True):
    """Cache modes against each other in time: each at every context and every batch, `num_steps` decode steps. The live
    session is not touched. `caches` are names and specs."""

    caches: tuple[tuple[str, CacheSpec], ...]
    contexts: tuple[int, ...]
    num_steps: int
    batches: tuple[int, ...] = (1,)
