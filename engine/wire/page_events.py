"""What happens to pages, in order: one frozen record per event, and their conversion to vLLM's event format.

The pool and the host index append events to one list; the session moves them into the record of the step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import StrEnum

from engine.wire.message import Variant

# The parent hash of every first page: all chains of hashes start from the same value.
ROOT_HASH = bytes(16)

KEPT = -2  # in place of a `seq_id`: the page belongs to a kept moment of another branch
NULL_PAGE_ID = 0  # entry of a page table whose page left the window or was dropped; never allocated, never freed


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
        return struct.unpack(f"<{len(self.token_bytes) // 4}i", self.token_bytes)


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

VllmEvent = dict[str, object]

# vLLM's names for the tiers. A CPU-only run uses them as well, so that vLLM's tools can read its events.
_MEDIUM = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}
_UINT64_MASK = (1 << 64) - 1


def vllm_block_hash(page_hash: bytes) -> int:
    """The hash of a page as in vLLM's events: the low 64 bits of the digest, as an unsigned big-endian number."""
    return int.from_bytes(page_hash, "big") & _UINT64_MASK


def to_vllm_events(events: Iterable[PageEvent], page_size: int) -> list[VllmEvent]:
    """Convert events to those that vLLM publishes, as dictionaries for JSON lines, in the map form of vLLM 0.28.

    Only changes of the prefix index appear there: committed pages as BlockStored, evicted ones as BlockRemoved, one per
    physical copy. Consecutive pages of one chain share an event. Source: vLLM's `distributed/kv_events.py`,
    `BlockStored`, `BlockRemoved`; optional fields at their default are left out, as there.
    """
    out: list[VllmEvent] = []
    run: list[IndexEvent] = []
    for event in events:
        if not isinstance(event, IndexEvent):
            continue
        if run and not _continues(run[-1], event):
            out.extend(_vllm_run(run, page_size))
            run = []
        run.append(event)
    out.extend(_vllm_run(run, page_size))
    return out


def _continues(last: IndexEvent, event: IndexEvent) -> bool:
    """Whether `event` belongs to the same vLLM event as `last`."""
    match last, event:
        case PageCommitted(), PageCommitted():
            return event.tier == last.tier and event.parent_hash == last.page_hash
        case PageEvicted(), PageEvicted():
            return event.committed.tier == last.committed.tier
        case _:
            return False


def _vllm_run(run: list[IndexEvent], page_size: int) -> list[VllmEvent]:
    """The vLLM event for a run of consecutive index events of one kind."""
    if stored := [event for event in run if isinstance(event, PageCommitted)]:
        return [_block_stored(stored, page_size)]
    if removed := [event for event in run if isinstance(event, PageEvicted)]:
        return [_block_removed([event.committed.page_hash for event in removed], removed[0].committed.tier)]
    return []


def _block_stored(run: list[PageCommitted], page_size: int) -> VllmEvent:
    parent_hash = run[0].parent_hash
    return {
        "type": "BlockStored",
        "block_hashes": [vllm_block_hash(event.page_hash) for event in run],
        "parent_block_hash": None if parent_hash == ROOT_HASH else vllm_block_hash(parent_hash),
        "token_ids": [token_id for event in run for token_id in event.token_ids],
        "block_size": page_size,
        "lora_id": None,
        "medium": _MEDIUM[run[0].tier],
        "lora_name": None,
    }


def _block_removed(page_hashes: list[bytes], tier: Tier) -> VllmEvent:
    return {
        "type": "BlockRemoved",
        "block_hashes": [vllm_block_hash(page_hash) for page_hash in page_hashes],
        "medium": _MEDIUM[tier],
    }
