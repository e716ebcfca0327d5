"""The fold and its answers: made-up streams, true and untrue ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.paged.prefix import encode_token_ids
from engine.errors import InputError
from engine.serving import tree as trees
from engine.serving.answers import rows_of
from engine.serving.events import decode
from engine.serving.explain import explain
from engine.serving.server import Server
from engine.serving.text import numbers
from tests.engine.serving.made_up import CLEARED, as_list, batch, removed, stored

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def folded(*batches: list[Any], **more: Any) -> Server:
    server = Server()
    server.fold(batch(number, *events, **more) for number, events in enumerate(batches))
    return server


def answer(server: Server, ids: list[int], **more: Any) -> tuple[int, str]:
    found = explain(server, ids, **more)
    return found.reused, found.reason


def test_each_reason() -> None:
    server = folded([stored([1, 2, 3], A + B + C)], [removed(3)], [])
    assert answer(server, [*A, *B, 0]) == (8, "all reused")
    assert answer(server, A + B) == (4, "last token")
    assert answer(server, [1, 2]) == (0, "shorter than a block")
    assert answer(server, [*A, *B, *C, 0]) == (8, "evicted")
    assert answer(server, [*A, *A, 0]) == (4, "differs")
    assert answer(server, [*A, 5, 6, 0, 0, 0]) == (4, "differs")
    assert answer(server, [*A, *B, *A, 0]) == (8, "differs")
    assert answer(server, [*A, 0], salt="x") == (0, "other salt or adapter")
    assert answer(server, [*A, 0], lora="x") == (0, "other salt or adapter")
    assert answer(Server(), A) == (0, "nothing stored")
    assert answer(folded([stored([1], A)]), [*A, *B, 0]) == (4, "never stored")
    found = explain(server, [*A, 5, 6, 0, 0, 0])
    assert (found.differs_at, found.prompt_text, found.stored_text) == (6, "0 0 0", "7 8")
    assert "evicted 1.0 s ago, after 1.0 s in the cache" in explain(server, [*A, *B, *C, 0]).why
    server.waited = 600.0  # nothing has come since
    assert "evicted 10 min ago, after 1.0 s in the cache" in explain(server, [*A, *B, *C, 0]).why


def test_with_eagle_the_last_block_found_is_computed_again() -> None:
    found = explain(folded([stored([1, 2], A + B)]), [*A, *B, 0], eagle=True)
    assert (found.reused, found.at_least, found.at_most, found.reason) == (4, 4, 4, "all reused")
    assert found.why.endswith("The last 4 of them are computed again, for EAGLE.")


def test_blocks_of_another_size_are_said_unless_the_cache_was_empty() -> None:
    server = folded([stored([1, 2], A + B)], [stored([3], A + B, size=8)])
    assert answer(server, [*A, *B, 0]) == (8, "all reused")
    assert "other block sizes" in server.notes()[0]
    server.fold([batch(2, CLEARED), batch(3, stored([3], A + B, size=8))])
    assert answer(server, [*A, *B, 0]) == (8, "all reused")
    assert explain(server, [*A, *B, 0]).block_size == 8


def test_the_best_rank_is_known_and_another_may_have_more() -> None:
    server = Server()
    server.fold([batch(0, stored([1], A)), batch(5, stored([9], C, 8), rank=1)])
    found = explain(server, [*A, *B, 0])
    assert (found.reused, found.at_least, found.at_most, found.partial) == (4, 4, 8, True)


def test_salts_adapters_and_media_are_other_prompts() -> None:
    events = [
        stored([1], A, extra_keys=[["tenant"]]), stored([2], A, lora_name="sql", extra_keys=[["sql"]]),
        stored([3], A, extra_keys=[[["image", 0]]]), stored([4], A, cache_salt="other"),
    ]  # fmt: skip
    server = folded(events)
    assert answer(server, [*A, 0]) == (0, "other salt or adapter")
    assert answer(server, [*A, 0], salt="tenant") == (4, "all reused")
    assert answer(server, [*A, 0], salt="other") == (4, "all reused")
    assert answer(server, [*A, 0], lora="sql") == (4, "all reused")


def test_ranks_have_caches_of_their_own() -> None:
    server = Server()
    server.fold([batch(0, stored([1, 2], A + B)), batch(0, stored([1], A), rank=1)])
    assert answer(server, [*A, *B, 0]) == (8, "all reused")
    assert answer(server, [*A, *B, 0], rank=1) == (4, "other rank")
    assert explain(server, [*A, *B, 0], rank=1).why.startswith("Rank 0 has 8 tokens of it, rank 1 has 4. ")
    assert explain(server, [*A, *B, 0]).why.endswith(" So on rank 0; rank 1 has 4.")
    assert [row.salt for row in rows_of(server, str)[0]] == ["rank 0", "rank 1"]
    with pytest.raises(InputError, match="no rank 7"):
        explain(server, A, rank=7)


def test_slower_media_are_read_behind_the_gpu() -> None:
    cpu = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [], "block_size": 0, "medium": "CPU"}
    server = folded([stored([1, 2, 3], A + B + C)], [cpu], [removed(2, 3)])
    assert answer(server, [*A, *B, *C, 0]) == (8, "evicted")
    server.take(batch(3, removed(1, 2, medium="CPU")))
    assert answer(server, [*A, *B, *C, 0]) == (4, "evicted")


def test_a_window_needs_only_its_own_blocks() -> None:
    full, slid = stored([1, 2, 3], A + B + C, group_idx=0), stored([1, 2, 3], A + B + C, group_idx=1)
    slid["kv_cache_spec_sliding_window"] = 4
    server = folded([full, slid], [removed(1, group_idx=1)])
    assert answer(server, [*A, *B, *C, 0]) == (12, "all reused")
    assert rows_of(server, str)[1] == 12  # tokens, and not twice as many
    server.take(batch(2, removed(3, group_idx=1)))
    assert answer(server, [*A, *B, *C, 0]) == (8, "evicted")


def test_equal_blocks_are_counted() -> None:
    server = folded([stored([1], A)], [stored([1], A)], [removed(1)])
    assert answer(server, [*A, 0]) == (4, "all reused")
    server.take(batch(3, removed(1)))
    assert answer(server, [*A, 0]) == (0, "evicted")


def test_cleared_is_known_again() -> None:
    server = Server()
    server.fold([batch(5, stored([2], B, 1)), batch(6, CLEARED), batch(7, stored([1], A))])
    assert not server.is_partial
    assert explain(server, [*A, *B, 0]).at_most == 4


def test_a_late_start_is_partial_until_known() -> None:
    server = Server()
    server.fold([batch(5, stored([2], B, 1))])
    assert answer(server, [*A, *B, 0]) == (0, "partial")
    assert explain(server, [*A, *B, 0]).at_most == 8
    server.fold([batch(6, stored([1], A))])
    found = explain(server, [*A, *B, 0])
    assert (found.reused, found.at_least, found.at_most) == (8, 8, 8)


def test_a_stream_that_lies_is_said_and_folded_on() -> None:
    server = folded(
        [removed(9), stored([1], A), removed(1), removed(1)],
        [stored([2], B, 2)],
        [stored([3], C, 4), stored([4], A, 3), stored([5], A, 77)],
    )
    notes = " ".join(server.notes())
    for words in ("never stored", "more often than stored", "within their own chain", "not known"):
        assert words in notes
    assert answer(server, [*A, 0]) == (0, "evicted")


@pytest.mark.parametrize("is_one", [True, False], ids=["one rank", "five"])
def test_memory_is_bounded(is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_BLOCKS", 64)
    monkeypatch.setattr(trees, "MAX_GONE", 16)
    server = Server()
    ranks = 1 if is_one else 5
    server.fold(
        batch(number // ranks, stored([number], A, number - 1 if number % 3 else None), rank=number % ranks)
        for number in range(1000)
    )
    blocks = [block for tree in server.trees.values() for block in tree.blocks.values()]
    assert len(blocks) == server.counts.remembered_blocks <= 65
    assert server.counts.live_blocks == sum(bool(block.copies) for block in blocks)
    assert "more blocks than are followed" in " ".join(server.notes())
    server.fold(batch((1000 + number) // ranks, removed(number), rank=number % ranks) for number in range(1000))
    assert server.counts.remembered_blocks <= 2 * 16 * ranks, "those that are gone, and unknown ones before them"
    assert server.counts.live_blocks == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([1.0, [["BlockStored"]]]),
        msgspec.msgpack.encode([1.0, [[]]]),
        msgspec.msgpack.encode([1.0, [stored([1, 2], A)]]),
        msgspec.msgpack.encode([1.0, [stored([1], [2**40, 1, 1, 1])]]),
        msgspec.msgpack.encode([1.0, [stored([None], A)]]),
        msgspec.msgpack.encode([float("nan"), []]),
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_counted_and_leaves_a_gap(payload: bytes) -> None:
    with pytest.raises(InputError):
        decode(payload)
    server = folded([stored([1], A)])
    server.take(batch(1)._replace(payload=payload))
    server.take(batch(2))
    assert (server.counts.unreadable, server.missing) == (1, [[1, 1]])
    assert "could not be read" in " ".join(server.notes())


def test_events_of_unknown_types_are_passed_over() -> None:
    server = folded([{"type": "BlockMoved", "x": 1}, ["Later", 1], as_list(stored([1], A))], rank=None)
    assert answer(server, [*A, 0]) == (4, "all reused")
    assert "BlockMoved, Later" in server.notes()[0]


@pytest.mark.parametrize(
    ("event", "salt"),
    [
        (["BlockStored", [-5], None, A, 4, None, "GPU"], ""),
        (["BlockStored", [-5], None, A, 4, None, "GPU", {"cache_salt": "x", "session_id": "s"}], "x"),
        (stored([-5], A, lora_id=None, cache_salt="x", session_id="s"), "x"),
        (stored([-5], A, lora_id=None, lora_name=None, extra_keys="no list"), ""),
    ],
    ids=["SGLang's lists", "with a salt", "SGLang's maps", "TensorRT-LLM"],
)
def test_forms_of_other_servers(event: Any, salt: str) -> None:
    assert answer(folded([event]), [*A, 0], salt=salt) == (4, "all reused")


def test_blocks_keyed_by_pairs_of_tokens_need_the_token_behind_them() -> None:
    """As SGLang has it with EAGLE."""
    server = folded([stored([1, 2], [[token, token + 1] for token in A + B])])
    assert answer(server, [*A, 5, 0]) == (4, "all reused")
    assert explain(server, [*A, *B, 0, 0]).why.startswith("Differs at token 8: the prompt has '0 0'")
    assert answer(server, [*A, 0, 0]) == (0, "differs")
    assert answer(server, [*A, *B, 9, 0]) == (8, "all reused")
    assert answer(server, [*A, *B, 9]) == (4, "last token")
    pairs = [[token, token + 1] for token in A + B]
    windowed = folded([stored([1, 2], pairs), stored([1, 2], pairs, group_idx=1, kv_cache_spec_sliding_window=4)])
    assert answer(windowed, [*A, 5, 0]) == (4, "all reused")
    assert answer(windowed, [1]) == (0, "shorter than a block")  # less than the pair of its first token


@pytest.mark.parametrize("size", [4, 8], ids=["blocks as large", "blocks twice as large"])
def test_a_window_names_some_of_the_blocks_that_it_computed(size: int) -> None:
    """As vLLM has it: the tokens are those of all blocks, and hashes say which they are."""
    ids = [*A, *B, *C, 0, 0, 0, 0]
    hashes = [1, 2, 3, 4][size // 4 - 1 :: size // 4]
    window = stored(hashes[1:], ids, size=size, group_idx=1, kv_cache_spec_sliding_window=4)
    server = folded([stored([1, 2, 3, 4], ids, group_idx=0), window])
    assert server.notes() == ()
    assert answer(server, [*ids, 7]) == (16, "all reused")
    server.take(batch(1, removed(4, group_idx=1)))
    assert answer(server, [*ids, 7]) == ({4: 12, 8: 0}[size], "evicted")


def test_a_batch_that_is_a_map() -> None:
    body = {"ts": 1.0, "events": [stored([1], A)], "data_parallel_rank": 3}
    server = Server()
    server.take(batch(0)._replace(payload=msgspec.msgpack.encode(body)))
    assert [tree.rank for tree in server.trees.values()] == [3]
    assert answer(server, [*A, 0]) == (4, "all reused")


@pytest.mark.parametrize("first", [b"", b"kv"])
def test_batches_that_were_replayed_without_their_topic_are_of_the_same_cache(first: bytes) -> None:
    server = Server()
    events = (stored([1], A), stored([2], B, 1), removed(2), stored([3], C, 1))
    topics = (first, b"kv", b"", b"kv")
    server.fold(
        batch(number, event, topic=topic) for number, (event, topic) in enumerate(zip(events, topics, strict=True))
    )
    assert (len(server.trees), server.missing, server.notes()) == (1, [], ())
    assert answer(server, [*A, *C, 0]) == (8, "all reused")


ACTIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5)), max_size=60)


@settings(max_examples=40, deadline=None)
@given(ACTIONS)
def test_the_fold_equals_plain_counting(actions: list[tuple[bool, int, int]]) -> None:
    """Chains of blocks whose hash is the path itself, stored and removed in any true order."""
    server, live = Server(), Counter[int]()
    for number, (is_stored, root, depth) in enumerate(actions):
        hashes = [root * 10 + level for level in range(depth + 1)]
        if is_stored:
            ids = [root * 100 + level for level in range(depth + 1) for _ in range(4)]
            server.take(batch(number, as_list(stored(hashes, ids)) if root % 2 else stored(hashes, ids)))
            live.update(hashes)
        else:
            gone = [hash_ for hash_ in hashes if live[hash_]]
            live.subtract(gone)
            server.take(batch(number, removed(*gone)))
    (tree,) = server.trees.values() or (None,)
    if tree is not None:
        assert {block.key for block in tree.blocks.values() if block.copies} == {key for key, n in live.items() if n}
        assert server.counts.live_blocks == sum(live.values())
        assert not server.counts.contradictions


def test_last_token_is_the_reason_only_where_everything_is_stored() -> None:
    server = folded([stored([1, 2], A + B)])
    assert answer(server, A) == (0, "last token")
    assert answer(server, [1, 2, 0, 0]) == (0, "differs")
    assert answer(server, [*A, 5, 6, 0, 0]) == (4, "differs")
    server.take(batch(1, removed(2)))
    assert answer(server, A + B) == (4, "evicted")


def searched(server: Server, ids: list[int]) -> list[str]:
    return [row.text for row in rows_of(server, numbers, [encode_token_ids(ids)])[0]]


def test_blocks_of_one_token_are_searched_and_told_apart_by_more_than_one() -> None:
    """SGLang's pages have one token unless it is told otherwise."""
    server = folded([stored([1, 2, 3, 4], A, size=1), stored([5, 6], [3, 9], 2, size=1)])
    found = explain(server, [1, 2, 7, 7])
    assert (found.reused, found.differs_at, found.stored_text) == (2, 2, "3 4")
    assert searched(server, [2, 3, 9]) == ["1 2 3 9"]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([4, 5], ["1 2 3 4 5 6 7 8", "9 10 11 12", "5 6 7 8"]),
        ([3, 4, 5, 6, 7, 8, 9], ["1 2 3 4 5 6 7 8 9 10 11 12"]),
        ([8, 5], ["1 2 3 4 5 6 7 8 5 6 7 8"]),
        ([4, 6], []),
        ([256], []),
    ],
)
def test_what_is_searched_may_lie_across_blocks(ids: list[int], found: list[str]) -> None:
    assert searched(folded([stored([1, 2, 3], A + B + C), stored([4], B, 2)]), ids) == found


