"""The bar that offers to recover a session that was not closed; it stays until the user decides, and blocks nothing."""

from __future__ import annotations

from datetime import datetime

from PySide6.QtCore import Signal

from app.draw.format import counted
from app.kit.buttons import push_button
from app.kit.labels import plain_tip, prose
from app.kit.reader import SignalSource
from app.models import Models, UnclosedSession
from app.models.kept_sessions import first_words, session_counts
from app.window.notice_bar import LONGEST, NoticeBar
from engine.saved.session import SavedSession


class RecoveryBar(NoticeBar[UnclosedSession]):
    """Visible while a session is offered. Signals: `accepted()`, `dismissed()`."""

    follows = (SignalSource("recovery"),)
    role, icon = "accent", "alert"

    accepted = Signal()
    dismissed = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._accept = push_button("Restore", self.accepted)
        self._dismiss = push_button("Not now", self.dismissed, "It stays under File · Recent sessions")
        self.build(self._accept, self._dismiss)
        self.follow(models)

    def read(self) -> UnclosedSession | str:
        return self._models.recovery.offered or "every window was closed"

    def show_state(self, state: UnclosedSession) -> None:
        words = offer_words(state)
        self.words.setText(words, "A session was not closed")
        self.setAccessibleName(words)
        self.words.setToolTip(plain_tip(_tip(state)))
        is_draft = not state.session.nodes
        self._accept.setText("Take it up" if is_draft else "Restore")
        self._accept.setToolTip(what_is_done(state.session))
        super().show_state(state)


def offer_words(left: UnclosedSession) -> str:
    """What is offered, in one line."""
    session = left.session
    when = f"{datetime.fromtimestamp(left.written):%d %b, %H:%M}"
    if not session.nodes:
        what = "a prompt was taken and not read" if session.pending else "a prompt was being written"
        what = counted(len(session.stops), "stop") + " for runs" if has_stops_alone(session) else what
        return f"The window of {when} ended without being closed: {what}"
    parts = [f"The session {prose(first_words(session))} of {when} ended without being closed"]
    parts += [prose(session.model.name)] if session.model is not None else []
    parts.append(", ".join(session_counts(session)))
    return " · ".join(parts)


def what_is_done(session: SavedSession) -> str:
    """What accepting the offer does, in one line."""
    if session.nodes:
        return "Do its steps once more, and compare them with what they were"
    return "Set its breakpoints again" if has_stops_alone(session) else "Put the prompt into the editor"


def has_stops_alone(session: SavedSession) -> bool:
    """Whether the session contains nothing but stops."""
    return bool(session.stops) and not (session.pending or session.draft or session.draft_chat)


def _tip(left: UnclosedSession) -> str:
    text = "".join(left.session.texts.get(token_id, "") for token_id in _newest_ids(left.session))
    parts = [str(left.path), left.problem, left.session.draft[:LONGEST], text[-LONGEST:]]
    return "\n".join(prose(words) for words in parts if words)


def _newest_ids(session: SavedSession) -> tuple[int, ...]:
    """The tokens that the first sequence of each step on the live path sampled, oldest first."""
    parts = [node.work.parts[0] for node in session.path if node.work is not None]
    return tuple(part.sampled for part in parts if part.sampled is not None)
