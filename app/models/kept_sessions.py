"""Sessions that are kept on the disk: how they are named, and which one the present session has replaced."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.counted import counted, step_numbers
from engine.saved.session import SavedSession
from engine.wire.records import EditMade

LONGEST_WORDS = 40  # characters of the first words of a session


class KeptSession(Struct, frozen=True):
    """A session in a file, when it was last written (seconds since 1970), and its title."""

    path: Path
    written: float
    title: str


class KeptSessions(QObject):
    """The sessions that ended, newest first, and the `former` one, which the present session has replaced in this
    window. Signals: `changed()`; `replaced()`, another session has begun, and there is a former one."""

    changed = Signal()
    replaced = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._all: dict[Path, KeptSession] = {}
        self._former: Path | None = None

    @property
    def all(self) -> tuple[KeptSession, ...]:
        return tuple(sorted(self._all.values(), key=_age, reverse=True))

    @property
    def former(self) -> KeptSession | None:
        return None if self._former is None else self._all.get(self._former)

    def put(self, session: KeptSession) -> None:
        """Add a session that ended."""
        self._all[session.path] = session
        self.changed.emit()

    def replace(self, session: KeptSession) -> None:
        """Add the session that another one has just replaced."""
        self._former = session.path
        self.put(session)
        self.replaced.emit()

    def keep_only(self, paths: list[Path]) -> None:
        """Forget the sessions that are in none of these files."""
        if gone := self._all.keys() - set(paths):
            for path in gone:
                del self._all[path]
            self.changed.emit()


def _age(session: KeptSession) -> tuple[float, Path]:
    return session.written, session.path


def session_title(session: SavedSession) -> str:
    """The first words of a session, its model, and what it has: `“Once upon a time” · Tales 5M · steps 0–281`."""
    model = [session.model.name] if session.model is not None else []
    return " · ".join((first_words(session), *model, *session_counts(session)))


def first_words(session: SavedSession) -> str:
    """The beginning of a session's first prompt, in quotation marks; if it has none, what it has instead."""
    words = " ".join(session.prompt_text.split())
    if not words:
        return f"from {Path(session.origin).name}" if session.origin else "without a prompt"
    if len(words) > LONGEST_WORDS:
        words = words[: LONGEST_WORDS - 1]
        words = f"{words[: words.rfind(' ')] if ' ' in words else words}…"
    return f"“{words}”"


def session_counts(session: SavedSession) -> list[str]:
    """Which steps a session has, and how many branches, edits and bookmarks, in words."""
    num_tips = len(session.nodes) - len({node.parent for node in session.nodes} - {None})
    numbers = [node.step for node in session.nodes]
    words = [step_numbers(min(numbers), max(numbers)) if numbers else "no step yet"]
    words += [counted(num_tips, "branch", "branches")] if num_tips > 1 else []
    num_edits = sum(isinstance(change, EditMade) for node in session.nodes for change in node.changes)
    words += [counted(num_edits, "edit")] if num_edits else []
    words += [counted(len(session.bookmarks), "bookmark")] if session.bookmarks else []
    return words


class UnclosedSession(Struct, frozen=True, eq=False):
    """The session in a journal, when that was last written (seconds since 1970), and what is wrong with it, if
    anything."""

    path: Path
    session: SavedSession
    written: float
    problem: str = ""


class Recovery(QObject):
    """The session that is `offered`, and the file whose session is being restored; each None if there is none. Signal:
    `changed()`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.offered: UnclosedSession | None = None
        self.restoring: Path | None = None

    def offer(self, left: UnclosedSession | None) -> None:
        self.offered = left
        self.changed.emit()

    def restore(self, path: Path | None) -> None:
        """Note that the session of that file is being restored; None: not any more."""
        self.restoring = path
        self.changed.emit()
