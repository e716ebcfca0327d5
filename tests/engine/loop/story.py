"""A script of commands that a loop is given one by one, or in the middle of a run, and all that it says to them, as
lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec import UNSET
from msgspec.structs import asdict, replace

from engine.loop.inbox import Inbox
from engine.loop.loop import EngineLoop
from engine.opened.session import OpenedSession
from engine.saved.document import write_session
from engine.saved.session import JournalEntry, SessionRecorder
from engine.wire import commands as c
from engine.wire.events import Event, StateChanged
from engine.wire.pictures import AttentionRequest, HeadRequest, OutliersRequest, RowRequest, TableRequest, WallRequest
from engine.wire.records import StepRecord
from engine.wire.tree import Node
from tests.engine.told import Entry, entry, told

# a command, or several, each with the number of steps of the first one after which it arrives
Script = Iterator[c.Command | tuple[tuple[int, c.Command], ...]]


class Story:
    """Runs a script, each command when there is nothing else to do, and notes what is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self.recorder = SessionRecorder(self)
        self.entries: list[Entry] = []
        self._asked: dict[int, tuple[object, ...]] = {}  # what the answer to a command need not repeat
        self._status: Entry | None = None  # the last one without work: a clock says how often it is told
        self._work, self._number = "", 0
        self._coming: list[tuple[int, c.Command]] = []
        self._loop = EngineLoop(self._take)
        self._monkeypatch = monkeypatch

    def run(self, script: Callable[[Story], Script]) -> list[Entry]:
        found = script(self)

        def wait(_inbox: Inbox, timeout_s: float | None = None) -> c.Command | None:
            if not self._coming:  # else the run ended before they came
                wanted = next(found, c.Shutdown())
                self._coming = list(wanted) if isinstance(wanted, tuple) else [(0, wanted)]
            return self._sent(self._coming.pop(0)[1])

        self._monkeypatch.setattr(Inbox, "wait", wait)
        self._loop.run()
        return self.entries

    def saved(self) -> list[Entry]:
        """The session as it is written into a file, and what a window is told of it when it is read from there, without
        its model."""
        session = self.recorder.session()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "session.json"
            write_session(session, path)
            opened = OpenedSession(path)
        assert opened.saved == session
        return [entry(session), entry(opened.status(session.sampling, None)), *map(entry, opened.events())]

    def _sent(self, command: c.Command) -> c.Command:
        self._number += 1
        self._work = ""
        kind, parts = entry(command, ("records", "nodes"))
        request = getattr(command, "request", None)
        self.entries.append((f"> {kind}{f' {type(request).__name__}' * (request is not None)}", parts))
        numbered = replace(command, id=self._number)
        self._asked[self._number] = (numbered, request)
        return numbered

    # what the recorder writes

    def begin(self) -> None:
        self.entries.append(("  another journal begins", {}))

    def append(self, *entries: JournalEntry) -> None:
        for each in entries:
            fields = {
                name: value for name, value in asdict(each).items() if value is not UNSET and value not in ({}, ())
            }
            if isinstance(each.node, Node):
                fields["node"] = each.node.step
            self.entries.append(
                (f"  journal {' '.join(fields)}", {name: told(value) for name, value in fields.items()})
            )

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.recorder.take([event])
        if isinstance(event, StepRecord):
            self._coming = [(steps - 1, command) for steps, command in self._coming]
            for _, command in (each for each in self._coming if each[0] <= 0):
                self._loop.send(self._sent(command))
            self._coming = [each for each in self._coming if each[0] > 0]
        if not isinstance(event, StateChanged):
            is_asked = getattr(event, "request", None) in self._asked.get(event.reply_to or 0, ())
            kind, parts = entry(event, ("reply_to", *(["request"] * is_asked)))
            if event.reply_to != self._number:  # not to the newest command
                parts["reply"] = f"to {self._number - event.reply_to} before" if event.reply_to else "to none"
            self.entries.append((kind, parts))
        elif event.status.work is None:  # while it works a clock says when that is told
            if (status := entry(event.status)) != self._status:
                self._status = status
                self.entries.append((f"  {status[0]}", status[1]))
        elif event.status.work.label not in (self._work, "Trying another cache"):  # which is mostly not told
            self._work = event.status.work.label
            self.entries.append(("  work", entry(event.status.work)[1]))

    @property
    def records(self) -> tuple[StepRecord, ...]:
        return tuple(event for event in self.events if isinstance(event, StepRecord))


def answers(entries: list[Entry]) -> list[Entry]:
    """What is asked and answered, without steps, status and journal, which other stories tell."""
    return [each for each in entries if not each[0].startswith(("StepRecord", "  "))]


def pictures(seq_id: int, count: int, step: int, layer: int = 2) -> tuple[c.PictureRequest, ...]:
    return (
        WallRequest(seq_id, count, count - 2, "values", True, 40, 24),
        HeadRequest(seq_id, count, "keys", layer, 1, 3, count, 7),
        AttentionRequest(seq_id, step, 1, 40),
        RowRequest(seq_id, count, count - 2),
        TableRequest(seq_id, count),
        OutliersRequest(seq_id, count, step, 5),
    )
