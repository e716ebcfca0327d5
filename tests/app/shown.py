"""What a widget says, as lines of text: words, what is enabled, chosen or marked, tool tips, cells of tables, what a
screen reader is told, the parts of charts, and the state that a panel has read. Places and letters are left out, so
that another machine's fonts do not matter; of what is painted by hand only `drawn` tells, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from msgspec import Struct
from PySide6.QtCore import QAbstractItemModel, QAbstractListModel, QModelIndex, Qt
from PySide6.QtGui import QBrush, QColor
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QDoubleSpinBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QSpinBox,
    QTreeWidget,
    QWidget,
)

from app.kit.bars import BarRows
from app.kit.graphics import PlotCanvas
from app.kit.reader import Reader
from app.kit.view import TitleBar, View
from app.kit.widgets import DotLabel, ElidedLabel, Segments
from app.models import Token
from engine.wire.records import StepRecord
from tests.app.painted import drawn, paints_itself, role_of
from tests.approve import in_words

_TAG = re.compile(r"<[^>]*>")
ROWS = 24  # of a table
EVERYWHERE = "Copy or save this picture"  # a button that every panel has


def kind_of(widget: QWidget) -> str:
    """The kind of Qt that it is: what our own classes are called is not seen."""
    return next(kind.__name__ for kind in type(widget).__mro__ if kind.__module__.startswith("PySide6"))


def plain(text: str) -> str:
    """A text without its marks of HTML, in one line."""
    return unescape(_TAG.sub("", text)).replace("\n", " / ")


def value_words(value: Any) -> str:
    """A value of the window in words: what came from the engine as it is in short."""
    return in_words(value, _short)


def _short(value: Any) -> str | None:
    match value:
        case StepRecord():
            return f"record {value.step}"
        case Token():
            return f"{value.position} {value.text!r} {value.surprisal} of {value.step} {value.forced} {value.is_prompt}"
        case Struct(width=_, height=_):
            return type(value).__name__  # places in pixels
        case Struct() if type(value).__module__.startswith(("engine.wire", "engine.geometry")):
            of = getattr(value, "request", None) or getattr(value, "step", None)
            if of is None and type(value).__module__ == "engine.wire.commands":
                of = getattr(value, "steps", None) or getattr(value, "seq_id", None)
            words = in_words(getattr(value, "against", None), _short) if of is None else in_words(of)
            return type(value).__name__ if words == "None" else f"{type(value).__name__} {words}"
    return None


def shown(root: QWidget) -> list[str]:
    """What a person sees of a widget and of everything in it, and what a screen reader is told."""
    lines = [] if root.isVisible() else ["hidden"]
    tips: set[str] = set()
    for reader in (root, *root.findChildren(QWidget)):
        if isinstance(reader, Reader):
            reader.describe_now()  # as it does when the pointer comes there
    for widget in (root, *root.findChildren(QWidget)):
        if widget.isVisible() and widget.width() > 0 and not isinstance(widget, QScrollBar | QHeaderView | TitleBar):
            for line in _of(widget):
                words, mark, tip = line.partition(" tip ")
                if words.strip() or tip not in tips:  # a tool tip is told once
                    lines.append(words if tip in tips else line)
                tips |= {tip} if mark else set()
    return lines


def _of(widget: QWidget) -> Iterator[str]:
    name, told = widget.accessibleName(), widget.accessibleDescription()
    tip, words = plain(widget.toolTip()), _words(widget)
    off = "" if widget.isEnabled() else " (disabled)"
    is_part = isinstance(widget, QLineEdit) and isinstance(widget.parentWidget(), QAbstractSpinBox)
    is_told = name in words or name == getattr(widget, "whole", "") if words else False
    is_tip_told = tip in ("", words) or (told != "" and plain(told).partition(": ")[2] in tip)
    extra = (f"name {name!r}" if words and name and not is_told else "", f"tip {tip!r}" if not is_tip_told else "")
    is_plain = not (words or tip or name) or (words is None and isinstance(widget, QAbstractItemView))
    if not (is_part or is_plain or name == EVERYWHERE):
        kind = "" if isinstance(widget, QLabel) else f"{kind_of(widget)} "
        yield " ".join(filter(None, (f"{kind}{words or name!r}{off}", *extra)))
    if isinstance(widget, QComboBox):
        yield f"  of {', '.join(widget.itemText(number) for number in range(widget.count()))}"
    yield from (f"  says {line!r}" for line in told.splitlines())
    if isinstance(widget, Reader) and isinstance(widget.state, Struct):
        lists = [each for each in widget.findChildren(QAbstractItemView) if not isinstance(each, QHeaderView)]
        is_listed = any(each.isVisible() for each in (*lists, *widget.findChildren(BarRows)))
        yield from state_lines(widget.state, has_rows=not is_listed)
    if isinstance(widget, QAbstractItemView) and widget.model() is not None:
        yield from _table(widget.model(), isinstance(widget, QTreeWidget))
        chosen = sorted({index.row() for index in widget.selectedIndexes()})
        if chosen:
            yield f"  chosen rows {', '.join(map(str, chosen))}"
    if isinstance(widget, BarRows):
        yield from state_lines(widget.table)
    if isinstance(widget, PlotCanvas) and widget.chart is not None:
        yield from state_lines(widget.chart)
    is_area = isinstance(widget, QAbstractScrollArea) and not isinstance(widget, QAbstractItemView)
    surface = widget.viewport() if isinstance(widget, QAbstractScrollArea) and is_area else widget
    if paints_itself(widget) and not isinstance(widget, Segments | View) and (line := drawn(surface)):
        yield f"  {line}"


def state_lines(state: Struct, *, has_rows: bool = True) -> Iterator[str]:
    """The fields of a state, one in a line; of a sequence of values, each, if no table or bars show them."""
    for name in state.__struct_fields__:
        value = getattr(state, name)
        if isinstance(value, tuple | list) and any(isinstance(each, Struct) for each in value):
            yield f"  · {name} {len(value)}"
            yield from (f"    {value_words(each)}" for each in (value[:ROWS] if has_rows else ()))
        elif not (isinstance(value, bool | str | tuple | None) and not value):
            yield f"  · {name} {value_words(value)}"


def _words(widget: QWidget) -> str | None:
    """The text of a widget that has one; with its state."""
    match widget:
        case DotLabel():
            return f"{widget.text} [{widget.kind}] {widget.whole if widget.whole != widget.text else ''}".rstrip()
        case ElidedLabel():
            return widget.text()
        case QLabel():
            role = widget.property("textRole")
            return f"{widget.text()}{f' [{role}]' if role else ''}" if widget.text() else ""
        case QAbstractButton():
            return f"{widget.text() or widget.accessibleName()}{' (on)' if widget.isChecked() else ''}"
        case QComboBox():
            return f"{widget.currentText()}, one of {widget.count()}"
        case QLineEdit():
            text = f"{widget.text()}{' …' + widget.placeholderText() if widget.placeholderText() else ''}"
            return f"{text}{' (read only)' if widget.isReadOnly() else ''}"
        case QPlainTextEdit():
            text = widget.toPlainText()
            text = text if len(text) < 2000 else f"{text[:60]}… {len(text)} characters"
            return f"{text}{' (read only)' if widget.isReadOnly() else ''}"
        case QSpinBox() | QDoubleSpinBox():
            return f"{widget.text()} in {widget.minimum():.12g} … {widget.maximum():.12g}"
        case QAbstractSlider():
            return f"{widget.value()} in {widget.minimum()} … {widget.maximum()}"
    return None


def _table(
    model: QAbstractItemModel, is_tree: bool, parent: QModelIndex | None = None, depth: int = 1
) -> Iterator[str]:
    top = parent or QModelIndex()
    columns = range(1 if isinstance(model, QAbstractListModel) else model.columnCount(top))
    if parent is None:
        heads = [str(model.headerData(n, Qt.Orientation.Horizontal) or "") for n in columns]
        if any(heads):
            yield f"  heads {' | '.join(heads)}"
    for number in range(min(model.rowCount(top), ROWS)):
        cells = [model.index(number, column, top) for column in columns]
        yield "  " * depth + " | ".join(map(_cell, cells))
        tips = [plain(str(cell.data(Qt.ItemDataRole.ToolTipRole) or "")) for cell in cells]
        for tip in dict.fromkeys(tip for tip, cell in zip(tips, cells, strict=True) if tip and tip != cell.data()):
            yield f"{'  ' * depth}  tip {tip!r}"
        if is_tree:
            yield from _table(model, True, cells[0], depth + 1)


def _cell(index: QModelIndex) -> str:
    text = str(index.data() if index.data() is not None else "")
    color = index.data(Qt.ItemDataRole.ForegroundRole)
    if isinstance(color, QBrush):
        color = color.color()
    role = f" [{role_of(color.name())}]" if isinstance(color, QColor) else ""
    off = "" if index.flags() & Qt.ItemFlag.ItemIsEnabled else " (disabled)"
    on = {None: "", 0: " (off)", 2: " (on)"}.get(getattr(index.data(Qt.ItemDataRole.CheckStateRole), "value", None), "")
    return f"{text}{role}{on}{off}"
