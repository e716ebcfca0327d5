"""Pages: what happens to them, one frozen record per event, in order; why no more of them was reused by a prompt; and
the form in which a reader keeps the state of all pages (`engine.history.pages`). No torch.

The pool and the host index append events to one list; the session moves them into the record of the step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt

from engine.counted import counted
from engine.wire.message import Nested, Variant

# The parent hash of every first page: all chains of hashes start from the same value.
ROOT_HASH = bytes(16)

KEPT = -2  # in place of a `seq_id`: the page belongs to a kept checkpoint of another branch
NULL_PAGE_ID = 0  # entry of a page table whose page left the window or was evicted; never allocated, never freed


def decode_token_ids(token_bytes: bytes) -> tuple[int, ...]:
    """The token ids of little-endian int32."""
    return struct.unpack(f"<{len(token_bytes) // 4}i", token_bytes)


class Tier(StrEnum):
    """The memory that a page is in: the device's own, or the second-level prefix cache in host memory."""

    DEVICE = "device"
    HOST = "host"


class EvictReason(StrEnum):
    """Why a page was removed from the prefix index."""

    ROOM = "room"  # its memory was needed for new tokens
    REQUEST = "request"  # eviction was requested
    OVERWRITE = "overwrite"  # its only owner was truncated to a part of it and writes other tokens there


class MoveDirection(StrEnum):
    """The direction in which K and V of a page were copied between tiers."""

    TO_HOST = "to_host"
    TO_DEVICE = "to_device"


class PageAllocated(Variant, frozen=True):
    """A page without references was allocated to a sequence (ref_count 1, contents undefined)."""

    seq_id: int
    page_id: int


class PageShared(Variant, frozen=True):
    """One more sequence references a page; `ref_count` 1 means that a cached page is in use again."""

    seq_id: int
    page_id: int
    ref_count: int


class PageFreed(Variant, frozen=True):
    """A sequence released its reference to a page. At `ref_count` 0 the page is cached if `is_findable`, else free."""

    seq_id: int
    page_id: int
    ref_count: int
    is_findable: bool


class PageCopied(Variant, frozen=True):
    """Copy-on-write: the sequence now writes to `dst_page_id`, into which slots 0 … num_tokens - 1 must be copied."""

    seq_id: int
    src_page_id: int
    dst_page_id: int
    num_tokens: int


