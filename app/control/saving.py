"""Keeps the session in memory and in a journal file as it happens: steps, draft, names, notes and breakpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QObject

from app.models import KeptSession, Models
from app.models.kept_sessions import session_title
from engine.errors import InputError
from engine.saved.document import write_session
from engine.saved.journal import JournalFile, JournalFolder, add_to
from engine.saved.session import JournalEntry, SavedSession, SessionRecorder, entries_of
from engine.spec.condition import written_breakpoints
from engine.spec.sampling import Chat
from engine.wire.events import Event

REWRITTEN_BYTES = 64 << 20  # a journal longer than this is rewritten without its outdated entries
RETRY_S = 5.0  # a journal that could not be written is tried again after this many seconds

# fields of an entry that alone do not justify a file
SETTINGS = ("model", "cache", "sampling", "texts", "forgotten", "view")


class Saving(QObject):
    """The only writer of this window's session: in memory for *Save session…*, and line by line in a journal once
    `begin_in` has named its folder. If the disk refuses, the user is told once, and a warning stays until all is
    written again."""

    def __init__(self, models: Models, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._recorder = SessionRecorder(self)
        self._folder: JournalFolder | None = None
        self._file: JournalFile | None = None
        self._recovered: Path | None = None  # while paused, the journal that is being recovered
        self._has_waiting = False  # entries that arrived while paused are worth a file
        self._clock = time.monotonic
        self._failed_at: float | None = None  # time of the last failed write; entries since then are in no file
        self._rewritten_at = REWRITTEN_BYTES
        models.history.changed.connect(self._on_history)
        models.bookmarks.changed.connect(self._on_bookmarks)
        models.breakpoints.changed.connect(self._on_breakpoints)

    @property
    def session(self) -> SavedSession:
        """All that is known of the session now."""
        return self._recorder.session()

    def begin_in(self, folder: JournalFolder, draft: str) -> None:
        """Keep a journal in that folder from now on. `draft` is the text already in the editor, which the settings
        remember."""
        self._recorder.put(draft=draft)
        self._folder = folder

    def pause(self, recovered: Path) -> None:
        """Write nothing until `resume` but drafts, and these into the journal `recovered`: its session is being opened
        again, and all other entries are in that file already."""
        self._recovered = recovered

    def resume(self) -> None:
        """Write all that arrived while paused, and everything from now on."""
        if self._recovered is not None:
            is_worth_a_file, self._has_waiting = self._recorder.has_content or self._has_waiting, False
            self._recovered = None
            if is_worth_a_file and self._is_to_write:
                self._write(list(entries_of(self.session)))

    def take(self, events: Sequence[Event], *, is_repeating: bool) -> None:
        """Record the engine's events. `is_repeating`: the engine replays steps that are in the journal already."""
        self._recorder.is_repeating = is_repeating
        self._recorder.take(events)

    def set_draft(self, text: str) -> None:
        """Record the text in the prompt editor."""
        self._recorder.put(draft=text)

    def set_draft_chat(self, chat: Chat | None) -> None:
        """Record the conversation in the prompt editor; None where it is empty."""
        self._recorder.put(draft_chat=chat)

    def set_view(self, text: str) -> None:
        """Record what the window shows, a JSON object."""
        self._recorder.put(view=text)

    def save(self, path: Path) -> bool:
        """Write the session to one readable file; returns whether that succeeded, and says so in the status line."""
        try:
            write_session(self.session, path)
        except InputError as error:
            self._models.status.fail(str(error))
            return False
        self._models.status.notify(f"The session is saved as {path}")
        return True

    def has_all_of(self, other: SavedSession) -> bool:
        """Whether this session repeats the other one exactly, and its journal on the disk does."""
        mine, is_written = self.session, self._file is not None and self._failed_at is None
        parts = ("nodes", "live", "pending", "names", "bookmarks", "stops")
        return is_written and all(getattr(mine, name) == getattr(other, name) for name in parts)

    def end(self) -> None:
        """Move the journal to those that ended: the window closes normally."""
        self._finish()
        self._folder = None

    def _on_history(self) -> None:
        self._recorder.put(names=tuple(sorted(self._models.history.names.items())))

    def _on_bookmarks(self) -> None:
        self._recorder.put(bookmarks=self._models.bookmarks.all)

    def _on_breakpoints(self) -> None:
        self._recorder.put(stops=written_breakpoints(self._models.breakpoints.listed))

    # ---- the journal: `SessionRecorder` calls these ------------------------------------------------------------------

    def begin(self) -> None:
        """Close the journal of the present session: another session is about to begin."""
        if (path := self._finish()) is not None:
            session = self._recorder.session()
            if session.nodes or session.pending:
                self._models.kept_sessions.replace(KeptSession(path, time.time(), session_title(session)))
        self._set_failed("")

    def append(self, *entries: JournalEntry) -> None:
        """Write entries to the journal; the file is made with the first entry that is worth one."""
        if not self._is_to_write:
            return
        if self._recovered is not None:
            self._has_waiting |= any(map(_is_worth_a_file, entries))
            if drafts := [each for each in map(_draft_of, entries) if each != _NOTHING]:
                with suppress(OSError):  # `resume` tries again, and tells
                    add_to(self._recovered, *drafts)
        elif self._file is not None:
            self._write(entries)
        elif any(map(_is_worth_a_file, entries)):
            self._write(list(entries_of(self.session)))

    @property
    def _is_to_write(self) -> bool:
        """Whether there is a folder, and writing to it has not failed just now. (A file is begun with the whole
        session, which is not assembled at every step in vain.)"""
        has_just_failed = self._failed_at is not None and self._clock() - self._failed_at < RETRY_S
        return self._folder is not None and not has_just_failed

    def _write(self, entries: Sequence[JournalEntry]) -> None:
        assert self._folder is not None
        try:
            if self._failed_at is not None or (self._file is not None and self._file.num_bytes > self._rewritten_at):
                self._rewrite()
            else:
                self._file = self._file or self._folder.new()
                self._file.append(*entries)
        except OSError as error:
            is_news = self._failed_at is None
            why = f"The journal of this session cannot be written ({error.strerror or error})"
            self._set_failed(f"{why}: a crash would lose what comes.")
            if is_news:
                self._models.status.fail(
                    f"{why}, so that a crash would lose what comes: free some room, or save the session yourself. "
                    "The session goes on."
                )
        else:
            if self._failed_at is not None:
                self._set_failed("")
                self._models.status.notify("The journal of this session is written again, all of it")

    def _set_failed(self, why: str) -> None:
        self._failed_at = self._clock() if why else None
        if why != self._models.status.unwritten:
            self._models.status.set_unwritten(why)

    def _rewrite(self) -> None:
        """Replace the journal by a new file that contains the session once, because it is long with outdated entries or
        lacks some."""
        assert self._folder is not None
        file = self._folder.new()
        try:
            file.append(*entries_of(self.session))
        except OSError:
            file.close()
            self._folder.delete(file.path)
            raise
        old, self._file = self._file, file
        self._rewritten_at = REWRITTEN_BYTES + 2 * file.num_bytes
        if old is not None:
            old.close()
            self._folder.delete(old.path)

    def _finish(self) -> Path | None:
        """End the journal; returns its path if it has content that is kept."""
        self._rewritten_at = REWRITTEN_BYTES
        file, self._file = self._file, None
        if file is None or self._folder is None:
            return None
        file.close()
        if self._recorder.has_content:
            return self._folder.finish(file.path)
        self._folder.delete(file.path)
        return None


def _draft_of(entry: JournalEntry) -> JournalEntry:
    return JournalEntry(draft=entry.draft, draft_chat=entry.draft_chat)


def _is_worth_a_file(entry: JournalEntry) -> bool:
    return any(
        name not in SETTINGS and getattr(entry, name) != getattr(_NOTHING, name)
        for name in JournalEntry.__struct_fields__
    )


_NOTHING = JournalEntry()
