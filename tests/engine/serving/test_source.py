"""Listening over real sockets: a publisher that loses batches, restarts, and says other things than events."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

pytest.importorskip("zmq")

import engine.serving.source as source_module
from engine.errors import InputError
from engine.serving.events import Message
from engine.serving.server import Server
from engine.serving.source import Source, addresses
from tests.engine.serving.made_up import as_list, batch, stored
from tests.engine.serving.publisher import Publisher


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a person waits."""
    monkeypatch.setattr(source_module, "REPLAY_S", 300.0)
    monkeypatch.setattr(source_module, "HANDSHAKE_S", 300.0)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def taken(source: Source, number: int) -> list[Message]:
    found: list[Message] = []

    def is_enough() -> bool:
        found.extend(source.take())
        return len(found) >= number

    until(is_enough, f"{number} batches")
    return found


def of(seq: int, time: float | None = None) -> Message:
    event = stored([seq], [seq] * 4)
    return batch(seq, as_list(event) if seq % 2 else event, time=time)


@pytest.mark.parametrize("has_topic", [True, False], ids=["four frames", "three frames"])
def test_what_was_missed_is_replayed_in_order(has_topic: bool) -> None:
    with Publisher(has_topic=has_topic) as publisher:
        publisher.held = [of(0), of(1)]
        source = Source(publisher.endpoint, publisher.replay)
        try:
            publisher.wait()
            assert [each.seq for each in taken(source, 2)] == [0, 1]
            publisher.send(of(2))
            assert [each.seq for each in taken(source, 1)] == [2]
            publisher.held += [of(2), of(3), of(4), of(5)]
            publisher.send(of(5))  # 3 and 4 were lost
            found = taken(source, 3)
            assert [each.seq for each in found] == [3, 4, 5]
            assert found[0].payload == of(3).payload
            publisher.held = [of(0, 99.0), of(1, 99.1)]
            publisher.send(of(1, 99.1))  # restarted, and its first batch was lost
            assert [(each.seq, each.payload) for each in taken(source, 2)] == [
                (0, of(0, 99.0).payload), (1, of(1, 99.1).payload),
            ]  # fmt: skip
            publisher.send_frames(b"just", b"something")
            until(lambda: "passed over" in source.words(), "a message that is none")
            assert "no KV events" in source.words()
        finally:
            assert source.close()


def test_a_server_that_goes_and_comes_back() -> None:
    with Publisher() as publisher:
        source = Source(publisher.endpoint)
        publisher.wait()
        publisher.send(of(0))
        taken(source, 1)
        port = publisher.port
    try:
        until(lambda: source.state == "lost", "the end is noticed")
        assert "broke" in source.words()
        with Publisher(port=port) as publisher:
            publisher.wait()
            publisher.send(of(0, 50.0))
            assert taken(source, 1)[0].payload == of(0, 50.0).payload
            assert source.state == "connected"
    finally:
        assert source.close()


def test_a_server_that_restarts_and_is_idle() -> None:
    with Publisher() as publisher:
        publisher.held = [of(0), of(1)]
        source = Source(publisher.endpoint, publisher.replay)
        publisher.wait()
        server = Server()
        server.fold(taken(source, 2))
        port, replay_port = publisher.port, publisher.replay_port
    try:
        with Publisher(port=port, replay_port=replay_port) as publisher:
            publisher.wait()
            server.fold(taken(source, 1))
            assert (server.counts.restarts, server.counts.live_blocks) == (1, 0)
            publisher.send(of(0, 50.0))
            server.fold(taken(source, 1))
            assert (server.counts.restarts, server.counts.live_blocks, server.missing) == (1, 1, [])
    finally:
        assert source.close()


def test_where_nothing_or_something_else_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as other:
        nothing = socket.socket()
        nothing.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port
        sources = [Source(f"tcp://127.0.0.1:{each.getsockname()[1]}") for each in (nothing, other)]
        try:
            talking, _ = other.accept()
            talking.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
            until(lambda: [each.state for each in sources] == ["no answer", "no publisher"], "both are noticed")
            assert "check host and port" in sources[0].words()
            assert "publishes no KV events" in sources[1].words()
        finally:
            talking.close()
            nothing.close()
            assert all(source.close() for source in sources)


def test_the_ranks_of_a_server_are_one_source() -> None:
    """Each publishes on a port of its own with numbers of its own, and one leaves the topic out of its replays."""
    with Publisher() as one, Publisher(has_topic=False) as other:
        one.held, other.held = [of(0)], [of(0), of(1)]
        source = Source(f"{one.endpoint}, {other.endpoint}", f"{one.replay},{other.replay}")
        try:
            one.wait()
            other.wait()
            server = Server()
            server.fold(taken(source, 3))
            other.held.append(of(2))
            other.send(of(3))
            server.fold(taken(source, 2))
            assert (len(server.trees), server.counts.live_blocks, server.missing) == (2, 5, [])
            assert source.words() == f"{one.endpoint} and {other.endpoint}: connected."
        finally:
            assert source.close()


def test_a_rank_that_restarts_leaves_the_others_as_they_are() -> None:
    with Publisher() as one, Publisher() as other:
        one.held, other.held = [of(0)], [of(0), of(1)]
        source = Source(f"{one.endpoint},{other.endpoint}", f"{one.replay},{other.replay}")
        one.wait()
        other.wait()
        server = Server()
        server.fold(taken(source, 3))
        port, replay_port = other.port, other.replay_port
        try:
            other.__exit__(None, None, None)
            until(lambda: source.state == "lost", "the end is noticed")
            assert f"The connection to {other.endpoint} broke" in source.words()
            with Publisher(port=port, replay_port=replay_port) as again:
                again.wait()
                server.fold(taken(source, 1))
            assert (server.counts.restarts, server.counts.live_blocks) == (1, 1)
        finally:
            assert source.close()


def test_a_range_of_ports_is_as_many_addresses() -> None:
    assert addresses("tcp://h:5557-5559,ipc:///run/x") == [
        "tcp://h:5557",
        "tcp://h:5558",
        "tcp://h:5559",
        "ipc:///run/x",
    ]
    with pytest.raises(InputError, match="more replay addresses"):
        Source("tcp://h:1", "tcp://h:2-3")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://h:1,",
        "tcp://h:9-8",
        "tcp://h:1-65535",
        "HOST:5557",
        "tcp://*:5557",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:99999",
        "http://host:80",
        "tcp://a b:1",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InputError, match=r"give one like tcp://HOST:5557|are too many"):
        addresses(address)
