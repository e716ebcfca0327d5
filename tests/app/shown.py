"""All that a widget shows, as lines of text: words, colours by their role, tool tips, what is enabled; what is painted
by hand as the shapes that a drawing (SVG) of it has. Places stand after an @ and are compared within a few pixels, so
that another machine's fonts do not matter.

`approve(name, lines)` compares with the file `approved/NAME.txt` beside the test that calls it. After a wished change:
`KVLOUPE_APPROVE=1 pytest -n 0 tests/app/panels/test_approved.py`, then read the difference in git.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PySide6.QtCore import QAbstractItemModel, QAbstractListModel, QBuffer, QIODevice, QModelIndex, QPoint, Qt
from PySide6.QtGui import QBrush, QColor, QImage, QPainter, QRegion
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSlider,
    QComboBox,
    QDoubleSpinBox,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QSpinBox,
    QTreeWidget,
    QWidget,
)

from app.kit.chart.plot_canvas import PlotCanvas
from app.kit.labels import DotLabel, ElidedLabel
from app.kit.panel import TitleBar
from app.kit.theme import Theme, current_theme

TOLERANCE = 3  # pixels
FEW, MANY = 3, 48  # so many like shapes have a line each; so many their places on one line
_TAG = re.compile(r"<[^>]*>")


def kind_of(widget: QWidget) -> str:
    """The kind of Qt that it is: what our own classes are called is not seen."""
    return next(kind.__name__ for kind in type(widget).__mro__ if kind.__module__.startswith("PySide6"))


def shown(root: QWidget) -> list[str]:
    """What a person sees of a widget and of everything in it, and what a screen reader is told."""
    lines = [] if root.isVisible() else ["hidden"]
    for widget in (root, *root.findChildren(QWidget)):
        if widget.isVisible() and widget.width() > 0 and not isinstance(widget, QScrollBar | TitleBar):
            lines += _of(widget)
    return lines


def _of(widget: QWidget) -> Iterator[str]:
    name, told = widget.accessibleName(), widget.accessibleDescription()
    tip = _TAG.sub("", widget.toolTip()).replace("&quot;", '"')
    marks = "" if widget.isEnabled() else " (disabled)"
    words = _words(widget)
    if words is not None:
        extra = [f"name {name!r}" if name and name != words else "", f"tip {tip!r}" if tip and tip != words else ""]
        if words or any(extra):
            yield " ".join(filter(None, (f"{kind_of(widget)} {words!r}{marks}", *extra)))
    elif (tip or told or name) and not isinstance(widget, QAbstractItemView):
        yield f"{kind_of(widget)} {name!r}{marks}" + (f" tip {tip!r}" if tip else "")
    for line in told.splitlines():
        yield f"  says {line!r}"
    if isinstance(widget, QAbstractItemView) and widget.model() is not None:
        yield from _table(widget.model(), isinstance(widget, QTreeWidget))
        chosen = sorted({index.row() for index in widget.selectedIndexes()})
        if chosen:
            yield f"  chosen rows {', '.join(map(str, chosen))}"
    elif isinstance(widget, QAbstractScrollArea) and type(widget).__module__.startswith("app."):
        yield from (f"  {line}" for line in painted(widget.viewport()))
        if isinstance(widget, PlotCanvas) and widget.chart is not None:
            found = "along x" if widget.chart.reach is None else f"within {widget.chart.reach:g} pixels"
            yield f"  {len(widget.chart.points)} points, found {found}"
    elif paints_itself(widget):
        yield from (f"  {line}" for line in painted(widget))


def _words(widget: QWidget) -> str | None:
    """The text of a widget that has one; with its state."""
    match widget:
        case DotLabel():
            return f"{widget.text} [{widget.kind}] {widget.whole}"
        case ElidedLabel():
            return widget.text()
        case QLabel():
            return f"{widget.text()} [{widget.property('textRole')}]" if widget.text() else ""
        case QAbstractButton():
            return f"{widget.text() or widget.accessibleName()}{' (on)' if widget.isChecked() else ''}"
        case QComboBox():
            items = [widget.itemText(n) for n in range(widget.count())]
            return f"{widget.currentText()} of {', '.join(items)}"
        case QLineEdit():
            shown = f"{widget.text()}{' …' + widget.placeholderText() if widget.placeholderText() else ''}"
            return f"{shown}{' (read only)' if widget.isReadOnly() else ''}"
        case QPlainTextEdit():
            return f"{widget.toPlainText()}{' (read only)' if widget.isReadOnly() else ''}"
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
    for number in range(min(model.rowCount(top), 40)):
        cells = [model.index(number, column, top) for column in columns]
        yield "  " * depth + " | ".join(map(_cell, cells))
        if is_tree:
            yield from _table(model, True, cells[0], depth + 1)


def _cell(index: QModelIndex) -> str:
    text = str(index.data() if index.data() is not None else "")
    color = index.data(Qt.ItemDataRole.ForegroundRole)
    if isinstance(color, QBrush):
        color = color.color()
    role = f" [{role_of(color.name())}]" if isinstance(color, QColor) else ""
    tip = _TAG.sub("", str(index.data(Qt.ItemDataRole.ToolTipRole) or ""))
    off = "" if index.flags() & Qt.ItemFlag.ItemIsEnabled else " (disabled)"
    on = {None: "", 0: " (off)", 2: " (on)"}.get(getattr(index.data(Qt.ItemDataRole.CheckStateRole), "value", None), "")
    return f"{text}{role}{on}{off}" + (f" tip {tip!r}" if tip and tip != text else "")


def paints_itself(widget: QWidget) -> bool:
    """Whether code of ours paints it, and not only its words."""
    if isinstance(widget, DotLabel | ElidedLabel | QAbstractButton | QLineEdit | QPlainTextEdit):
        return False
    return any(kind.__module__.startswith("app.") and "paintEvent" in vars(kind) for kind in type(widget).__mro__)


# ---- what is painted ---------------------------------------------------------------------------------------------


def role_of(code: str) -> str:
    """The first role of the theme that has this colour; a hatching has a number of its own in every drawing."""
    if code.startswith("url("):
        return "pattern"
    return _roles(current_theme()).get(code.lower(), code)


@cache
def _roles(theme: Theme) -> dict[object, str]:
    """Of each colour the first role that has it."""
    names = theme.__struct_fields__
    return {getattr(theme, name): name for name in reversed(names)}


def drawing(widget: QWidget) -> ElementTree.Element:
    """What a widget paints, without what lies in it, as SVG."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setResolution(96)
    generator.setSize(widget.size())
    painter = QPainter(generator)
    widget.render(painter, QPoint(), QRegion(), QWidget.RenderFlag(0))
    painter.end()
    text = bytes(buffer.data().data()).decode()
    return ElementTree.fromstring(re.sub(r"&#(x[0-8bcef]|1?[0-9]|2[0-9]|3[01]);|[\x00-\x08\x0b-\x1f]", "?", text))


