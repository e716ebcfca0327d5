"""Where each widget of a panel lies, and how it is set: what gives way and what scrolls, what takes the keyboard, which
cursor it has, the columns of tables. Told beside what is shown (`tests/app/shown.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QScrollBar, QTableView, QTreeView, QWidget

from tests.app.made import STYLED, fresh, word
from tests.app.shown import kind_of

NO_LIMIT = 16_777_215
SET = (
    "enabled", "focusPolicy", "cursor", "contextMenuPolicy", "mouseTracking", "acceptDrops", "wordWrap", "alignment",
    "textInteractionFlags", "textFormat", "checkable", "autoRaise", "popupMode", "toolButtonStyle", "autoRepeat",
    "readOnly", "maxLength", "clearButtonEnabled", "placeholderText", "lineWrapMode", "tabChangesFocus",
    "undoRedoEnabled", "maximumBlockCount", "singleStep", "pageStep", "decimals", "keyboardTracking",
    "specialValueText", "prefix", "suffix", "wrapping", "buttonSymbols", "maxVisibleItems", "insertPolicy",
    "selectionMode", "selectionBehavior", "editTriggers", "alternatingRowColors", "textElideMode",
    "horizontalScrollMode", "verticalScrollMode", "horizontalScrollBarPolicy", "verticalScrollBarPolicy", "showGrid",
    "sortingEnabled", "rootIsDecorated", "uniformRowHeights", "headerHidden", "indentation", "frameShape",
    "widgetResizable", "childrenCollapsible", "orientation", "handleWidth", "tickPosition", "invertedAppearance",
)  # fmt: skip


def placed(root: QWidget) -> Iterator[str]:
    """A line for each widget that is seen: its words' beginning, what is set otherwise than Qt would, and its place in
    the panel; its least and largest size, where they are limited, behind that."""
    for widget in root.findChildren(QWidget):
        if not widget.isVisible() or widget.width() <= 0 or isinstance(widget, QScrollBar):
            continue
        at = widget.mapTo(root, QPoint(0, 0))
        limits = [widget.minimumWidth(), widget.minimumHeight()]
        limits += [0 if n == NO_LIMIT else n for n in (widget.maximumWidth(), widget.maximumHeight())]
        numbers = [at.x(), at.y(), widget.width(), widget.height(), *(limits if any(limits) else ())]
        yield f"{' '.join([kind_of(widget), *_set(widget)])} @{','.join(map(str, numbers))}"
        if isinstance(widget, QTableView | QTreeView):
            yield from (f"  {line}" for line in _columns(widget))


def _set(widget: QWidget) -> Iterator[str]:
    usual = fresh(kind_of(widget))
    for name in SET:
        if name == "mouseTracking" and isinstance(widget, STYLED):
            continue
        now = word(widget.property(name))
        if now != word(usual.property(name)):
            yield f"{name} {now!r}" if " " in now else f"{name} {now}"


def _columns(view: QAbstractItemView) -> Iterator[str]:
    model = view.model()
    if model is None:
        return
    header = view.horizontalHeader() if isinstance(view, QTableView) else view.header()  # type: ignore[attr-defined]
    columns = range(model.columnCount())
    modes = " ".join(_mode(header, n) for n in columns)
    yield f"columns {modes} @{','.join(str(header.sectionSize(n)) for n in columns)}"
    if isinstance(view, QTableView):
        rows = range(min(model.rowCount(), 40))
        yield f"rows @{','.join(str(view.rowHeight(n)) for n in rows)}"
        for row in rows:
            for column in columns:
                span = view.rowSpan(row, column), view.columnSpan(row, column)
                if span != (1, 1):
                    yield f"cell {row}, {column} spans {span[0]} × {span[1]}"


def _mode(header: QHeaderView, column: int) -> str:
    return "hidden" if header.isSectionHidden(column) else header.sectionResizeMode(column).name
