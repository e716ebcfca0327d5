"""What the cache takes, beside its selector; of a lossy mode, as a share of what exact rows would take."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.format import byte_size, counted, percent, thousands
from app.kit.labels import Opaque, plain_tip, steady
from app.kit.reader import SELECTION, STATUS, STEPS, Reader
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_text
from app.models import Models


class SizeShown(Struct, frozen=True):
    """The texts, from long to short, of which the first that fits is shown; and the sum in full."""

    texts: tuple[str, ...]
    tip: str


class CacheSize(Reader[SizeShown], Opaque, QWidget):
    """`468.6 KiB · 26.6 % of exact`, of the step that is shown. Where space is scarce it is shortened, then left out:
    it takes none from the selectors' names. `fit` sets the space."""

    follows = (STEPS, SELECTION, STATUS)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._room = self._free = 0
        self._text = TextPainter(font_text(12.5))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self.set_background("bar")
        self.follow(models)

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    @property
    def text(self) -> str:
        """The text as it is shown: the longest that fits; empty if none does."""
        return self._fitting(self._free)

    def _fitting(self, free: float) -> str:
        texts = self.state.texts if self.state is not None else ()
        return next((text for text in texts if self._text.width(text) <= free), "")

    def fit(self, free: int) -> None:
        """Use at most `free` pixels."""
        self._free = free
        text = self.text
        needed = round(self._text.width(text)) + 1 if text else 0
        room = min(steady(self._room, needed), free) if needed else 0
        if room != self._room:
            self._room = room
            self.updateGeometry()
        self.update()

    def read(self) -> SizeShown:
        models = self._models
        held = models.timeline.num_bytes(models.selection.now.step)
        if held is None or not held.stored or models.status.why_no_rows:
            return SizeShown((), "")
        size, sequences = byte_size(held.stored), "K and V of all sequences together take"
        if not held.exact:
            return SizeShown((size,), f"{sequences} {counted(held.stored, 'byte')}")
        share = f"{percent(held.stored / held.exact)} of exact"
        tip = f"{sequences} {counted(held.stored, 'byte')}; with every row exact they would take"
        return SizeShown((f"{size} · {share}", share), f"{tip} {thousands(held.exact)}: {share}")

    def show_state(self, state: SizeShown) -> None:
        self.setToolTip(plain_tip(state.tip))
        self.setAccessibleName(f"Size of the cache: {state.texts[0]}" if state.texts else "Size of the cache")
        self.fit(self._free)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setPen(current_theme().color("muted"))
        self._text.left(painter, 0, self.height() / 2, self.text)
