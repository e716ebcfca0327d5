"""The recording of a real server: every request explained with the number that the server reported."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.serving.answers import rows_of
from engine.serving.events import FIELDS, Message, Recording
from engine.serving.explain import explain
from engine.serving.server import Server, summary

FOLDER = Path(__file__).parent / "recorded"
MESSAGES = list(Recording(FOLDER / "stream.kvevents"))
REQUESTS: list[dict[str, Any]] = json.loads((FOLDER / "requests.json").read_text("utf-8"))


def rewritten(message: Message, change: Any) -> Message:
    time, events, rank = msgspec.msgpack.decode(message.payload)
    return message._replace(payload=msgspec.msgpack.encode(change(time, events, rank)))


def as_lists(time: float, events: list[dict[str, Any]], rank: int) -> list[Any]:
    return [time, [[event["type"], *(event.get(name) for name in FIELDS[event["type"]])] for event in events]]


def with_bytes(time: float, events: list[dict[str, Any]], rank: int) -> list[Any]:
    def digest(value: int | None) -> bytes | None:
        return None if value is None else sha256(str(value).encode()).digest()

    for event in events:
        event["block_hashes"] = [digest(each) for each in event["block_hashes"]]
        if "parent_block_hash" in event:
            event["parent_block_hash"] = digest(event["parent_block_hash"])
        event["of_tomorrow"] = {"nested": [1, None]}
    return [time, events, rank, "more"]


@pytest.mark.parametrize("change", [None, as_lists, with_bytes], ids=["as recorded", "lists", "bytes"])
def test_every_request_is_explained_with_the_number_that_the_server_reported(change: Any) -> None:
    server, taken = Server(), 0
    for request in REQUESTS:
        for message in MESSAGES[taken : request["batches"]]:
            server.take(message if change is None else rewritten(message, change))
        taken = request["batches"]
        answer = explain(server, request["ids"], salt=request["salt"])
        assert (answer.reused, answer.at_least, answer.at_most) == (request["cached"],) * 3, answer.why
    assert server.notes() == ()


def test_the_counts_of_the_recording() -> None:
    server = Server()
    server.fold(MESSAGES)
    found = summary(server)
    assert (found["stored"], found["removed"], found["live_blocks"]) == (225, 163, 62)
    assert (found["most_live_blocks"], found["stored_again"], found["missing"]) == (63, 29, [])
    ratios = [ratio for _, ratio in found["hit_ratio_by_blocks"]]
    assert ratios == sorted(ratios)
    assert abs(dict(found["hit_ratio_by_blocks"])[63] - 6848 / 12744) < 0.06  # what the server's metrics say


def lossy() -> list[tuple[str, set[int]]]:
    some = [set(random.Random(seed).sample(range(len(MESSAGES)), 6)) for seed in range(4)]
    late = [set(range(number)) for number in (1, 5, 40, 90)]
    return [*((f"lost {n}", each) for n, each in enumerate(some)), *((f"late {len(each)}", each) for each in late)]


@pytest.mark.parametrize(("name", "lost"), lossy(), ids=[name for name, _ in lossy()])
def test_what_is_missing_is_never_claimed(name: str, lost: set[int]) -> None:
    """With lost batches and a late start the server's number lies in the bounds, and a tree that lacks some says so."""
    server, taken, num_equal, num_asked = Server(), 0, 0, 0
    for request in REQUESTS:
        server.fold(MESSAGES[n] for n in range(taken, request["batches"]) if n not in lost)
        taken = request["batches"]
        if not taken or taken - 1 in lost:  # nothing says yet that the newest batches are missing
            continue
        answer = explain(server, request["ids"], salt=request["salt"])
        assert answer.at_least <= request["cached"] <= answer.at_most, answer
        assert answer.partial == bool(lost & set(range(taken)))
        assert answer.at_least == answer.at_most or "partial" in answer.why
        num_equal += answer.reused == request["cached"]
        num_asked += 1
    assert num_equal > 0.9 * num_asked or name.startswith("late")
    assert summary(server)["missing_batches"] == len(lost)


def test_a_restart_begins_with_an_empty_cache() -> None:
    """The server ran, stopped, and did the first requests again; batches that come twice change nothing."""

    def later(time: float, events: list[Any], rank: int) -> list[Any]:
        return [time + 1000, events, rank]

    server, taken = Server(), 0
    server.fold(MESSAGES[:100])
    server.fold(MESSAGES[90:100])
    assert server.counts.repeated == 10
    for request in REQUESTS[:30]:
        if request["batches"] == 0:
            continue
        server.fold(rewritten(message, later) for message in MESSAGES[taken : request["batches"]])
        taken = request["batches"]
        answer = explain(server, request["ids"], salt=request["salt"])
        assert (answer.reused, answer.partial) == (request["cached"], False)
    assert server.counts.restarts == 1


def test_late_batches_fill_their_gap() -> None:
    server = Server()
    server.fold([*MESSAGES[:50], *MESSAGES[60:], *MESSAGES[50:60]])
    assert (server.missing, server.counts.missing_batches, server.counts.batches) == ([], 0, len(MESSAGES))


def garbled(value: Any, rnd: random.Random) -> Any:
    """The value with a few pieces replaced, lost or negated."""
    if rnd.random() < 0.03:
        return rnd.choice([None, -1, 2**64 - 1, "x", b"y", [], {}, [None], [[1]], 3.5, 1e308, float("inf"), True])
    if isinstance(value, list):
        return [garbled(each, rnd) for each in value if rnd.random() < 0.99]
    if isinstance(value, dict):
        return {key: garbled(each, rnd) for key, each in value.items() if rnd.random() < 0.98}
    if type(value) is int and value < 2**60 and rnd.random() < 0.05:
        return rnd.choice([0, 1, 32, value ^ 1, -value])
    return value


@pytest.mark.parametrize("seed", range(8))
def test_a_garbled_stream_is_folded_on(seed: int) -> None:
    rnd, server = random.Random(seed), Server()
    for message in MESSAGES:
        body = garbled(msgspec.msgpack.decode(message.payload), rnd) if rnd.random() < 0.4 else None
        seq = rnd.choice([0, 5, 2**63, message.seq + 3]) if rnd.random() < 0.03 else message.seq
        payload = message.payload if body is None else msgspec.msgpack.encode(body)
        server.take(Message(message.topic, seq, payload))
    blocks = [block for tree in server.trees.values() for block in tree.blocks.values()]
    assert server.counts.live_blocks == sum(sum(block.copies.values()) for block in blocks)
    assert all(count > 0 for block in blocks for count in block.copies.values())
    assert server.notes()
    rows, total, _ = rows_of(server, str)
    assert total >= sum(row.below for row in rows if row.depth == 0)  # smaller branches are a count
    for request in REQUESTS[::7]:
        answer = explain(server, request["ids"], salt=request["salt"])
        assert 0 <= answer.at_least <= answer.reused <= answer.at_most
