"""The panel with the tokens of the selected sequence, and a search in them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit

from app.draw.format import thousands, visible
from app.kit.heatmap import edits_shown
from app.kit.provenance import holders_of
from app.kit.reader import BOOKMARKS, EACH_STEP, EDITS, SELECTION, STATUS, pictures
from app.kit.theme import font_fixed
from app.kit.view import View
from app.kit.widgets import column, connect_all
from app.kit.words import origin_words
from app.models import Models, Selected
from app.models.pictures import WALL
from app.models.places import num_source
from app.models.sequence_status import after_edit
from app.panels.tokens.canvas import Chips, SurprisalKey, TokenCanvas
from engine.spec.edit import Rows
from engine.wire.records import SequenceStep, has_chosen

ROOM_FOR_BOTH = 300  # pixels


class FindLine(QLineEdit):
    """A line edit that hides on Esc, before the window's Esc shortcut stops the engine."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            return
        super().keyPressEvent(event)


# What the words of the title strip mean
TIPS = {
    "surprisal": "The colour of a token is its surprisal: minus the logarithm of the probability that it had.",
    "hatched": "The higher the hatch of a token, the more heads have evicted its row.",
    "forked": "The sequence that this one was forked from, and after which step.",
    "source": "Tokens that the encoder read, and tokens of the decoder.",
}


class TokensPanel(View[Chips]):
    """Chips coloured by surprisal; a click selects a position, a drag several. Signal: `menu_wanted(point on the
    screen)`, for the selection."""

    name = "tokens"
    follows = (EACH_STEP, SELECTION, STATUS, EDITS, BOOKMARKS, pictures(WALL))

    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.strip = TokenCanvas()
        self._key = SurprisalKey()
        self.add_to_strip(self._key)
        self._is_forked = False
        self.find_line = FindLine()
        self.find_line.setFont(font_fixed())
        self.find_line.setPlaceholderText("Find in the tokens, Enter for the next")
        self.find_line.setAccessibleName("Find token text")
        self.find_line.hide()
        self.set_body(column(self.find_line, (self.strip, 1), spacing=6))
        connect_all(
            (self.strip.picked, self._on_picked),
            (self.strip.dragged, self._on_dragged_over),
            (self.strip.menu_wanted, self._on_menu_wanted),
        )
        self.find_line.returnPressed.connect(self.find_next)
        self.follow(models)

    def want(self, *, is_visible: bool) -> None:
        """Request who still holds each token, if the mode evicts rows."""
        status = self._models.status.now
        evicts = not status.cache.retention.keeps_all
        self._models.viewport.update(wants_holders=evicts and is_visible)

    def read(self) -> Chips | str:
        now = self._models.selection.now
        tokens = self._models.timeline.tokens(now.seq_id, now.step)
        if not tokens:
            if self._models.status.model is None:
                return "Tokens appear here once a model is loaded and a prompt is sent."
            return "Send the prompt: its tokens appear here, one chip each."
        part = self._models.timeline.part(now.seq_id, now.step)
        if part is not None and (found := after_edit(self._models, part, self._newest_of(now))) is not None:
            part = found[1]
        pending = pending_text(part) if part is not None else None
        awaits = self._models.timeline.awaits_surprisal(now.seq_id)
        area = None if now.area is None else (now.area.start, now.area.stop)
        if area == (0, len(tokens)):  # an area of all tokens selects heads, not tokens
            area = None
        holders, edited = holders_of(self._models), edits_shown(self._models)
        noted = tuple(self._models.bookmarks.on_tokens(now.seq_id).values())
        model = self._models.status.model
        special = frozenset(model.special_ids) if model is not None else frozenset()
        source = num_source(self._models)
        return Chips(tokens, pending, now.position, holders, awaits, area, edited, noted, special, source)

    def _newest_of(self, now: Selected) -> int:
        """The step that computed the sequence last; -1 if there is none."""
        record = self._models.timeline.newest_of(now.seq_id, now.step)
        return record.step if record is not None else -1

    def show_state(self, state: Chips) -> None:
        words = brief = "surprisal"
        if state.holders is not None:
            words = brief = "hatched: evicted by now" if state.holders.is_now else "hatched: evicted"
        elif state.awaits_surprisal:
            words, brief = "surprisal: comes when the engine rests", "surprisal: comes later"
        origin = origin_words(self._models, self._models.selection.now.seq_id)
        self._is_forked = bool(origin)
        if origin:
            words, brief = f"{words} · forked from {origin}", "forked · " + origin.rpartition(" · ")[2]
        if state.num_source:
            own = len(state.tokens) - state.num_source
            words = f"{thousands(state.num_source)} source, {thousands(own)} decoder · {words}"
        tip = [TIPS["hatched" if state.holders is not None else "surprisal"]]
        tip += [TIPS["forked"]] if origin else []
        tip += [TIPS["source"]] if state.num_source else []
        self.set_detail(words, brief, "\n".join(tip))
        self.strip.show_chips(state)
        self._fit_key()

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.strip.show_chips(Chips())
        self._fit_key()

    def _fit_key(self) -> None:
        """Hide the colours' legend where it and the text about the hatch do not both fit."""
        has_room = self.width() >= ROOM_FOR_BOTH or (
            self.state is not None and self.state.holders is None and not self._is_forked
        )
        self._key.setVisible(self.state is not None and has_room)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_key()

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_picked(self, position: int | None) -> None:
        self._models.selection.update(position=position)

    def _on_dragged_over(self, start: int, stop: int) -> None:
        self._models.selection.update(position=start, area=Rows(start, stop))

    def _on_menu_wanted(self, position: int | None, place: QPoint) -> None:
        """Open the menu for the token under the mouse, or for the selected area if that contains it."""
        area = self._models.selection.now.area
        if position is not None and not (area is not None and area.start <= position < area.stop):
            self._on_dragged_over(position, position + 1)
        self.menu_wanted.emit(place)

    def open_find(self) -> None:
        """Show the search line and put the cursor in it."""
        self.find_line.show()
        self.find_line.setFocus()
        self.find_line.selectAll()

    def find_next(self) -> None:
        """Select the next token, after the selected one, at which an occurrence of the text begins; after the last, the
        first."""
        now = self._models.selection.now
        tokens = self._models.timeline.tokens(now.seq_id, now.step)
        if not self.find_line.text() or not tokens:
            return
        # Each token's text is lowered by itself: some letters change their length, and indices must still match tokens.
        parts = [token.text.lower() for token in tokens]
        starts = list(accumulate((len(part) for part in parts), initial=0))
        text, wanted = "".join(parts), self.find_line.text().lower()
        here = now.position
        place = text.find(wanted, starts[here + 1] if here is not None and here < len(parts) else 0)
        place = place if place >= 0 else text.find(wanted)
        if place < 0:
            self.message.emit(f"“{visible(wanted[:80])}” is not in the tokens")
            return
        self._models.selection.update(position=tokens[bisect_right(starts, place) - 1].position)


def pending_text(part: SequenceStep) -> str | None:
    """The text of the token that was chosen to follow; None if there is none."""
    return part.sampled_text if has_chosen(part) else None
