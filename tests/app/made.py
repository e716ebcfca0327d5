"""How a window is made, as lines of text: of each widget what differs from a fresh one of its kind of Qt (the cursor,
who takes the focus, how a text is aligned, whether a table can be sorted …), how it shares room with its neighbours,
how the columns of its tables give way, and in which order Tab walks. Sizes in pixels are left out: fonts change
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, Flag
from functools import lru_cache
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QCursor, QFont, QIcon
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QBoxLayout,
    QComboBox,
    QDialog,
    QFormLayout,
    QHeaderView,
    QLabel,
    QLayout,
    QLineEdit,
    QMenu,
    QScrollBar,
    QSizePolicy,
    QTabBar,
    QTableView,
    QWidget,
)

from tests.app.shown import kind_of

# What `shown` tells, what hangs on fonts, on the style or on where the widget stands, and what hangs on another.
_NOT_TOLD = """
    acceptableInput accessibleDescription accessibleName animated baseSize buddy checked childrenRect
    childrenRegion cleanText count currentIndex currentText cursorPosition defaultSectionSize displayText
    enabled focus frameGeometry frameRect frameShadow frameSize frameWidth fullScreen geometry hasSelectedText html
    height highSectionSize horizontalOffset iconSize iconText inputMask inputMethodHints isActiveWindow
    isRightToLeft layoutDirection length lineWidth locale maximized maximum maximumHeight maximumSize
    maximumWidth menuAction midLineWidth minimized minimum minimumHeight minimumSectionSize minimumSize
    minimumSizeHint minimumWidth modal modified normalGeometry objectName pageStep palette placeholderText
    plainText pos rect redoAvailable sectionSizeHint selectedText selectionStart shortcut size sizeHint
    sizeIncrement sliderPosition stretchSectionCount tabStopWidth text title toolTip undoAvailable value visible
    width windowFilePath windowIcon windowIconText windowModality windowModified windowOpacity windowTitle x y
