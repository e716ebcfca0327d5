"""Finds session journals: offers the one that a killed window left behind, names those that ended, and opens one again
with its model."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from app.control.controller import Controller
from app.draw.format import byte_size
from app.kit.asking import Question
from app.models import KeptSession, Models, UnclosedSession
from app.models.kept_sessions import first_words, session_title
from engine.errors import InputError
from engine.saved.document import read_session
from engine.saved.journal import RUNNING, JournalFolder
from engine.spec.condition import written_breakpoints
from engine.spec.model import ModelSpec
from engine.wire.commands import Continue, OpenSnapshot
from engine.wire.events import Failed, SessionOpened
from engine.wire.status import EngineStatus

LONGEST_NAMED = 8 << 20  # bytes of a journal that is read for its title


class ClaimedJournal(Struct, frozen=True):
    """A journal that is being opened again: its session, its lock, the model it used, and the text to put into the
    editor."""

    left: UnclosedSession
    stream: IO[bytes]
    model: ModelSpec
    draft: str

    @property
    def path(self) -> Path:
        return self.left.path


class Recovering(QObject):
    """Looks for journals whose window is gone, in a thread of its own, and offers the newest one through
    `models.recovery`; the others are moved to the ended sessions, which `models.kept_sessions` lists. Signals, when a
    session is opened again: `draft_found(text)` and `chat_found(chat)`, with None if it has no conversation; and when
    all of it is there, `draft_found_again(text)`.

    A journal is released only when the engine has replayed it; until then the next start offers it again. It is deleted
    when the journal of this window has all that was in it.
    """

    draft_found = Signal(str)
    draft_found_again = Signal(str)
    chat_found = Signal(object)
    _read = Signal(object)
    _unreadable = Signal(str)
    _named = Signal(object)

    def __init__(
        self, folder: JournalFolder, models: Models, controller: Controller, draft: str, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._folder = folder
        self._models = models
        self._controller = controller
        self._intents, self._saving = controller.intents, controller.saving
        self._draft = draft  # the text that the editor begins with
        self._stops = written_breakpoints(models.breakpoints.listed)  # the breakpoints that this window begins with
        self._claimed: ClaimedJournal | None = None
        self._read.connect(models.recovery.offer)
        self._unreadable.connect(models.status.notify)
        self._named.connect(models.kept_sessions.put)
        models.status.changed.connect(self._on_status)
        controller.events.session_opened.connect(self._on_session_opened)

    def look(self) -> None:
        """Look for journals of killed windows, in a thread."""
        threading.Thread(target=self._look, name="journals", daemon=True).start()

    def _look(self) -> None:
        is_first = True
        for path in self._folder.left():
            try:
                left = self._read_journal(path)
            except (InputError, OSError):  # a journal that cannot be read is kept, in case someone wants to look at it
                kept = self._folder.finish(path).name
                self._unreadable.emit(f"A session that was not closed cannot be read: it is kept as {kept}")
                continue
            if left is None:
                self._folder.delete(path)
            elif is_first:
                is_first = False
                self._read.emit(left)
            else:
                self._folder.finish(path)

        for path in self._folder.ended():
            if (named := _named(path)) is not None:
                self._named.emit(named)

    def _read_journal(self, path: Path) -> UnclosedSession | None:
        """Read a journal; None if it contains nothing that the user would miss."""
        opened, written = read_session(path), path.stat().st_mtime
        session = opened.session
        has_draft = session.draft not in ("", self._draft) or session.draft_chat is not None
        has_breakpoints = bool(session.stops) and session.stops != self._stops
        if not (session.nodes or session.pending or session.bookmarks or has_draft or has_breakpoints):
            return None
        return UnclosedSession(path, session, written, opened.problem)

    # ---- input of the user ---------------------------------------------------------------------------------------

    def on_accepted(self) -> None:
        """Recover the offered session: its draft at once, its steps as soon as the model has replayed them."""
        left = self._models.recovery.offered
        if left is None:
            return
        self._models.recovery.offer(None)
        self._open_again(left, left.session.draft)
        if left.session.draft_chat is not None:
            self.chat_found.emit(left.session.draft_chat)

    def return_to(self, path: Path) -> None:
        """Open a session that ended again, with its model, in place of the present one, which is kept."""
        if self._claimed is not None:
            self._models.status.notify("Another session is being opened: wait for it, or cancel")
            return
        try:
            opened = read_session(path)
            os.utime(path)  # so that it is not the oldest, which is deleted when the present one ends
            left = UnclosedSession(path, opened.session, path.stat().st_mtime, opened.problem)
        except (InputError, OSError) as error:
            self._models.kept_sessions.keep_only(self._folder.ended())
            self._models.status.fail(str(error) if isinstance(error, InputError) else f"'{path}' is gone: {error}")
            return
        was_sent = left.session.draft.strip() == self._saving.session.prompt_text.strip()
        self._open_again(left, left.session.prompt_text if was_sent else left.session.draft)
        self.chat_found.emit(left.session.draft_chat or left.session.newest_chat)

    def _open_again(self, left: UnclosedSession, draft: str) -> None:
        """Open a journal that no window writes, and continue it with its model; `draft` is put into the editor."""
        try:
            stream = self._folder.claim(left.path)
        except OSError:
            self._models.status.fail("Another window has taken up this session already: go on there.")
            return
        has_steps = bool(left.session.nodes or left.session.pending)
        if has_steps:
            self._saving.pause(left.path)
        if draft:
            self.draft_found.emit(draft)
            self._saving.set_draft(draft)  # at once: its file may be gone before a pause in typing has ended
        if left.session.draft_chat is not None:
            self._saving.set_draft_chat(left.session.draft_chat)
        if has_steps:
            self._claimed = ClaimedJournal(left, stream, left.session.spec, draft)
            self._models.recovery.restore(left.path)
            self._intents.take(Question(OpenSnapshot(left.path, is_here=True), on_refusal=self._on_refused))
            if self._models.status.awaits_model:
                words = first_words(left.session)
                self._models.status.notify(f"The session {words} is restored as soon as the model is loaded")
        else:
            self._controller.requests.breakpoints.bring_back(left.session.stops)
            stream.close()
            self._folder.delete(left.path)

    def on_dismissed(self) -> None:
        """Decline the offered session: it is kept with those that ended."""
        left = self._models.recovery.offered
        self._models.recovery.offer(None)
        if left is not None:
            self._keep(left)
            self._models.status.notify("The session is kept under File · Recent sessions")

    def _on_status(self, old: EngineStatus, new: EngineStatus) -> None:
        """When the journal has been opened, continue it with its model; when it was closed for something else, release
        it, so that it can be offered again."""
        claimed = self._claimed
        if claimed is None:
            return
        was, now = (None if each.opened is None else each.opened.path for each in (old, new))
        if now == claimed.path and new.opened is not None and new.opened.why_not:
            self._release(claimed)  # it is shown as it was written, and the bar above the panels says why
        elif now == claimed.path and was != claimed.path:
            self._intents.send(Continue(claimed.model, may_open_files=True))
        elif was == claimed.path and now != claimed.path and not new.sequences:
            self._release(claimed)

    def _on_refused(self, failure: Failed) -> None:
        """When the journal could not be opened, release it and offer it again; this window's session goes on."""
        if failure.message:
            self._models.status.fail(failure.message)
        if self._claimed is not None:
            left = self._claimed.left
            self._release(self._claimed)
            if left.path.name.endswith(RUNNING):
                self._models.recovery.offer(left)

    def _on_session_opened(self, event: SessionOpened) -> None:
        """When all was replayed exactly, this window's own journal contains it, and the other one is deleted; else it
        is kept among those that ended."""
        if self._claimed is not None and event.reply_to is not None:
            claimed = self._claimed
            self._release(claimed)
            if claimed.draft:  # the draft in the file may have been sent since
                self.draft_found_again.emit(claimed.draft)
            if self._saving.has_all_of(claimed.left.session):
                self._folder.delete(claimed.path)
            else:
                self._keep(claimed.left)
            self._models.kept_sessions.keep_only(self._folder.ended())

    def _keep(self, left: UnclosedSession) -> None:
        path = self._folder.finish(left.path)
        self._models.kept_sessions.put(KeptSession(path, left.written, session_title(left.session)))

    def _release(self, claimed: ClaimedJournal) -> None:
        self._claimed = None
        self._models.recovery.restore(None)
        self._saving.resume()
        claimed.stream.close()


def _named(path: Path) -> KeptSession | None:
    """A journal that ended, by its title; None if it has no steps, or cannot be read."""
    try:
        found = path.stat()
        if found.st_size > LONGEST_NAMED:
            return KeptSession(path, found.st_mtime, f"a session of {byte_size(found.st_size)}")
        session = read_session(path).session
    except (InputError, OSError):
        return None
    has_steps = bool(session.nodes or session.pending)
    return KeptSession(path, found.st_mtime, session_title(session)) if has_steps else None
