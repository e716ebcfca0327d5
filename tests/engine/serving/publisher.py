"""A publisher of KV events on loopback."""

from __future__ import annotations

import threading
from types import TracebackType

import zmq

from engine.serving.events import END_MARK, Message


class Publisher:
    """Publishes on one port of loopback and replays on another; `held` is what it can replay."""

    def __init__(self, *, has_topic: bool = True, port: int = 0, replay_port: int = 0) -> None:
        self.context = zmq.Context()
        self._out, self._router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        for socket in (self._out, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        number = port or self._out.bind_to_random_port("tcp://127.0.0.1")
        if port:
            self._out.bind(f"tcp://127.0.0.1:{port}")
        self.port = number
        self.endpoint = f"tcp://127.0.0.1:{number}"
        self.replay_port = replay_port or self._router.bind_to_random_port("tcp://127.0.0.1")
        if replay_port:
            self._router.bind(f"tcp://127.0.0.1:{replay_port}")
        self.replay = f"tcp://127.0.0.1:{self.replay_port}"
        self.held: list[Message] = []
        self._has_topic = has_topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until somebody has subscribed."""
        assert self._out.poll(120_000), "nobody subscribed"
        self._out.recv()

    def send(self, *messages: Message) -> None:
        for topic, seq, payload in messages:
            self._out.send_multipart((topic, seq.to_bytes(8, "big"), payload))

    def send_frames(self, *frames: bytes) -> None:
        self._out.send_multipart(frames)

    def _answer(self) -> None:
        while not self._end.is_set():
            if not self._router.poll(50):
                continue
            who, _, start = self._router.recv_multipart()
            for topic, seq, payload in [*self.held, Message(b"kv", END_MARK, b"")]:
                if seq >= int.from_bytes(start, "big"):
                    middle = (b"", topic) if self._has_topic else (b"",)
                    self._router.send_multipart((who, *middle, seq.to_bytes(8, "big"), payload))

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join(60)
        self.context.destroy(linger=0)
