"""The serving client: servers that run elsewhere, as the window sees them. Their events are folded in one thread here,
which answers what is asked about them; nothing of it needs torch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import BinaryIO

from engine.client.outbox import Outbox
from engine.errors import InputError
from engine.serving import metrics
from engine.serving.answers import answer
from engine.serving.events import END_MARK, Message, Recording, decode, packed
from engine.serving.server import Server
from engine.serving.source import Source
from engine.serving.text import NoTokenizer, Tokenizer, Words
from engine.wire.events import Done, Event, Failed
from engine.wire.message import Command
from engine.wire.serving import (
    AttachServer,
    DetachServer,
    ExplainPrefix,
    RecordServer,
    ServerCommand,
    ServersChanged,
    ServerSpec,
    ServerState,
    TakePrefixTree,
)

# Seconds between two looks at sources, two states sent while events come, and two readings of metrics.
TURN_S, STATE_S, METRICS_S = 0.02, 0.25, 2.0
# From how many blocks that were asked for the hit ratios are estimated while a server runs (the latest ones: it takes
# about a second), and how many times as long the next estimate waits.
LATEST, REST = 200_000, 20
# Batches that are folded before what is asked is answered.
PIECE = 400
MOST_SERVERS = 16


class Player:
    """Plays a recording, with the `take`, `words`, `state` and `close` of a source."""

    def __init__(self, path: Path, speed: float) -> None:
        self._recording, self._speed = Recording(path), speed
        self._messages = iter(self._recording)
        self._next: Message | None = next(self._messages, None)
        self._first = _time_of(self._next)
        self._begun = time.monotonic()
        self._problem = ""
        self.state = "recorded"

    def take(self, most: int) -> list[Message]:
        """The batches whose time has come."""
        found: list[Message] = []
        passed = (time.monotonic() - self._begun) * self._speed
        while self._next is not None and len(found) < most:
            if self._speed and _time_of(self._next) - self._first > passed:
                break
            found.append(self._next)
            try:
                self._next = next(self._messages, None)
            except InputError as error:
                self._next, self._problem = None, str(error)
        return found

    def words(self) -> str:
        if self._problem:
            return self._problem
        path = self._recording.path
        if self._next is not None:
            return f"Playing {path}."
        return f"{path} is played to its end{', which is cut within a batch' if self._recording.cut else ''}."

    def close(self, timeout_s: float = 0.0) -> bool:
        self._next = None
        return True


def _time_of(message: Message | None) -> float:
    try:
        return 0.0 if message is None else decode(message.payload).time
    except InputError:
        return 0.0


class Attached:
    """One server: its source, fold, tokenizer and figures. All but the figures belongs to the folding thread."""

    def __init__(self, spec: ServerSpec) -> None:
        """Raises InputError for what cannot be attached to."""
        self.spec = spec
        self.tokenizer: Words = Tokenizer(Path(spec.tokenizer)) if spec.tokenizer else NoTokenizer()
        if spec.metrics:
            metrics.check_url(spec.metrics)
        path = Path(spec.endpoint)
        self.source: Source | Player = (
            Player(path, spec.speed) if "://" not in spec.endpoint else Source(spec.endpoint, spec.replay)
        )
        self.server = Server(spec.endpoint)
        self.figures: tuple[metrics.Metrics, metrics.Metrics] | None = None  # of its metrics page, at first and now
        self.why_no_metrics = ""
        self.pools: tuple[tuple[int, float], ...] = ()
        self.pools_of = -1  # how many batches they are of
        self.pools_at = self.metrics_at = 0.0  # when they are due again
        self.came_at = time.monotonic()  # when its last batch did
        self.file: BinaryIO | None = None  # where it is recorded

    def reported(self) -> ServerState:
        """What the window is told of it."""
        server = self.server
        return ServerState(
            server.name,
            self.source.state,
            " ".join(filter(None, (self.source.words(), self.why_no_metrics))),
            server.notes(),
            sum(max(0, block.below) for tree in server.trees.values() for block in tree.tops()),
            deepcopy(server.counts),
            self.pools,
            metrics.beside_events(server, *self.figures, self.pools) if self.figures else (),
            self.file is not None,
        )

    def read_figures(self) -> None:
        """Read its metrics page, and estimate the hit ratios of other pools, where it is time for that."""
        if self.spec.metrics and time.monotonic() >= self.metrics_at:
            self.metrics_at = time.monotonic() + METRICS_S
            try:
                now = metrics.fetch(self.spec.metrics)
                self.figures = (self.figures[0] if self.figures else now, now)
                self.why_no_metrics = ""
            except InputError as error:
                self.why_no_metrics = str(error)
        if self.pools_of != self.server.counts.batches and time.monotonic() >= self.pools_at:
            self.pools_of = self.server.counts.batches
            usable, began = metrics.usable_blocks(self.figures[1]) if self.figures else 0, time.monotonic()
            self.pools = self.server.hit_ratios(usable, LATEST)
            self.pools_at = time.monotonic() + REST * (time.monotonic() - began)


class ServingClient:
    """All servers of a window. Call its methods from one thread; only `close` blocks."""

    kind = "serving"

    def __init__(self) -> None:
        self._events = Outbox()
        self._commands: deque[ServerCommand] = deque()
        self._said: tuple[ServerState, ...] = ()
        self._attached: dict[str, Attached] = {}
        self._lock = threading.Lock()  # guards the dictionary, not what is in it
        self._end, self._wake = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._fold, name="servers", daemon=True),
            threading.Thread(target=self._read_figures, name="figures of servers", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, command: Command) -> None:
        assert isinstance(command, ServerCommand)  # as `Engine.send` sees to
        self._commands.append(command)
        self._wake.set()

    def drain(self) -> list[Event]:
        return self._events.take_all()

    def listen(self, callback: Callable[[], None] | None) -> None:
        self._events.listen(callback)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Let all servers go."""
        self._end.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout_s)
        with self._lock:  # one that takes longer may still be attaching
            everything = list(self._attached.values())
        for attached in everything:
            self._close(attached)
        return not any(thread.is_alive() for thread in self._threads)

    def _close(self, attached: Attached) -> None:
        attached.source.close()
        if attached.file is not None:
            attached.file.close()

    # ---- the threads ---------------------------------------------------------------------------------------------

    def _fold(self) -> None:
        said_at = 0.0
        while not self._end.is_set():
            with self._lock:
                everything = list(self._attached.values())
            is_more = False
            for attached in everything:
                is_more |= self._fold_piece(attached)
            self._answer()
            if time.monotonic() - said_at >= STATE_S:
                said_at = time.monotonic()
                self._say(everything)
            if not is_more:
                self._wake.wait(TURN_S)
                self._wake.clear()

    def _fold_piece(self, attached: Attached) -> bool:
        """Fold a piece of what came; whether more may wait."""
        messages = attached.source.take(PIECE)
        if messages:
            attached.came_at = time.monotonic()
        for message in messages:
            attached.server.take(message)
            if attached.file is not None and message.seq != END_MARK:
                try:
                    attached.file.write(packed(message))
                except (OSError, ValueError) as error:
                    attached.file = None
                    self._events.put(Failed(f"The recording ended ({error}): free some space, and record again."))
        return bool(messages)

    def _answer(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                self._events.put(self._done(command))
            except InputError as error:
                self._events.put(Failed(str(error), reply_to=command.id))

    def _done(self, command: ServerCommand) -> Event:
        """Carry a command out; its last word. Raises InputError, with cause and remedy, if that cannot be."""
        if isinstance(command, AttachServer):
            self._attach(command.spec)
            return Done(reply_to=command.id)
        if (attached := self._attached.get(command.server)) is None:
            raise InputError(f"{command.server} is not attached to any more.")
        match command:
            case DetachServer():
                with self._lock:
                    del self._attached[command.server]
                self._close(attached)
            case RecordServer():
                _record(attached, command.path)
            case TakePrefixTree() | ExplainPrefix():
                if isinstance(attached.source, Source):
                    if not (attached.server.counts.batches or attached.server.counts.unreadable):
                        raise InputError(f"No batch has come yet. {attached.source.words()}")
                    attached.server.waited = time.monotonic() - attached.came_at
                return answer(attached.server, command, attached.tokenizer)
        return Done(reply_to=command.id)

    def _attach(self, spec: ServerSpec) -> None:
        if spec.endpoint in self._attached:
            raise InputError(f"{spec.endpoint} is attached to already: detach it first.")
        if len(self._attached) >= MOST_SERVERS:
            raise InputError(f"{MOST_SERVERS} servers are attached to, the most there can be: detach one first.")
        attached = Attached(spec)
        with self._lock:
            self._attached[spec.endpoint] = attached

    def _say(self, everything: list[Attached]) -> None:
        """Send the state of all servers, where anything changed."""
        states = []
        for attached in everything:
            for tree in attached.server.trees.values():
                tree.settle()
            states.append(attached.reported())
        if (shown := tuple(states)) != self._said:
            self._said = shown
            self._events.put(ServersChanged(shown))

    def _read_figures(self) -> None:
        while not self._end.wait(STATE_S):
            with self._lock:
                everything = list(self._attached.values())
            for attached in everything:
                attached.read_figures()


def _record(attached: Attached, path: Path | None) -> None:
    """Write what comes from a server from now on to a file; None ends it. Raises InputError if it cannot be."""
    from engine.files.atomic import writable_target

    stream = None
    if path is not None:
        try:
            stream = open(writable_target(path), "wb")  # noqa: SIM115 - closed with the server
        except OSError as error:
            raise InputError(f"'{path}' cannot be written ({error.strerror}): choose another place.") from None
    old, attached.file = attached.file, stream
    if old is not None:
        old.close()
