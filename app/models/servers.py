"""The servers that run elsewhere, as last reported, and which of them is viewed."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from engine.wire.serving import ServersChanged, ServerState


class Servers(QObject):
    """The controller writes what is reported, panels write what is chosen. Signal: `changed()`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.all: tuple[ServerState, ...] = ()
        self.chosen = ""  # the name of a server; empty: the page pools of this session

    @property
    def now(self) -> ServerState | None:
        """The server that is viewed."""
        return next((server for server in self.all if server.name == self.chosen), None)

    def take(self, event: ServersChanged) -> None:
        known = {server.name for server in self.all}
        self.all = event.servers
        names = [server.name for server in self.all]
        new = [name for name in names if name not in known]
        if new or self.chosen not in names:
            self.chosen = new[-1] if new else names[-1] if names else ""
        self.changed.emit()

    def choose(self, name: str) -> None:
        if name != self.chosen:
            self.chosen = name
            self.changed.emit()
