"""A conversation as rendered by its template: plain text with special tokens and cached tokens highlighted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from PySide6.QtGui import QTextCharFormat, QTextCursor, QTextOption
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QTextEdit

from app.draw.format import visible
from app.kit.theme import Themed, current_theme, font_fixed

MAX_SHOWN = 2_000  # tokens: if there are more, only the beginning and the end are shown
LINE_END = "⏎"


class RenderedPiece(Struct, frozen=True):
    """The place of a token in the text shown; `index` is its index among the tokens."""

    start: int
    stop: int
    index: int
    is_special: bool


def pieces_of(
    token_ids: Sequence[int], texts: Sequence[str], special: Collection[int]
) -> tuple[str, tuple[RenderedPiece, ...]]:
    """The text to show for tokens, with invisible characters escaped, and the place of each token in it. A line end is
    shown as a sign and breaks the line."""
    shown, made, length = [], [], 0
    count = len(token_ids)
    head = range(count) if count <= MAX_SHOWN else [*range(MAX_SHOWN // 2), *range(count - MAX_SHOWN // 2, count)]
    last = -1
    for index in head:
        if index != last + 1:
            gap = f" … {index - last - 1:,} tokens … "
            shown.append(gap)
            length += len(gap)
        text = "".join(LINE_END + "\n" if part == "\n" else visible(part) for part in _lines(texts[index]))
        shown.append(text)
        made.append(RenderedPiece(length, length + len(text), index, token_ids[index] in special))
        length += len(text)
        last = index
    return "".join(shown), tuple(made)


def _lines(text: str) -> list[str]:
    """The text split at line ends, which are parts of their own."""
    parts: list[str] = []
    for number, part in enumerate(text.split("\n")):
        parts += ["\n"] * bool(number) + [part] * bool(part)
    return parts


class RenderedText(Themed, QPlainTextEdit):
    """A read-only text. Special tokens are highlighted, tokens whose rows are reused are dimmed, and the first token
    that differs from the cache is underlined."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFont(font_fixed(11.5))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)  # spaces are dots: between them nothing is a word
        self.setAccessibleName("The conversation as the template renders it")
        self._pieces: tuple[RenderedPiece, ...] = ()
        self._num_kept, self._differs = 0, -1

    def show_tokens(
        self, token_ids: Sequence[int], texts: Sequence[str], special: Collection[int], num_kept: int, differs: int
    ) -> None:
        """Show tokens: the rows of the first `num_kept` are reused, and token `differs` (-1: none) is not the cached
        one."""
        text, self._pieces = pieces_of(token_ids, texts, special)
        self._num_kept, self._differs = num_kept, differs
        if text != self.toPlainText():
            self.setPlainText(text)
            self.moveCursor(QTextCursor.MoveOperation.End)
        self._mark()

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The special tokens as shown, in order."""
        text = self.toPlainText()
        return tuple(text[piece.start : piece.stop] for piece in self._pieces if piece.is_special)

    def take_theme(self) -> None:
        self._mark()

    def _mark(self) -> None:
        found = []
        kept = [piece for piece in self._pieces if piece.index < self._num_kept]
        if kept:
            found.append(self._selection(kept[0].start, kept[-1].stop, "muted"))
        for piece in self._pieces:
            if piece.is_special:
                found.append(self._selection(piece.start, piece.stop, "accent", is_chip=True))
            if piece.index == self._differs:
                found.append(self._selection(piece.start, piece.stop, "warning", is_underlined=True))
        self.setExtraSelections(found)

    def _selection(
        self, start: int, stop: int, role: str, *, is_chip: bool = False, is_underlined: bool = False
    ) -> QTextEdit.ExtraSelection:
        made = QTextEdit.ExtraSelection()
        style, cursor = QTextCharFormat(), QTextCursor(self.document())
        style.setForeground(current_theme().color(role))
        if is_chip:
            style.setBackground(current_theme().color("hairline"))
        if is_underlined:
            style.setUnderlineStyle(QTextCharFormat.UnderlineStyle.SingleUnderline)
            style.setUnderlineColor(current_theme().color(role))
        cursor.setPosition(start)
        cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
        made.format, made.cursor = style, cursor
        return made
