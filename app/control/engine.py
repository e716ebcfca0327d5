"""The engine behind the window: it opens a client when one is needed, and replaces it when the engine must restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast, get_args

from msgspec.structs import replace

from engine.client import Client, ClientChoice, ClientKind, is_elsewhere, kind_for, open_client
from engine.spec.cache import CacheSpec
from engine.spec.model import AUTO_DEVICE, Dtype, ModelSpec
from engine.wire.commands import CloseSnapshot, Continue, LoadModel, OpenSnapshot
from engine.wire.events import CacheChanged, Event, Failed, Restarted
from engine.wire.message import Command
from engine.wire.serving import ServerCommand

if TYPE_CHECKING:
    from engine.client.serving import ServingClient

# An engine that is replaced while it runs has this many seconds to end by itself.
EXCHANGE_S = 0.3


class Engine:
    """Holds one client at a time. Commands sent before `start` or after `close` are dropped."""

    def __init__(self, choice: ClientChoice = "auto") -> None:
        self.choice: ClientChoice = choice
        self._client: Client | None = None
        self._model = ModelSpec()  # the model that was loaded last
        self._opened: OpenSnapshot | None = None  # asked for the snapshot that is open in place of a model
        self._requested: dict[int, ModelSpec | OpenSnapshot] = {}
        self._fallback: LoadModel | None = None  # sent if what the engine starts with is refused
        self._ring: Callable[[], None] | None = None
        self._servers: ServingClient | None = None  # made when the first server is attached to

    def listen(self, ring: Callable[[], None]) -> None:
        """Have `ring` called, on any thread, when there are events to drain."""
        self._ring = ring
        if self._client is not None:
            self._client.listen(ring)
        if self._servers is not None:
            self._servers.listen(ring)

    @property
    def kind(self) -> ClientKind | None:
        """Where the engine runs (thread, process, …); None if there is no engine."""
        return self._client.kind if self._client is not None else None

    @property
    def is_as_chosen(self) -> bool:
        """Whether the present engine is of the kind that the user's choice calls for."""
        return self._client is not None and self._client.kind == kind_for(self.choice, self._model.device)

    def start(
        self,
        model: ModelSpec,
        cache: CacheSpec,
        snapshot: OpenSnapshot | None = None,
        *,
        is_remembered: bool = False,
        kind: ClientKind | None = None,
    ) -> None:
        """End the present engine and start one that loads a model, or opens `snapshot`; if the snapshot cannot be
        opened, the model is loaded instead. If a model with a remembered device (`is_remembered`, from an earlier
        start) cannot be loaded there, because the device is gone for instance, the engine chooses the device."""
        self.close(EXCHANGE_S)
        self._model, self._opened = model, snapshot
        first = LoadModel(model, cache)
        self._fallback = first if snapshot is not None else None
        if snapshot is None and is_remembered and model.device != AUTO_DEVICE:
            self._fallback = LoadModel(replace(model, device=AUTO_DEVICE), cache)
        self._requested.clear()  # the engine that was ended answers no more
        self._client = open_client(kind or kind_for(self.choice, model.device))
        self._client.listen(self._ring)
        self._client.send(first if snapshot is None else replace(snapshot, id=0))

    def restart(self, cache: CacheSpec) -> None:
        """Start again with the model that was loaded last, or the snapshot that is open."""
        self.start(self._model, cache, self._opened)

    def restart_on_cpu(self, cache: CacheSpec, dtype: str) -> None:
        """Start again with that model on the CPU, in a child process: a device may have failed in this one."""
        model = replace(self._model, device="cpu", dtype=cast(Dtype, dtype) if dtype in get_args(Dtype) else "auto")
        kind = None if self.kind is not None and is_elsewhere(self.kind) else "process"
        self.start(model, cache, self._opened, kind=kind)

    def reload(self, cache: CacheSpec) -> None:
        """Have the present engine load again the model that was loaded last."""
        if self._client is not None:
            self._client.send(LoadModel(self._model, cache))

    def send(self, command: Command) -> None:
        if isinstance(command, ServerCommand) and command.server:
            self._servers_client().send(command)
            return
        match command:
            case LoadModel(model=model) | Continue(model=model) | CloseSnapshot(model=model):
                self._requested[command.id] = model
            case OpenSnapshot():
                self._requested[command.id] = command
        if self._client is not None:
            self._client.send(command)

    def _servers_client(self) -> ServingClient:
        """The client of servers that run elsewhere, which begins with the first of them."""
        if self._servers is None:
            from engine.client.serving import ServingClient

            self._servers = ServingClient()
            self._servers.listen(self._ring)
        return self._servers

    def drain(self) -> list[Event]:
        events = self._client.drain() if self._client is not None else []
        if self._servers is not None:
            events += self._servers.drain()
        for event in events:
            if isinstance(event, Restarted | CacheChanged) and event.reply_to in self._requested:
                self._on_loaded(self._requested.pop(event.reply_to))
            self._load_fallback(event)
        return events

    def _load_fallback(self, event: Event) -> None:
        """If the command that the engine started with is refused, send the fallback, so that the window is not left
        without a model."""
        if self._fallback is None or self._client is None:
            return
        if isinstance(event, Failed) and event.reply_to == self._fallback.id:
            self._opened, self._model = None, self._fallback.model
            self._client.send(self._fallback)
        if isinstance(event, Failed | Restarted):
            self._fallback = None

    def _on_loaded(self, asked: ModelSpec | OpenSnapshot) -> None:
        if isinstance(asked, OpenSnapshot):
            self._opened = asked
        else:
            self._model, self._opened = asked, None

    def leave_servers(self, timeout_s: float) -> None:
        """Let go of all servers that run elsewhere."""
        if self._servers is not None:
            self._servers.listen(None)
            self._servers.close(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """End the engine within `timeout_s`; returns whether nothing of it is left running."""
        client, self._client = self._client, None
        if client is not None:
            client.listen(None)
        return client is None or client.close(timeout_s)
