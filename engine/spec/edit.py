"""What can be done by hand to the rows of a cache, to the rows that attention sees, and to the logits before sampling.

An edit is frozen and complete in itself: made once more on another run it does the same. `start … stop` are positions
of a sequence, heads are kv heads; None stands for all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

EditedPart = Literal["keys", "values", "both"]


class _Edit(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What every edit carries: the sequence that it is made on."""

    seq_id: int


class Rows(Struct, frozen=True, array_like=True, gc=False):
    """The numbers that an edit of rows is made on: positions `start … stop` in these layers, heads and channels, of K,
    of V or of both."""

    start: int
    stop: int
    layers: tuple[int, ...] | None = None
    kv_heads: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None
    part: EditedPart = "both"


class Zero(_Edit, frozen=True):
    """Write zeros."""

    rows: Rows


class Scale(_Edit, frozen=True):
    """Multiply by a factor."""

    rows: Rows
    factor: float


class AddNoise(_Edit, frozen=True):
    """Add normal noise of `ratio` times the standard deviation of the numbers that are there; `seed` draws it."""

    rows: Rows
    ratio: float
    seed: int = 0


class Overwrite(_Edit, frozen=True):
    """Write the rows that another moment has at the same positions, moved by `shift`: a step of any branch (with the
    sequence `from_seq_id`, None: the same one), or a snapshot file. Published as activation patching."""

    rows: Rows
    from_step: int | None = None
    from_seq_id: int | None = None
    from_file: Path | None = None
    shift: int = 0


class Mask(_Edit, frozen=True):
    """Keep rows in the cache and hide them from attention (`hidden` False: show them again)."""

    rows: Rows
    hidden: bool = True


class Pin(_Edit, frozen=True):
    """Keep a rule of retention from dropping rows (`pinned` False: let it)."""

    rows: Rows
    pinned: bool = True


class Drop(_Edit, frozen=True):
    """Drop rows as a rule of retention does; what is dropped comes back by undo alone."""

    rows: Rows


class ReplaceTokens(_Edit, frozen=True):
    """Put other tokens at `position`: their own K and V alone are computed and written (`overwrite`, as many as they
    replace), or what follows is computed anew as well (`re-prefill`), where they take the place of `num_replaced`."""

    position: int
    token_ids: tuple[int, ...]
    how: Literal["overwrite", "re-prefill"] = "overwrite"
    num_replaced: int | None = None


class BiasLogits(_Edit, frozen=True):
    """Add to the logits of tokens before one is chosen, from now on; minus infinity bans a token, and `()` ends every
    bias."""

    biases: tuple[tuple[int, float], ...]


Edit = Zero | Scale | AddNoise | Overwrite | Mask | Pin | Drop | ReplaceTokens | BiasLogits
