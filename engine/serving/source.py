"""Listens to the publishers of KV events of a server, to each on a thread of its own: has gaps replayed, and passes
batches on in the order of their sequence numbers. Nothing listens for connections; only the addresses given are
connected to."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from itertools import islice
from typing import Any, Literal

from engine.counted import counted
from engine.errors import InputError
from engine.serving.events import END_MARK, MAX_BYTES, MAX_TOPIC, Message

ADDRESS = re.compile(
    r"(?P<host>tcp://(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):)(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
    r"|ipc://[^\s,]+"
)
MOST_ADDRESSES = 256
NEEDS = "To listen to servers install the extra: pip install 'kvloupe[serving]'."
# How long to wait for each answer of a replay, until another one where none came, for a handshake, and at most between
# looks at whether to end.
REPLAY_S, REPLAY_AGAIN_S, HANDSHAKE_S, TICK_S = 3.0, 30.0, 3.0, 0.1
# Bytes of batches that wait to be taken, before this thread waits (the publisher then drops what is too much, which is
# a gap), and of one replay; what a batch takes besides its payload; batches that zmq holds for this thread.
MAX_WAITING, EACH, QUEUE = 256 << 20, 200, 200
State = Literal["connecting", "connected", "no answer", "no publisher", "lost"]
WORDS = {
    "connecting": "Connecting to {}.",
    "no answer": "Nothing answers at {}: check host and port, and that the server runs.",
    "no publisher": (
        "What answers at {} publishes no KV events: check the port, and that the server was started with them."
    ),
    "lost": "The connection to {} broke: it is tried again until the server is back.",
}


def addresses(text: str) -> list[str]:
    """The addresses in a text, with commas between them; a range of ports stands for as many. Raises InputError for
    what is none to connect to."""
    found: list[str] = []
    for part in text.split(","):
        match = ADDRESS.fullmatch(part.strip())
        if match is None:
            raise _no_address(part)
        if match["host"] is None:
            found.append(match[0])
            continue
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not 0 < first <= last < 65536:
            raise _no_address(part)
        if len(found) + last - first >= MOST_ADDRESSES:
            raise InputError(f"'{part[:100]}' are too many: a server has at most {MOST_ADDRESSES} addresses here.")
        found += [f"{match['host']}{port}" for port in range(first, last + 1)]
    return found


def _no_address(part: str) -> InputError:
    return InputError(f"'{part.strip()[:100]}' is no address of a publisher: give one like tcp://HOST:5557.")


def zmq_module() -> Any:
    """pyzmq, or InputError with the remedy where it is not installed."""
    try:
        import zmq
    except ImportError:
        raise InputError(NEEDS) from None
    return zmq


class Source:
    """The publishers of one server, by their addresses: one for each rank. `take()` gives what came since the last
    call; of several publishers each topic begins with the address, because the numbers of each are its own."""

    def __init__(self, endpoints: str, replays: str = "") -> None:
        """Raises InputError for what is no address, and without pyzmq."""
        zmq_module()
        names, repeaters = addresses(endpoints), addresses(replays) if replays else []
        if len(repeaters) > len(names):
            raise InputError("There are more replay addresses than endpoints: give one for each, in the same order.")
        self._listeners = [
            Listener(name, repeater, f"{name} ".encode() if len(names) > 1 else b"")
            for name, repeater in zip(names, [*repeaters, *[""] * (len(names) - len(repeaters))], strict=True)
        ]

    @property
    def state(self) -> State:
        """How the connection is; of several, the first that is not as it should be."""
        states = [listener.state for listener in self._listeners]
        return next((state for state in states if state != "connected"), "connected")

    def words(self) -> str:
        """The connection in a sentence, with the remedy where there is something to do."""
        told = [each.words() for each in self._listeners if each.state != "connected" or each.whys]
        return " ".join(told or [f"{' and '.join(each.endpoint for each in self._listeners)}: connected."])

    def take(self, most: int = 1 << 30) -> list[Message]:
        """What came from each publisher, at most so many batches."""
        return [message for listener in self._listeners for message in listener.take(most)]

    def close(self, timeout_s: float = 2.0) -> bool:
        """End all threads; whether they have ended."""
        for listener in self._listeners:
            listener.end.set()
        ended = [listener.close(timeout_s) for listener in self._listeners]
        return all(ended)


class Listener:
    """One publisher. `state` says how the connection is, `whys` what else has to be known of it, in sentences."""

    def __init__(self, endpoint: str, replay: str, label: bytes) -> None:
        self.endpoint, self.replay, self.label = endpoint, replay, label
        self.state: State = "connecting"
        self.whys: dict[str, str] = {}
        self.end = threading.Event()
        self._zmq = zmq_module()
        self._num_foreign = 0
        self._waiting: deque[Message] = deque()
        self._num_bytes = 0  # of those that wait
        self._room = threading.Condition()
        self._next = 0
        self._connected_at = 0.0  # when a connection was made whose handshake is still to come
        self._marks: dict[int, bytes] = {}  # of the latest batches, to tell the same one from a restarted server's
        self._replay_from = 0.0  # when a replay is tried again, after one that was not answered
        self._thread = threading.Thread(target=self._run, name=f"events of {endpoint}", daemon=True)
        self._thread.start()

    def take(self, most: int) -> list[Message]:
        with self._room:
            messages = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._num_bytes -= sum(map(_size, messages))
            self._room.notify_all()
        return messages

    def close(self, timeout_s: float) -> bool:
        self.end.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def words(self) -> str:
        return " ".join(self.whys.values()) if self.state == "connected" else WORDS[self.state].format(self.endpoint)

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        zmq = self._zmq
        context = zmq.Context(io_threads=1)
        socket = self._socket(context, zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, QUEUE)
            socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            monitor = socket.get_monitor_socket()
            socket.connect(self.endpoint)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            while not self.end.is_set():
                ready = dict(poller.poll(TICK_S * 1000))
                if monitor in ready:
                    self._watch(context, monitor)
                if self._connected_at and time.monotonic() - self._connected_at > HANDSHAKE_S:
                    self.state, self._connected_at = "no publisher", 0.0  # it took the connection, and says nothing
                if socket in ready:
                    self._receive(context, socket)
        except zmq.ZMQError:  # of an address that looks like one and is none
            self.state = "no answer"
        finally:
            context.destroy(linger=0)

    def _socket(self, context: Any, kind: int) -> Any:
        zmq = self._zmq
        socket = context.socket(kind)
        for option, value in ((zmq.LINGER, 0), (zmq.MAXMSGSIZE, MAX_BYTES), (zmq.IPV6, 1)):
            socket.setsockopt(option, value)
        return socket

    def _receive(self, context: Any, socket: Any) -> None:
        zmq = self._zmq
        for _ in range(1000):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            topic, seq, payload = frames if len(frames) == 3 else (b"", b"", b"")
            number = int.from_bytes(seq, "big")
            if len(seq) != 8 or number == END_MARK or len(topic) > MAX_TOPIC:
                self._num_foreign += 1
                count = counted(self._num_foreign, "message")
                self.whys["foreign"] = f"{count} from {self.endpoint} passed over: no KV events."
                continue
            message = Message(self.label + topic, number, payload)
            if number != self._next:
                self._fill(context, number)
            if number >= self._next or number == 0 or _mark(message) != self._marks.get(number):
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
                if self._marks and not self.replay:
                    self.whys["away"] = f"{self.endpoint} was away: whether it restarted is known with its next batch."
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
            while self._num_bytes >= MAX_WAITING and not self.end.is_set():
                self._room.wait(TICK_S)
            self._waiting.append(message)
            self._num_bytes += _size(message)
        self.whys.pop("away", None)
        if message.seq == END_MARK:
            self._next, self._marks = 0, {}
            return
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
                    self._put(Message(self.label, END_MARK, b""))
        for message in messages or ():
            if message.seq < until:
                self._put(message)

    def _replayed(self, context: Any, start: int) -> list[Message] | None:
        """What the server still holds from a number on; None where nothing answers."""
        zmq = self._zmq
        socket = self._socket(context, zmq.DEALER)
        found: list[Message] = []
        size = 0
        try:
            socket.connect(self.replay)
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            until = time.monotonic() + REPLAY_S
            while not self.end.is_set() and time.monotonic() < until:
                if not socket.poll(int(TICK_S * 1000)):
                    continue
                *topic, seq, payload = [b"", b"", *socket.recv_multipart()][-3:]
                until = time.monotonic() + REPLAY_S
                if len(seq) != 8 or size > MAX_WAITING:
                    break
                number = int.from_bytes(seq, "big")
                if number == END_MARK or not payload:
                    self.whys.pop("replay", None)
                    return found
                found.append(Message(self.label + topic[0], number, payload))
                size += _size(found[-1])
            self._replay_from = time.monotonic() + REPLAY_AGAIN_S
            self.whys["replay"] = (
                f"Nothing was replayed from {self.replay}: what came before, or was lost, stays unknown."
            )
            return found or None
        finally:
            socket.close(0)


def _size(message: Message) -> int:
    return len(message.payload) + EACH


def _mark(message: Message) -> bytes:
    """What tells two batches of one number apart: the time is in the first bytes."""
    return message.payload[:10]
