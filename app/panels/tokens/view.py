"""The tokens of the selected sequence, and finding text in them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget

from app.draw.format import visible
from app.kit.panel import Panel
from app.kit.provenance import holders_of
from app.kit.theme import Theme, font_fixed
from app.models import Models
from app.models.slices import WALL
from app.panels.tokens.canvas import TokenStrip
from app.panels.tokens.surprisal_key import SurprisalKey

ROOM_FOR_BOTH = 300  # pixels


class FindLine(QLineEdit):
    """Closes itself on Esc, before the window takes Esc for stopping."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            return
        super().keyPressEvent(event)


class TokensPanel(Panel):
    """Chips coloured by surprisal; a click selects the position everywhere."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Tokens", parent)
        self.set_title("Tokens")
        self._models = models
        self.strip = TokenStrip(theme)
        self._key = SurprisalKey(theme)
        self.add_to_strip(self._key)
        self._find = FindLine()
        self._find.setFont(font_fixed())
        self._find.setPlaceholderText("Find in the tokens, Enter for the next")
        self._find.setAccessibleName("Find token text")
        self._find.hide()
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._find)
        layout.addWidget(self.strip, 1)
        self.set_body(body)
        self.strip.picked.connect(self._on_picked)
        self._find.returnPressed.connect(self.find_next)
        models.timeline.appended.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        models.selection.changed.connect(self._refresh)
        models.status.changed.connect(self._refresh)
        models.slices.changed.connect(self._on_slice)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self.strip.set_theme(theme)
        self._key.set_theme(theme)

    def open_find(self) -> None:
        """Show the line for searching and put the cursor in it."""
        self._find.show()
        self._find.setFocus()
        self._find.selectAll()

    def find_next(self) -> None:
        """Select the next token, after the selected one, that lies in an occurrence of the text."""
        selected = self._models.selection.now
        tokens = self._models.timeline.tokens(selected.seq_id, selected.step)
        if not self._find.text() or not tokens:
            return
        # Lowered part by part: some letters change their length, and a place must still find its token.
        parts = [token.text.lower() for token in tokens]
        starts = list(accumulate((len(part) for part in parts), initial=0))
        text, wanted = "".join(parts), self._find.text().lower()
        here = selected.position
        place = text.find(wanted, starts[here + 1] if here is not None and here < len(parts) else 0)
        place = place if place >= 0 else text.find(wanted)
        if place < 0:
            self.told.emit(f"“{visible(wanted[:80])}” is not in the tokens")
            return
        self._models.selection.update(position=tokens[bisect_right(starts, place) - 1].position)

    def _on_slice(self, kind: str) -> None:
        if kind == WALL:
            self._show_holders()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_key()

    def _fit_key(self) -> None:
        """The key of the colours gives way to the word for what is hatched where both have no room."""
        is_hatched = holders_of(self._models) is not None
        has_room = not is_hatched or self.width() >= ROOM_FOR_BOTH
        selected = self._models.selection.now
        self._key.setVisible(has_room and self._models.timeline.num_tokens(selected.seq_id, selected.step) > 0)

    def _show_holders(self) -> None:
        """Which tokens are held by some heads only, or by none."""
        holders = holders_of(self._models)
        self.strip.set_holders(holders)
        words = "surprisal"
        if holders is not None:
            words = "hatched: gone by now" if holders.is_now else "hatched: dropped"
        self.set_detail(words)
        self._fit_key()

    def _want(self) -> None:
        """Who holds what is asked for where a mode drops rows."""
        status = self._models.status.now
        drops = status is not None and not status.cache.retention.keeps_all
        self._models.viewport.update(wants_holders=drops and self.isVisible())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._want()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._want()

    def _on_picked(self, position: int | None) -> None:
        self._models.selection.update(position=position)

    def _refresh(self) -> None:
        self._want()
        selected = self._models.selection.now
        tokens = self._models.timeline.tokens(selected.seq_id, selected.step)
        self._fit_key()
        if not tokens:
            self.set_empty(self._invitation())
            self.set_detail("")
            self.strip.set_tokens((), None)
            return
        part = self._models.timeline.part(selected.seq_id, selected.step)
        pending = part.sampled_text if part is not None and part.sampled is not None else None
        self.set_empty(None)
        self.strip.set_tokens(tokens, pending)
        self._show_holders()
        self.strip.set_selected(selected.position)

    def _invitation(self) -> str:
        status = self._models.status.now
        if status is None or status.model is None:
            return "Tokens appear here once a model is loaded and a prompt is sent."
        return "Send the prompt: its tokens appear here, one chip each."