class PageCommitted(Variant, frozen=True):
    """A full page was registered in the prefix index under the hash of its tokens and of all pages before it.

    `parent_hash` is that of the page before it, or `ROOT_HASH`. `token_bytes` are the token ids as little-endian int32.
    `tier` is the memory that `page_id` is in. The index stores this object itself as its entry.
    """

    page_id: int
    page_hash: bytes
    parent_hash: bytes
    token_bytes: bytes
    tier: Tier

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the page, in order."""
        return decode_token_ids(self.token_bytes)


class PageEvicted(Variant, frozen=True):
    """A page was removed from the prefix index; `committed` is the entry that was removed."""

    committed: PageCommitted
    reason: EvictReason


class PageMoved(Variant, frozen=True):
    """K and V of a page were copied between tiers: `num_bytes` in `duration_ms`."""

    direction: MoveDirection
    page_id: int
    host_page_id: int
    page_hash: bytes
    num_bytes: int
    duration_ms: float


class PrefixHit(Variant, frozen=True):
    """A prompt of `num_tokens` tokens reuses the cached `page_ids`: its first `num_hit_tokens` tokens are not computed
    again."""

    seq_id: int
    num_tokens: int
    num_hit_tokens: int
    page_ids: tuple[int, ...]


class PrefixMiss(Variant, frozen=True):
    """No cached page matches the beginning of a prompt of `num_tokens` tokens."""

    seq_id: int
    num_tokens: int


# Changes of the prefix index, the only events that vLLM publishes.
IndexEvent = PageCommitted | PageEvicted

PageEvent = PageAllocated | PageShared | PageFreed | PageCopied | PageMoved | PrefixHit | PrefixMiss | IndexEvent

# ---- why no more pages were reused -----------------------------------------------------------------------------------


class PrefixEnd(Variant, frozen=True):
    """Where the lookup of a prompt of `num_tokens` ended, in a cache of pages of `size` tokens: `num_found` tokens on.
    The cached page that is most like the prompt's next one has `num_equal` more tokens in common with it and then
    `stored`; None where nothing follows. `is_all`: every page that may be found was. `is_exact` False: there were more
    candidates than were compared."""

    num_tokens: int
    num_found: int
    size: int
    num_equal: int = 0
    stored: int | None = None
    is_all: bool = False
    is_exact: bool = True

    @property
    def position(self) -> int:
        """The first token that is not there."""
        return self.num_found + self.num_equal

    def words(self, reused: int, here: str, there: str, of: str = "page") -> str:
        """Why no more than so many tokens are reused. `here` is what the prompt has at `position`, `there` who has what
        instead; `of` what the pages are called."""
        if self.num_tokens < self.size:
            return f"The prompt has {counted(self.num_tokens, 'token')}, less than a {of} of {self.size:,}."
        if self.is_all:
            rest = self.num_tokens - reused
            last = "token fills" if rest == 1 else f"{rest:,} tokens fill"
            why = f"the last {last} no {of} of {self.size:,}"
            if rest >= self.size:
                why = f"the last token of a prompt is always computed, and its {of} of {self.size:,} with it"
            return f"Every {of} that may be reused is: {why}."
        if self.stored is None:
            where = (
                f"continues this prompt after token {self.position - 1:,}"
                if self.position
                else "begins like this prompt"
            )
            return f"{counted(reused, 'token')} reused: no cached {of} {where}."
        more = "" if self.is_exact else f" (Of the {of}s that were compared.)"
        sides = f": the prompt has {here}, {there}" if here and there else ""
        only = f": only whole {of}s of {self.size:,} are" if self.num_equal else ""
        equal = counted(self.position, "equal token")
        return f"Differs at token {self.position:,}{sides}. {equal}, {reused:,} reused{only}.{more}"


class Forked(Variant, frozen=True):
    """There was no prefix lookup: the sequence was forked from sequence `parent`."""

    parent: int


class Converted(Variant, frozen=True):
    """There was no prefix lookup: the sequence was older than the pool and was moved into it by a change of the
    mode."""


class ContinuedFrom(Variant, frozen=True):
    """The prompt replaced sequence `parent`, which had rows of `num_cached` tokens; `num_reused` of them were kept.

    `position` is that of the first differing token, None if none differs; `token` is the prompt's token there, by id
    and text, and `cached` the cached one (None: there is none). `line` and `line_text` are the line of the chat
    template that wrote the token, 0 if unknown. `why` says why rows of equal tokens were not kept.
    """

    parent: int
    num_cached: int
    num_reused: int
    position: int | None = None
    token: tuple[int, str] | None = None
    cached: tuple[int, str] | None = None
    line: int = 0
    line_text: str = ""
    why: str = ""

    def words(self, quoted: Callable[[str], str]) -> str:
        """The result in sentences; `quoted` puts a text of the model between quotation marks and makes all its
        characters visible."""
        kept = f"{self.num_reused:,} of {self.num_cached:,} rows of seq {self.parent} kept"
        differs = self._difference(quoted)
        if self.why:
            return f"{kept}: {self.why}. {differs}".rstrip()
        return f"{kept}. {differs or 'Every token in its cache agrees.'}"

    def _difference(self, quoted: Callable[[str], str]) -> str:
        """A sentence about the first differing token, with the line of the template that wrote it; empty if none
        differs."""
        if self.position is None or self.cached is None:
            return ""
        had = f"{quoted(self.cached[1])} (id {self.cached[0]}) in the cache"
        if self.token is None:
            return f"The prompt ends at token {self.position:,}, where there is {had}."
        line = f" Line {self.line} of the chat template wrote it: {self.line_text}" if self.line else ""
        return f"Token {self.position:,} differs: {quoted(self.token[1])} (id {self.token[0]}) here, {had}.{line}"


WhyNotReused = ContinuedFrom | PrefixEnd | Forked | Converted


# ---- the state of every page of a pool -------------------------------------------------------------------------------

# It is handed out without copying all of it: a map is a tuple of read-only blocks of 1,024 pages each. A step copies
# only the blocks that it changes, so that the cost of a record depends on the changes and not on the size of the pool.

BLOCK_PAGES = 1024

PAGE_DTYPE = np.dtype(
    [
        ("state", "u1"),
        ("on_host", "u1"),
        ("ref_count", "u2"),
        ("fill", "u2"),
        ("owner", "i4"),
        ("step", "i4"),
        ("num_kept", "u2"),
    ]
)
NO_OWNER = -1  # value of `owner` in the array for a page that no sequence references


class PageCell(IntEnum):
    """The state of a page as a number, for arrays."""

    FREE = 0
    USED = 1
    SHARED = 2
    CACHED = 3
    NULL = 4
    KEPT = 5  # referenced by kept checkpoints of other branches only


class PoolStep(Nested, frozen=True, eq=False):
    """What the record of a step says about one pool: its size, its counts after the step, and what a `PageMap` needs
    beside the events.

    `pool` is the number of the pool; a number not seen before means a new pool with all pages free. The pool's events
    are the next `num_events` of those in the record. `fills` are pairs `(page_id, tokens in it)` for the last page of
    each sequence.
    """

    pool: int
    page_size: int
    num_pages: int
    window: int | None
    num_events: int
    fills: tuple[tuple[int, int], ...]
    num_free: int
    num_used: int
    num_shared: int
    num_cached: int
    num_slack_tokens: int
    host_used: int
    host_pages: int


class PageMap(PoolStep, frozen=True, eq=False):
    """The state of all pages of a pool after one step. The reader of records builds it; it is never sent. `blocks` hold
    `PAGE_DTYPE` cells, 1,024 pages each, the last block fewer.

    `fill` is the number of tokens in a page; `owner` is the latest sequence, of those that still reference the page,
    that allocated or shared it, or `KEPT` if only kept checkpoints reference it; `num_kept` is how many kept
    checkpoints do; `step` is when it was last allocated, shared or freed; `on_host` says whether a copy is in the host
    tier. `num_kept_pages` counts the pages that only kept checkpoints reference; `num_used` and `num_shared` include
    them.
    """

    blocks: tuple[npt.NDArray[np.void], ...] = ()
    num_kept_pages: int = 0

    def cell(self, page_id: int) -> np.void:
        """The cell of one page."""
        return self.blocks[page_id // BLOCK_PAGES][page_id % BLOCK_PAGES]  # type: ignore[no-any-return]