def painted(widget: QWidget) -> Iterator[str]:
    """The shapes in their order: what it is, its colours, its place; many like ones as one line."""
    shapes = [found for group in drawing(widget).iter() if group.tag.endswith("}g") for found in _shapes(group)]
    for style, run in groupby(shapes, key=lambda shape: shape[0].partition(" ‹")[0]):
        found = list(run)
        places = np.array([place for _, place in found])
        if style.startswith("text"):
            texts = " ".join("‹" + text.partition(" ‹")[2] for text, _ in found)
            yield f"{style} {texts} @{' '.join(map(_numbers, places))}"
        elif style.startswith("image") or len(places) <= FEW:
            yield from (f"{style} @{_numbers(place)}" for place in places)
        elif len(places) <= MANY:
            yield f"{style} × {len(places)} @{' '.join(map(_numbers, places))}"
        else:
            some = places[:: -(-len(places) // MANY)]
            yield f"{style} × {len(places)} @{' '.join(map(_numbers, some))} ~ {_numbers(places.mean(0))}"


def _numbers(values: Sequence[float] | np.ndarray) -> str:
    return ",".join(str(round(float(value))) for value in values)


def _shapes(group: ElementTree.Element) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Each shape of a group that has its own: words for it, and its place: left, top, width, height."""
    fill, stroke = (role_of(group.get(name, "none")) for name in ("fill", "stroke"))
    alpha = group.get("fill-opacity", "1")
    fill += f" {round(float(alpha) * 100)} %" if fill != "none" and alpha != "1" else ""
    matrix = [float(n) for n in re.findall(r"[-\d.e]+", group.get("transform", "matrix(1,0,0,1,0,0)"))]
    dashes = " dashed" if group.get("stroke-dasharray", "none") != "none" else ""
    style = " ".join(
        filter(None, ("" if fill == "none" else fill, "" if stroke == "none" else f"line {stroke}{dashes}"))
    )
    for shape in group:
        kind = shape.tag.rpartition("}")[2]
        if kind == "g":
            continue
        if kind == "text":
            at = float(shape.get("x", "0")), float(shape.get("y", "0"))
            yield f"text {role_of(shape.get('fill', ''))} ‹{shape.text or ''}›", _moved(at, at, matrix)[:2]
        elif kind == "image":
            box = [float(shape.get(name, "0")) for name in ("x", "y", "width", "height")]
            place = _moved((box[0], box[1]), (box[0] + box[2], box[1] + box[3]), matrix)
            yield f"image {shape.get('width')} × {shape.get('height')}", (*place, *_colors(shape))
        else:
            low, high = _bounds(kind, shape)
            yield f"{kind} {style}", _moved(low, high, matrix)


def _bounds(kind: str, shape: ElementTree.Element) -> tuple[tuple[float, float], tuple[float, float]]:
    if kind == "rect":
        left, top, width, height = (float(shape.get(name, "0")) for name in ("x", "y", "width", "height"))
        return (left, top), (left + width, top + height)
    if kind in ("circle", "ellipse"):
        x, y = float(shape.get("cx", "0")), float(shape.get("cy", "0"))
        wide, high = (float(shape.get(name) or shape.get("r") or 0) for name in ("rx", "ry"))
        return (x - wide, y - high), (x + wide, y + high)
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", shape.get("d") or shape.get("points") or "0,0")]
    xs, ys = numbers[::2], numbers[1::2]
    return (min(xs), min(ys)), (max(xs), max(ys))


def _moved(low: tuple[float, float], high: tuple[float, float], matrix: list[float]) -> tuple[float, ...]:
    wide, _, _, tall, x, y = matrix
    return low[0] * wide + x, low[1] * tall + y, (high[0] - low[0]) * wide, (high[1] - low[1]) * tall


def _colors(shape: ElementTree.Element) -> list[float]:
    """The mean colour of a picture, and how bright its parts are: twelve by eight, of a dot three by three. Of one that
    is transparent in places: how much of each part is covered, against the part that is covered most."""
    link = next(value for name, value in shape.attrib.items() if name.endswith("href"))
    image = QImage.fromData(base64.b64decode(link.partition(",")[2])).convertToFormat(QImage.Format.Format_RGBA8888)
    pixels = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine() // 4, 4)
    colors, alpha = pixels[:, : image.width(), :3].astype(float), pixels[:, : image.width(), 3].astype(float)
    is_whole = bool((alpha == 255).all())
    grey = colors.mean(axis=2) if is_whole else alpha
    most = (8, 12) if max(grey.shape) > 16 else (3, 3)
    parts = _means(grey, min(most[0], grey.shape[0]), min(most[1], grey.shape[1])).ravel().tolist()
    scale = 1.0 if is_whole else 255 / max(*parts, 1e-9)
    return [*colors.mean(axis=(0, 1)), *(part * scale for part in parts)]


def _means(grey: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """`[rows, columns]`: the mean of each of so many parts, cut as `np.array_split` cuts."""
    (down, tall), (right, wide) = _cuts(grey.shape[0], rows), _cuts(grey.shape[1], columns)
    sums = np.add.reduceat(np.add.reduceat(grey, down, axis=0), right, axis=1)
    return sums / (tall[:, None] * wide)


def _cuts(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `count` parts of a length begins, and how long it is: the first ones may be longer by one."""
    sizes = length // count + (np.arange(count) < length % count)
    return np.cumsum(sizes) - sizes, sizes


# ---- approved ----------------------------------------------------------------------------------------------------


def changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The lines that came between two moments, and how many went."""
    gone, come = list(before), []
    for line in after:
        if line in gone:
            gone.remove(line)
        else:
            come.append(f"+ {line}")
    return [*come, *([f"- {len(gone)} lines"] if gone else [])]


def approve(path: Path, lines: Sequence[str]) -> None:
    """Fail where this is not what the file has, but for places within the tolerance."""
    if os.environ.get("KVLOUPE_APPROVE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    approved = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    faults = [
        f"{path.name}:{number}\n  approved: {old}\n  shown:    {new}"
        for number, (old, new) in enumerate(zip(approved, lines, strict=False), 1)
        if not is_same(old, new)
    ]
    if len(approved) != len(lines):
        faults.append(f"{path.name}: {len(lines)} lines instead of {len(approved)}")
    assert not faults, "\n".join(["if that is meant: KVLOUPE_APPROVE=1, and read the difference in git", *faults[:12]])


def is_same(old: str, new: str) -> bool:
    if old == new:
        return True
    (words, _, places), (other, _, others) = old.rpartition("@"), new.rpartition("@")
    if not words or words != other:
        return False
    numbers, found = (np.array([float(n) for n in re.findall(r"-?\d+", part)]) for part in (places, others))
    return len(numbers) == len(found) and bool((abs(numbers - found) <= TOLERANCE).all())
