from __future__ import annotations

import json
from collections import Counter

import pytest

from engine.cache.paged.pool import PagePool
from engine.cache.paged.prefix import encode_token_ids
from engine.serving.events import to_vllm_events, vllm_block_hash
from engine.wire.pages import (
    ROOT_HASH,
    EvictReason,
    MoveDirection,
    PageAllocated,
    PageCommitted,
    PageEvicted,
    PageMoved,
    Tier,
)


def committed(page_id: int, number: int, parent: bytes = ROOT_HASH, tier: Tier = Tier.DEVICE) -> PageCommitted:
    return PageCommitted(page_id, digest(number), parent, encode_token_ids([number, number + 1]), tier)


def digest(number: int) -> bytes:
    return b"\xab" * 8 + number.to_bytes(8, "big")


def test_the_block_hash_is_the_low_64_bits_and_unsigned() -> None:
    assert vllm_block_hash(b"\x01" * 8 + b"\x00" * 7 + b"\x05") == 5
    assert vllm_block_hash(b"\xff" * 16) == 2**64 - 1


def test_a_committed_page_becomes_block_stored_with_all_its_required_fields() -> None:
    assert to_vllm_events([committed(3, 40)], page_size=2) == [
        {
            "type": "BlockStored",
            "block_hashes": [40],
            "parent_block_hash": None,
            "token_ids": [40, 41],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
    ]


def test_pages_of_one_chain_share_an_event_and_a_new_chain_starts_another() -> None:
    chain = [committed(1, 10), committed(2, 20, digest(10)), committed(3, 30, digest(10)), committed(4, 40)]
    first, second, third = to_vllm_events(chain, page_size=2)
    assert (first["block_hashes"], first["parent_block_hash"], first["token_ids"]) == ([10, 20], None, [10, 11, 20, 21])
    assert (second["block_hashes"], second["parent_block_hash"]) == ([30], 10)
    assert (third["block_hashes"], third["parent_block_hash"]) == ([40], None)


def test_tiers_never_share_an_event() -> None:
    events = [committed(1, 10), committed(0, 20, digest(10), Tier.HOST)]
    assert [event["medium"] for event in to_vllm_events(events, page_size=2)] == ["GPU", "CPU"]
    removed = [PageEvicted(event, EvictReason.ROOM) for event in events]
    assert to_vllm_events(removed, page_size=2) == [
        {"type": "BlockRemoved", "block_hashes": [10], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [20], "medium": "CPU"},
    ]


def test_neighbouring_removals_share_an_event_one_hash_per_copy() -> None:
    events = [PageEvicted(committed(page_id, 10), EvictReason.ROOM) for page_id in (1, 2)]
    assert to_vllm_events(events, page_size=2) == [{"type": "BlockRemoved", "block_hashes": [10, 10], "medium": "GPU"}]


def test_the_order_of_storing_and_removing_is_kept() -> None:
    page = committed(1, 10)
    events = [page, PageEvicted(page, EvictReason.ROOM), PageAllocated(0, 1), page]
    kinds = [event["type"] for event in to_vllm_events(events, page_size=2)]
    assert kinds == ["BlockStored", "BlockRemoved", "BlockStored"]


def test_what_changes_no_index_is_not_told() -> None:
    moved = PageMoved(MoveDirection.TO_HOST, 1, 0, digest(1), 4096, 0.5)
    assert to_vllm_events([PageAllocated(0, 1), moved], page_size=2) == []


def test_a_subscriber_that_applies_the_events_knows_what_the_pool_can_find() -> None:
    pool = PagePool(8, 2)
    known: Counter[int] = Counter()
    for seq_id in range(60):
        table = pool.open_table(seq_id)
        pool.append(table, 6)
        pool.commit(table, [seq_id % 3, seq_id % 5, 1, seq_id % 2, 7, 7])
        pool.release(table)
        for line in map(json.dumps, to_vllm_events(pool.events, 2)):
            event = json.loads(line)
            (known.update if event["type"] == "BlockStored" else known.subtract)(event["block_hashes"])
        pool.events.clear()
        entries = [entry for page_id in range(1, 8) if (entry := pool.entry(page_id)) is not None]
        assert +known == Counter(vllm_block_hash(entry.page_hash) for entry in entries)
        assert min(known.values()) >= 0


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        PageAllocated(0, 1).page_id = 2  # type: ignore[misc]
