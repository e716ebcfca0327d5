"""Listens to one publisher of KV events, on a thread of its own: has gaps replayed, and passes every batch on in the
order of its sequence number. Nothing listens for connections; only the addresses given are connected to."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from itertools import islice
from typing import Any, Literal

from engine.errors import InputError
from engine.serving.events import END_MARK, MAX_BYTES, MAX_TOPIC, RESTARTED, Message

ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})|(ipc|inproc)://\S+")
NEEDS = "To listen to servers install the extra: pip install 'kvloupe[serving]'."
# How long to wait for each answer of a replay, until another one where none came, for a handshake, and at most between
# looks at whether to end.
REPLAY_S, REPLAY_AGAIN_S, HANDSHAKE_S, TICK_S = 3.0, 30.0, 3.0, 0.1
# Batches that wait to be taken, before this thread waits (the publisher then drops what is too much, which is a gap).
MAX_WAITING = 50_000
MAX_REPLAYED = 256 << 20  # bytes of one replay; servers hold 10,000 batches of some kilobytes
State = Literal["connecting", "connected", "no answer", "no publisher", "lost"]


def check_address(address: str) -> str:
    """Raises InputError for what is no address to connect to."""
    match = ADDRESS.fullmatch(address)
    if match is None or (match[2] and not 0 < int(match[2]) < 65536):
        raise InputError(f"'{address[:100]}' is no address of a publisher: give one like tcp://HOST:5557.")
    return address


def zmq_module() -> Any:
    """pyzmq, or InputError with the remedy where it is not installed."""
    try:
        import zmq
    except ImportError:
        raise InputError(NEEDS) from None
    return zmq


class Source:
    """One publisher. `take()` gives what came since the last call; `state` and `why` say how the connection is."""

    def __init__(self, endpoint: str, replay: str = "") -> None:
        self.endpoint, self.replay = check_address(endpoint), check_address(replay) if replay else ""
        self._zmq = zmq_module()
        self.state: State = "connecting"
        self.why = ""
        self.num_received = self.num_foreign = 0
        self._waiting: deque[Message] = deque()
        self._room = threading.Condition()
        self._next = 0
        self._connected_at = 0.0  # when a connection was made whose handshake is still to come
        self._marks: dict[int, bytes] = {}  # of the latest batches, to tell the same one from a restarted server's
        self._replay_from = 0.0  # when a replay is tried again, after one that was not answered
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"events of {endpoint}", daemon=True)
        self._thread.start()

    def take(self) -> list[Message]:
        with self._room:
            messages = list(self._waiting)
            self._waiting.clear()
            self._room.notify_all()
        return messages

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread; whether it has ended."""
        self._end.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def words(self) -> str:
        """The connection in a sentence, with the remedy where there is something to do."""
        match self.state:
            case "connected":
                return self.why or f"{self.endpoint} is connected."
            case "no answer":
                return f"Nothing answers at {self.endpoint}: check host and port, and that the server runs."
            case "no publisher":
                return (
                    f"What answers at {self.endpoint} publishes no KV events: check the port, and that the server "
                    "was started with them."
                )
            case "lost":
                return f"The connection to {self.endpoint} broke: it is tried again until the server is back."
        return f"Connecting to {self.endpoint}."

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        zmq = self._zmq
        context = zmq.Context(io_threads=1)
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
            socket.setsockopt(zmq.RCVHWM, 100_000)
            socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            monitor = socket.get_monitor_socket()
            socket.connect(self.endpoint)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            while not self._end.is_set():
                ready = dict(poller.poll(TICK_S * 1000))
                if monitor in ready:
                    self._watch(context, monitor)
                if self._connected_at and time.monotonic() - self._connected_at > HANDSHAKE_S:
                    self.state, self._connected_at = "no publisher", 0.0  # it took the connection, and says nothing
                if socket in ready:
                    self._receive(context, socket)
        except zmq.ZMQError as error:
            self.state, self.why = "no answer", str(error)
        finally:
            context.destroy(linger=0)

    def _receive(self, context: Any, socket: Any) -> None:
        zmq = self._zmq
        for _ in range(1000):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or len(frames[1]) != 8 or len(frames[0]) > MAX_TOPIC:
                self.num_foreign += 1
                self.why = f"{self.num_foreign:,} messages from {self.endpoint} were no KV events and were passed over."
                continue
            message = Message(frames[0], int.from_bytes(frames[1], "big"), frames[2])
            if message.seq != self._next:
                self._fill(context, message.seq)
            if message.seq >= self._next or message.seq == 0 or _mark(message) != self._marks.get(message.seq):
                self._put(message)

    def _watch(self, context: Any, monitor: Any) -> None:
        from zmq.utils.monitor import recv_monitor_message

        zmq = self._zmq
        while monitor.poll(0):
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_CONNECTED:
                self._connected_at = time.monotonic()
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.state, self._connected_at = "connected", 0.0
                if self.num_received and not self.replay:
                    self.why = f"{self.endpoint} was away: whether it restarted is known with its next batch."
                self._fill(context, END_MARK)
            elif event in (
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
                zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            ):
                self.state, self._connected_at = "no publisher", 0.0
            elif event in (zmq.EVENT_CLOSED, zmq.EVENT_CONNECT_RETRIED) and self.state == "connecting":
                self.state = "no answer"
            elif event == zmq.EVENT_DISCONNECTED:
                self.state = "lost" if self.state == "connected" else self.state

    def _put(self, message: Message) -> None:
        with self._room:
            while len(self._waiting) >= MAX_WAITING and not self._end.is_set():
                self._room.wait(TICK_S)
            self._waiting.append(message)
        self.num_received += 1
        if "was away" in self.why:
            self.why = ""
        self._next = message.seq + 1
        self._marks[message.seq] = _mark(message)
        if len(self._marks) > 2000:
            self._marks = dict(islice(self._marks.items(), 1000, None))

    # ---- replay --------------------------------------------------------------------------------------------------

    def _fill(self, context: Any, until: int) -> None:
        """Put what lies between the last batch and `until`, as the server still holds it. The last batch is asked for
        again: where the server has another one under its number, it restarted, and everything is asked for anew."""
        if not self.replay or time.monotonic() < self._replay_from:
            return
        last = self._next - 1
        messages = self._replayed(context, max(0, last))
        if last >= 0 and messages is not None:
            is_same = bool(messages) and messages[0].seq == last and _mark(messages[0]) == self._marks.get(last)
            if is_same:
                messages = messages[1:]
            elif not messages or messages[0].seq <= last:
                messages = self._replayed(context, 0)
                if messages == []:  # it restarted, and has published nothing yet
                    self._put(RESTARTED)
                    self._next, self._marks = 0, {}
        for message in messages or ():
            if message.seq < until:
                self._put(message)

    def _replayed(self, context: Any, start: int) -> list[Message] | None:
        """What the server still holds from a number on; None where nothing answers."""
        zmq = self._zmq
        socket = context.socket(zmq.DEALER)
        found: list[Message] = []
        size = 0
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(self.replay)
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            until = time.monotonic() + REPLAY_S
            while not self._end.is_set() and time.monotonic() < until:
                if not socket.poll(int(TICK_S * 1000)):
                    continue
                *topic, seq, payload = socket.recv_multipart()[-3:]
                until = time.monotonic() + REPLAY_S
                if len(seq) != 8 or size > MAX_REPLAYED or len(found) > MAX_WAITING:
                    break
                number = int.from_bytes(seq, "big")
                if number == END_MARK or not payload:
                    return found
                size += len(payload)
                found.append(Message(topic[0] if topic else b"", number, payload))
            self._replay_from = time.monotonic() + REPLAY_AGAIN_S
            self.why = f"Nothing was replayed from {self.replay}: what came before, or was lost, stays unknown."
            return found or None
        except ValueError:
            return None
        finally:
            socket.close(0)


def _mark(message: Message) -> bytes:
    """What tells two batches of one number apart: the time is in the first bytes."""
    return message.payload[:10]
