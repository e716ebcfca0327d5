"""The serving client: several servers at once, recordings played, and what cannot be attached to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client.serving import ServingClient
from engine.serving.events import packed
from engine.serving.text import BUNDLED
from engine.wire.events import Done, Event, Failed
from engine.wire.message import Command
from engine.wire.serving import (
    AttachServer,
    DetachServer,
    ExplainPrefix,
    PrefixExplained,
    PrefixTree,
    RecordServer,
    ServersChanged,
    ServerSpec,
    TakePrefixTree,
)
from tests.engine.serving.made_up import batch, removed, stored

RECORDED = str(Path(__file__).parents[1] / "serving" / "recorded" / "stream.kvevents")


class Desk:
    """A client, and everything it said."""

    def __init__(self) -> None:
        self.client = ServingClient()
        self.events: list[Event] = []

    def wait(self, kind: type, condition: Any = lambda event: True) -> Any:
        end = time.monotonic() + 120
        while True:
            self.events += self.client.drain()
            found = next(
                (event for event in reversed(self.events) if isinstance(event, kind) and condition(event)), None
            )
            if found is not None:
                return found
            assert time.monotonic() < end, self.events[-3:]
            time.sleep(0.01)

    def do(self, command: Command) -> None:
        """Send a command, and wait until it is done."""
        self.client.send(command)
        self.wait(Done, lambda done: done.reply_to == command.id)

    def batches(self, number: int, name: str = "") -> Any:
        """The state of a server that has so many batches."""

        def has(event: ServersChanged) -> bool:
            return any(each.counts.batches >= number and name in each.name for each in event.servers)

        event = self.wait(ServersChanged, has)
        return next(each for each in event.servers if name in each.name and each.counts.batches >= number)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    assert desk.client.close()


def test_a_recording_is_a_server(desk: Desk) -> None:
    desk.client.send(AttachServer(ServerSpec(RECORDED, tokenizer=str(BUNDLED))))
    counts = desk.batches(180).counts
    assert (counts.live_blocks, counts.removed, counts.stored_again, counts.stored_again_tokens) == (62, 163, 29, 928)
    assert sum(sum(rate.values()) for rate in counts.rates) == (225 - 9) + (
        163 - 8
    )  # copies of what was there came and left too
    assert "played to its end" in desk.wait(ServersChanged, lambda e: "end" in e.servers[0].words).servers[0].words
    desk.client.send(TakePrefixTree(RECORDED, id=5))
    tree = desk.wait(PrefixTree)
    assert (tree.num_tokens, tree.reply_to) == (1952, 5)
    assert sum(row.num_tokens for row in tree.rows) == 1952
    assert sum(row.below for row in tree.rows if row.depth == 0) == 1952
    assert tree.rows[0].text.startswith("<|begin|>Once upon a time")
    assert tree.bytes_per_token == 3072
    desk.client.send(TakePrefixTree(RECORDED, "warm bed", id=6))
    found = desk.wait(PrefixTree, lambda event: event.reply_to == 6)
    assert 0 < len(found.rows) < len(tree.rows)
    desk.client.send(ExplainPrefix("1 2 3", None, RECORDED, id=7))
    assert "less than a block" in desk.wait(PrefixExplained).why
    desk.client.send(ExplainPrefix("half of a character: \ud83d", None, RECORDED, id=9))
    assert desk.wait(PrefixExplained, lambda event: event.reply_to == 9).reason == "shorter than a block"
    desk.client.send(DetachServer(RECORDED))
    assert desk.wait(ServersChanged, lambda event: not event.servers)
    desk.client.send(TakePrefixTree(RECORDED, id=8))
    assert "not attached to any more" in desk.wait(Failed).message


def test_a_recording_is_played_in_its_time(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "slow.kvevents"
    messages = [batch(0, stored([1], [1] * 4), time=0.0), batch(1, removed(1), time=1000.0)]
    path.write_bytes(b"".join(map(packed, messages)))
    desk.client.send(AttachServer(ServerSpec(str(path), speed=1.0)))
    assert desk.batches(1).counts.live_blocks == 1
    assert not any(isinstance(e, ServersChanged) and any(s.counts.batches == 2 for s in e.servers) for e in desk.events)
    desk.client.send(DetachServer(str(path)))
    desk.client.send(AttachServer(ServerSpec(str(path), speed=1e6)))
    assert desk.batches(2).counts.live_blocks == 0


def test_several_servers_and_a_recording_of_one(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zmq")
    from tests.engine.serving.publisher import Publisher

    monkeypatch.setattr("engine.serving.source.REPLAY_S", 300.0)  # a busy machine may take longer than a person waits
    path = tmp_path / "own.kvevents"
    with Publisher() as one, Publisher() as other:
        one.held = [batch(0, stored([1], [1] * 4))]
        desk.client.send(AttachServer(ServerSpec(one.endpoint, one.replay, "http://127.0.0.1:9/metrics")))
        desk.client.send(AttachServer(ServerSpec(other.endpoint)))
        one.wait()
        other.wait()
        assert desk.batches(1, one.endpoint).counts.live_blocks == 1
        desk.client.send(TakePrefixTree(other.endpoint, id=7))
        assert "No batch has come yet." in desk.wait(Failed, lambda failed: failed.reply_to == 7).message
        desk.do(RecordServer(other.endpoint, path, id=8))
        other.send(batch(4, stored([1, 2], [1] * 4 + [2] * 4)))
        state = desk.batches(1, other.endpoint)
        assert (state.live_tokens, state.is_recording) == (8, True)
        assert "Batches 0 to 3 are missing" in state.notes[0]
        desk.wait(ServersChanged, lambda event: any("metrics cannot be read" in each.words for each in event.servers))
        desk.do(RecordServer(other.endpoint, id=9))
    assert path.read_bytes() == packed(batch(4, stored([1, 2], [1] * 4 + [2] * 4)))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ServerSpec("nowhere.kvevents"), "cannot be opened"),
        (ServerSpec(__file__), "is no recording of KV events"),
        (ServerSpec("tcp://host"), "no address of a publisher"),
        (ServerSpec(RECORDED, tokenizer="nowhere"), "tokenizer.json' cannot be read"),
        (ServerSpec(RECORDED, metrics="host:8000"), "no address of a metrics page"),
    ],
)
def test_what_cannot_be_attached_to(desk: Desk, spec: ServerSpec, words: str) -> None:
    pytest.importorskip("zmq")
    desk.client.send(AttachServer(spec, id=3))
    assert words in desk.wait(Failed, lambda failed: failed.reply_to == 3).message


def test_only_what_is_attached_can_be_detached_and_recorded(desk: Desk) -> None:
    for number, kind in enumerate((DetachServer, RecordServer), start=4):
        desk.client.send(kind(RECORDED, id=number))
        assert "not attached to any more" in desk.wait(Failed, lambda failed, id=number: failed.reply_to == id).message
