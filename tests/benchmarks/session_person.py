"""Random actions of a person in a window that will be killed; what the window shows is printed line by line."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from typing import Any

from PySide6.QtCore import QObject, QTimer

from app.models import UnclosedSession
from app.shell import Shell
from engine.saved.journal import JournalFolder
from engine.spec.bookmark import Bookmark, OnStep, OnToken
from engine.spec.edit import Rows, Scale
from engine.wire.commands import BeginBranch, GoTo, MakeEdit
from engine.wire.tree import Node

EVERY_MS = 60
LOOKING_S = 40.0  # after its model is there, in which what was left is offered or never
PATIENCE = 200  # ticks for the first moment of a prompt
WORDS_EVERY = 160  # ticks of waiting: a line about it every ten seconds
WORDS = ("a fox", "the forest", "and then", "Lily", "a big red ball", "one day")


def tell(what: str, **facts: Any) -> None:
    """Print a line and flush it."""
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def parts_of(node: Node) -> list[Any]:
    """The tokens that a moment computed and chose."""
    parts = node.work.parts if node.work is not None else ()
    return [len(node.changes), *([each.seq_id, each.num_tokens, each.token_id, each.sampled] for each in parts)]


def notes_of(bookmarks: Iterable[Bookmark]) -> dict[str, str]:
    """Texts of notes by their places."""
    return {repr(one.target): one.text for one in bookmarks}


class Person(QObject):
    """Takes up a session that is offered, then acts by a timer."""

    def __init__(self, shell: Shell, seed: int, journals: JournalFolder) -> None:
        super().__init__(shell)
        self._journals = journals
        self._shell, self._models = shell, shell.models
        self._chance = random.Random(seed)
        self._told: dict[int, list[Any]] = {}
        self._names: dict[int, str] = {}
        self._waited = self._looked = 0  # ticks
        self._is_taking_up = self._works = False
        self._waits_for_first = 0  # ticks until another prompt is sent if the last one has shown no moment
        self._notes: dict[str, str] = {}
        # What is shown is told once a turn of the event loop is over, as it is painted: a moment that another prompt
        # took away in the same turn was seen by nobody, and lies with the sessions that ended.
        self._telling = QTimer(self, singleShot=True, interval=0)
        self._telling.timeout.connect(self._on_shown)
        self._models.history.changed.connect(self._telling.start)
        self._models.bookmarks.changed.connect(self._telling.start)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._on_time)
        self._timer.start(EVERY_MS)

    # ---- what is shown -------------------------------------------------------------------------------------------

    def _on_shown(self) -> None:
        self._on_history()
        self._on_notes()

    def _on_history(self) -> None:
        history = self._models.history
        if not self._works:
            return
        if not len(history) and self._told:
            tell("restarted")
            self._told.clear()
            self._names.clear()
            self._notes.clear()
        gone = [step for step in self._told if step not in history]
        if gone:
            tell("gone", steps=gone)
            for step in gone:
                del self._told[step]
        for node in history.nodes():
            if self._told.get(node.step) != (parts := parts_of(node)):
                self._told[node.step] = parts
                tell("moment", step=node.step, parts=parts)
        if history.names != self._names:
            self._names = history.names
            tell("names", names={str(first): name for first, name in self._names.items()})

    def _on_notes(self) -> None:
        if self._works and (notes := notes_of(self._models.bookmarks.all)) != self._notes:
            self._notes = notes
            tell("notes", notes=notes)

    def _offer(self, left: UnclosedSession) -> None:
        session = left.session
        tell(
            "offered",
            moments={node.step: parts_of(node) for node in session.nodes},
            draft=session.draft,
            names={str(first): name for first, name in session.names},
            notes=notes_of(session.bookmarks),
        )

    # ---- what is done --------------------------------------------------------------------------------------------

    def _on_time(self) -> None:
        if not self._works:
            self._begin()
        elif self._models.status.loss:
            self._shell.engine_wanted.emit("")
        elif not self._shell.controller.requests.replaying.is_going_on:
            self._act()

    def _begin(self) -> None:
        """Wait for the offer, accept it, and wait until its session is there."""
        offered, status = self._models.recovery.offered, self._models.status.now
        self._waited += 1
        if self._waited % WORDS_EVERY == 0:
            tell("waits", words=self._state())
        if status is None or status.model is None or status.work is not None:
            return
        self._looked += 1
        if offered is not None:
            self._offer(offered)
            self._is_taking_up = bool(offered.session.nodes)
            self._expected_notes = notes_of(offered.session.bookmarks)
            self._expected = {node.step: parts_of(node) for node in offered.session.nodes}
            self._shell.window.recovery.accepted.emit()
        elif self._is_taking_up and (status.opened is not None or not len(self._models.history)):
            if self._models.status.failure:
                tell("problem", words=self._models.status.failure)
                self._is_taking_up = False
        elif self._is_taking_up or not self._journals.left() or self._looked * EVERY_MS > LOOKING_S * 1000:
            self._start_work()

    def _state(self) -> str:
        """What the window waits for, in words, to explain a start that never began to work."""
        status = self._models.status.now
        if status is None:
            return "no word from the engine"
        return (
            f"work {status.work}, opened {status.opened is not None}, running {status.running}, "
            f"{len(self._models.history)} moments, offered {self._models.recovery.offered is not None}, "
            f"taking up {self._is_taking_up}, restoring {self._shell.controller.requests.replaying.is_going_on}, "
            f"lost {self._models.status.loss}, failure {self._models.status.failure!r}"
        )

    def _start_work(self) -> None:
        if not self._is_taking_up:
            tell("nothing is offered", draft=self._shell.window.prompt.edit.text())
        elif self._models.status.failure:
            tell("problem", words=self._models.status.failure)
        self._works = True
        tell("works", imported=sorted({"torch", "transformers"} & set(sys.modules)))
        self._on_history()
        self._on_notes()
        if self._is_taking_up and self._notes != self._expected_notes:
            tell("problem", words=f"{len(self._notes)} of {len(self._expected_notes)} notes came back as they were")
        if self._is_taking_up and self._told != self._expected:
            tell("problem", words=f"{len(self._told)} of {len(self._expected)} moments came back as they were")

    def _act(self) -> None:
        chance, shell, status = self._chance, self._shell, self._models.status.now
        assert status is not None
        roll = chance.random()
        if not len(self._models.history):
            self._waits_for_first -= 1
            if self._waits_for_first < 0:
                self._send()
        elif roll < 0.01:
            self._send()
        elif roll < 0.12:
            self._write(chance.choice(WORDS))
        elif roll < 0.16:
            branch = chance.choice(self._models.history.branches())
            name = chance.choice(WORDS)
            tell("renaming", first=str(branch.first), name=name)
            self._models.history.rename(branch.first, name)
        elif roll < 0.21:
            self._note()
        elif status.running:
            if roll < 0.3:
                shell.intents.on_run_or_pause()
        elif roll < 0.3:
            self._post(GoTo(chance.choice(self._models.history.nodes()).step))
        elif roll < 0.4 and status.sequences:
            self._post(BeginBranch(status.sequences[0].seq_id, None, token_ids=(chance.randrange(3, 500),)))
        elif roll < 0.5 and status.sequences and status.sequences[0].num_tokens > 4:
            self._post(MakeEdit(Scale(status.sequences[0].seq_id, Rows(1, 3), 0.5)))
        elif roll < 0.8:
            shell.window.actions_["run.step"].trigger()
        else:
            shell.intents.on_run_to(chance.randrange(1, 12))

    def _send(self) -> None:
        """Another session: until it is shown, the one before may be offered, or be one of those that ended."""
        tell("sending")
        self._shell.window.actions_["prompt.send"].trigger()
        self._waits_for_first = PATIENCE

    def _note(self) -> None:
        """A bookmark or a note, on a step or a token, or the text of one that is there."""
        chance, step = self._chance, self._chance.choice(self._models.history.nodes()).step
        target = OnStep(step) if chance.random() < 0.5 else OnToken(step, 0, chance.randrange(4))
        self._shell.intents.on_bookmark_put(Bookmark(target, chance.choice(("", *WORDS))))

    def _write(self, words: str) -> None:
        edit = self._shell.window.prompt.edit
        edit.set_text(edit.text()[:200] + " " + words)
        edit.edited.emit()  # the pause in typing
        tell("draft", text=edit.text())

    def _post(self, command: Any) -> None:
        self._shell.controller.intents._sender.post(command)