"""
NOT_TOLD = frozenset(_NOT_TOLD.split())
# A style that shows what is under the mouse makes these follow it.
STYLED = (QAbstractButton, QComboBox, QAbstractSpinBox, QAbstractItemView, QLineEdit, QAbstractSlider, QTabBar)


def made(root: QWidget) -> list[str]:
    """Lines about every widget, hidden or not, with equal siblings in one line; then the tab order."""
    lines: dict[str, int] = {}
    for widget in (root, *root.findChildren(QWidget)):
        if not isinstance(widget, QScrollBar) and not _is_qts_own(widget):
            for line in _of(widget):
                lines[line] = lines.get(line, 0) + 1
    return [f"{line}{f' × {count}' if count > 1 else ''}" for line, count in lines.items()] + list(tab_walk(root))


def tab_walk(root: QWidget) -> Iterator[str]:
    """Names of the widgets in tab order."""
    names, widget = [], root.nextInFocusChain()
    while widget is not None and widget is not root:
        if root.isAncestorOf(widget) and widget.focusPolicy() & Qt.FocusPolicy.TabFocus and not _is_qts_own(widget):
            names.append(name_of(widget))
        widget = widget.nextInFocusChain()
    if names:
        yield f"Tab walks {' → '.join(names)}"


def name_of(widget: QWidget) -> str:
    text = widget.text() if isinstance(widget, QAbstractButton | QLabel) else ""
    return f"{kind_of(widget)} {widget.accessibleName() or text or widget.objectName()!r}"


def _is_qts_own(widget: QWidget) -> bool:
    """Whether Qt itself put the widget into another: the line of a spin box, the list of a combo box."""
    if widget.objectName().startswith("qt_") and not isinstance(widget, QMenu):
        return True
    while widget.metaObject().className() != "QComboBoxPrivateContainer":
        around = widget.parentWidget()
        if around is None:
            return False
        widget = around
    return True


def _of(widget: QWidget) -> Iterator[str]:
    found = [*_properties(widget), *_of_table(widget)]
    layout = widget.layout()
    if found:
        yield f"{name_of(widget)}: {', '.join(found)}"
    if layout is not None:
        yield from (f"  {line}" for line in _of_layout(layout))
    if isinstance(widget, QMenu):
        yield f"  menu {widget.title()!r}: {' | '.join(map(_entry, widget.actions()))}"
    elif widget.actions():
        yield f"  offers {', '.join(action.text() for action in widget.actions() if action.text())}"


def _entry(action: QAction) -> str:
    marks = "" if action.isEnabled() else " (disabled)"
    return "—" if action.isSeparator() else f"{action.text()}{marks}{' ▸' if action.menu() is not None else ''}"


def of_action(action: QAction) -> str:
    """What of an action no menu tells: where its key is heard, whether a held key repeats it, where a desktop puts
    it."""
    return ", ".join(_differing(action, QAction()))


def _properties(widget: QWidget) -> Iterator[str]:
    yield from _differing(widget, fresh(kind_of(widget)))
    for name in widget.dynamicPropertyNames():
        key = bytes(name.data()).decode()
        if not key.startswith("_"):
            yield f"{key} {word(widget.property(key))}"
    for flag in (Qt.WidgetAttribute.WA_DeleteOnClose, Qt.WidgetAttribute.WA_TransparentForMouseEvents,
                 Qt.WidgetAttribute.WA_OpaquePaintEvent):  # fmt: skip
        if widget.testAttribute(flag) != fresh(kind_of(widget)).testAttribute(flag):
            yield flag.name
    if widget.sizePolicy().retainSizeWhenHidden():
        yield "keeps its room"
    if isinstance(widget, QDialog):
        yield f"{'modal' if widget.isModal() else 'not modal'}"


def _differing(one: Any, usual: Any) -> Iterator[str]:
    meta = usual.metaObject()
    for index in range(meta.propertyCount()):
        name = meta.property(index).name()
        if name in NOT_TOLD or (name == "mouseTracking" and isinstance(one, STYLED)):
            continue
        value, before = word(one.property(name)), word(usual.property(name))
        if value != before and value:
            yield name if value == "True" else f"{name} {value}"


@lru_cache
def fresh(kind: str) -> QWidget:
    """A new widget of a class of Qt."""
    import PySide6.QtWidgets as widgets

    made_of: Callable[[], QWidget] = getattr(widgets, kind)
    try:
        return made_of() if kind != "QHeaderView" else QHeaderView(Qt.Orientation.Horizontal)
    except (NotImplementedError, TypeError):
        return QWidget()  # a kind that is only there to be derived from


def word(value: Any) -> str:
    """A value in words, so that two can be compared."""
    match value:
        case QCursor():
            return value.shape().name
        case QFont():
            return f"{value.family()} {value.pointSizeF():.1f} {value.weight()}{' italic' if value.italic() else ''}"
        case QSizePolicy():
            return f"{value.horizontalPolicy().name}/{value.verticalPolicy().name}"
        case QIcon():
            return "" if value.isNull() else "an icon"
        case QSize():
            return f"{value.width()} × {value.height()}"
        case Flag() | Enum():
            return str(value.name)
        case bool() | int() | float() | str():
            return str(value)
    return ""


def _of_layout(layout: QLayout) -> Iterator[str]:
    """What stands side by side or below one another, who takes the room, and who stands where in it."""
    parts = []
    for index in range(layout.count()):
        item = layout.itemAt(index)
        assert item is not None
        widget, inner = item.widget(), item.layout()
        name = name_of(widget) if widget is not None else f"[{index}]" if inner is not None else "free"
        share = layout.stretch(index) if isinstance(layout, QBoxLayout) else 0
        side = item.alignment().name if item.alignment() else ""
        parts.append(" ".join(filter(None, (name, f"takes {share}" if share else "", side))))
        if inner is not None:
            yield from (f"{line}" for line in _of_layout(inner))
    kind = layout.direction().name if isinstance(layout, QBoxLayout) else type(layout).__mro__[0].__name__
    if isinstance(layout, QFormLayout):
        kind = f"form {layout.fieldGrowthPolicy().name} {layout.labelAlignment().name}"
    if len(parts) > 1 or (parts and " " in parts[0].rpartition("'")[2]):
        yield f"{kind}: {' | '.join(parts)}"


def _of_table(widget: QWidget) -> Iterator[str]:
    if isinstance(widget, QHeaderView):
        for index in range(widget.count()):
            hidden = " hidden" if widget.isSectionHidden(index) else ""
            yield f"{index} {widget.sectionResizeMode(index).name}{hidden}"
        yield f"clickable {widget.sectionsClickable()}, movable {widget.sectionsMovable()}"
    if isinstance(widget, QTableView):
        model = widget.model()
        for row in range(min(40, model.rowCount() if model is not None else 0)):
            for column in range(model.columnCount()):
                if widget.columnSpan(row, column) > 1:
                    yield f"row {row} from {column} over {widget.columnSpan(row, column)}"