def test_what_follows_a_block_that_is_known_by_its_hash_alone_stands_in_the_tree() -> None:
    copied = {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0, "medium": "CPU"}
    server = folded([copied], [stored([2], B, 1)])
    assert [(row.start, row.text) for row in rows_of(server, numbers)[0]] == [(-1, "5 6 7 8")]
    assert "What precedes 1 block is not known." in " ".join(server.notes())
    server.take(batch(2, stored([1], A)))
    assert [(row.start, row.num_tokens, row.media) for row in rows_of(server, numbers)[0]] == [
        (0, 4, "CPU, GPU"),
        (4, 4, "GPU"),
    ]
    assert (answer(server, [*A, *B, 0]), server.notes()) == ((8, "all reused"), ())


def live_tokens(block: trees.Block) -> int:
    return (block.size if block.copies else 0) + sum(map(live_tokens, (block.kids or {}).values()))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_stream_says_each_block_stands_in_one_place(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lost batches, parents that come later or never, and more blocks than are remembered."""
    monkeypatch.setattr(trees, "MAX_BLOCKS", 40)
    monkeypatch.setattr(trees, "MAX_GONE", 8)
    chance, server = random.Random(seed), Server()
    for seq in range(80):
        hashes, ids = chance.sample(range(60), 3), [chance.randrange(9) for _ in range(12)]
        hash_alone = {"type": "BlockStored", "block_hashes": hashes[:1], "block_size": 0, "medium": "CPU"}
        parent, medium = chance.choice((None, 7, 8, 9)), chance.choice(("GPU", "GPU", "CPU"))
        event = chance.choices(
            (stored(hashes, ids, parent), hash_alone, removed(*hashes, medium=medium), CLEARED), (30, 5, 25, 1)
        )[0]
        server.take(batch(seq + seq // 20, event))
        (tree,) = server.trees.values()
        tree.settle()
        blocks, counts = tree.blocks, server.counts
        for key, block in blocks.items():
            if block.tokens is None:
                assert (block.parent, key in tree.unknown) == (None, bool(block.kids))
            else:
                beside = tree.roots if block.parent is None else block.parent.kids or {}
                assert (beside[key], block.parent is None or blocks[block.parent.key] is block.parent) == (block, True)
        assert tree.roots.keys() | tree.unknown.keys() <= blocks.keys()
        assert [top.below for top in tree.tops()] == list(map(live_tokens, tree.tops()))
        assert counts.remembered_blocks == len(blocks) <= 40 + 4
        assert counts.remembered_tokens == sum(block.size for block in blocks.values())
        assert counts.live_blocks == sum(sum(block.copies.values()) for block in blocks.values())
