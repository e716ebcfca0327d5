"""The engine behind the window: a client, opened when it is needed and exchanged when it has to begin again."""

from __future__ import annotations

from collections.abc import Callable

from engine.client import Choice, Client, Kind, kind_for, open_client
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import Command, LoadModel
from engine.wire.events import Event, Restarted

# A living engine that is exchanged for another one has this long to end by itself.
EXCHANGE_S = 0.3


class Engine:
    """One client at a time. Before it is started, and after it was closed, commands go nowhere."""

    def __init__(self, choice: Choice = "auto") -> None:
        self.choice: Choice = choice
        self._client: Client | None = None
        self._model = ModelSpec()  # the last that was loaded
        self._asked: dict[int, ModelSpec] = {}
        self._ring: Callable[[], None] | None = None

    def listen(self, ring: Callable[[], None]) -> None:
        """Have this called, on any thread, when there is something to drain."""
        self._ring = ring

    @property
    def kind(self) -> Kind | None:
        """How the engine runs; None where there is none."""
        return self._client.kind if self._client is not None else None

    @property
    def is_as_chosen(self) -> bool:
        """Whether the engine that runs is of the kind that the choice asks for."""
        return self._client is not None and self._client.kind == kind_for(self.choice, self._model.device)

    def start(self, model: ModelSpec, cache: CacheSpec) -> None:
        """Begin, with a model to load; an engine that was there before is ended."""
        self.close(EXCHANGE_S)
        self._model = model
        self._asked.clear()  # of the engine that is ended, which answers no more
        self._client = open_client(kind_for(self.choice, model.device))
        self._client.listen(self._ring)
        self._client.send(LoadModel(model, cache))

    def restart(self, cache: CacheSpec) -> None:
        """Begin again with the model that was loaded last."""
        self.start(self._model, cache)

    def send(self, command: Command) -> None:
        if isinstance(command, LoadModel):
            self._asked[command.id] = command.model
        if self._client is not None:
            self._client.send(command)

    def drain(self) -> list[Event]:
        events = self._client.drain() if self._client is not None else []
        for event in events:
            if isinstance(event, Restarted) and event.reply_to in self._asked:
                self._model = self._asked.pop(event.reply_to)
        return events

    def close(self, timeout_s: float) -> bool:
        """End the engine; whether nothing of it is left."""
        client, self._client = self._client, None
        if client is not None:
            client.listen(None)
        return client is None or client.close(timeout_s)
