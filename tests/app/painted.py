"""What a widget paints by hand, read from a drawing (SVG) of it: its shapes with the roles of their colours."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from PySide6.QtCore import QBuffer, QIODevice, QPoint
from PySide6.QtGui import QImage, QPainter, QRegion
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QAbstractButton, QLineEdit, QPlainTextEdit, QWidget

from app.kit.theme import Theme, current_theme
from app.kit.widgets import DotLabel, ElidedLabel

QUIET = ("panel", "ground", "field", "title_strip", "hairline", "faint")  # grounds and fine lines
_SHARE = re.compile(r" \d+ %")  # how opaque a colour is
MARKED = 2  # so many like shapes are marks: where they are is told


class Shape(NamedTuple):
    """`style`: what it is, and its colours by their roles; `place`: left, top, width, height in pixels; `shades`: of an
    image, how bright its four quarters are, of 255."""

    style: str
    place: tuple[float, ...]
    text: str = ""
    shades: tuple[float, ...] = ()


def paints_itself(widget: QWidget) -> bool:
    """Whether code of ours paints it, and not only its words."""
    if isinstance(widget, DotLabel | ElidedLabel | QAbstractButton | QLineEdit | QPlainTextEdit):
        return False
    return any(kind.__module__.startswith("app.") and "paintEvent" in vars(kind) for kind in type(widget).__mro__)


def drawn(widget: QWidget) -> str:
    """In one line how many shapes of each style a widget paints, where the marks among them are (their middle, in
    percent of the widget), and how bright its images are. Grounds, fine lines and letters are left out."""
    by_style: dict[str, list[Shape]] = {}
    for shape in shapes(widget):
        by_style.setdefault(_SHARE.sub("", shape.style), []).append(shape)
    parts = []
    for style, alike in by_style.items():
        if style.startswith("text") or style.split()[-1] in QUIET:
            continue
        if style == "image":
            parts += [f"image {' '.join(f'~{shade:.0f}' for shade in shape.shades)}" for shape in alike]
        elif len(alike) <= MARKED:
            parts.append(f"{style} at {', '.join(_middle(widget, shape) for shape in alike)}")
        else:
            parts.append(f"{style} × ~{len(alike)}")
    return f"paints {'; '.join(parts)}" if parts else ""


def _middle(widget: QWidget, shape: Shape) -> str:
    left, top, wide, high = shape.place
    return f"~{(left + wide / 2) / widget.width() * 100:.0f} ~{(top + high / 2) / widget.height() * 100:.0f}"


def painted(widget: QWidget) -> list[str]:
    """The shapes in their order, like ones that follow one another in one line, with their texts; places in pixels
    stand after an @."""
    lines = []
    for style, run in groupby(shapes(widget), key=lambda shape: shape.style):
        alike = list(run)
        texts = "".join(f" ‹{shape.text}›" for shape in alike if style.startswith("text"))
        places = (",".join(str(round(n)) for n in shape.place) for shape in alike)
        lines.append(f"{style}{texts} @{' '.join(places)}")
    return lines


def shapes(widget: QWidget) -> list[Shape]:
    """What a widget paints, without what lies in it."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setResolution(96)
    generator.setSize(widget.size())
    painter = QPainter(generator)
    widget.render(painter, QPoint(), QRegion(), QWidget.RenderFlag(0))
    painter.end()
    text = re.sub(
        r"&#(x[0-8bcef]|1?[0-9]|2[0-9]|3[01]);|[\x00-\x08\x0b-\x1f]", "?", bytes(buffer.data().data()).decode()
    )
    groups = (each for each in ElementTree.fromstring(text).iter() if each.tag.endswith("}g"))
    return [shape for group in groups for shape in _of_group(group)]


def role_of(code: str) -> str:
    """The first role of the theme that has this colour; a hatching has a number of its own in every drawing."""
    if code.startswith("url("):
        return "pattern"
    return _roles(current_theme()).get(code.lower(), code)


@cache
def _roles(theme: Theme) -> dict[object, str]:
    """Of each colour the first role that has it."""
    return {getattr(theme, name): name for name in reversed(theme.__struct_fields__)}


def _of_group(group: ElementTree.Element) -> Iterator[Shape]:
    fill, stroke = (role_of(group.get(name, "none")) for name in ("fill", "stroke"))
    alpha = group.get("fill-opacity", "1")
    faint = "" if alpha == "1" else f" {round(float(alpha) * 100)} %"
    dashes = " dashed" if group.get("stroke-dasharray", "none") != "none" else ""
    colors = ["" if fill == "none" else fill + faint, "" if stroke == "none" else f"line {stroke}{dashes}"]
    matrix = [float(n) for n in re.findall(r"[-\d.e]+", group.get("transform", "matrix(1,0,0,1,0,0)"))]
    for shape in group:
        kind = shape.tag.rpartition("}")[2]
        if kind == "text":
            at = float(shape.get("x", "0")), float(shape.get("y", "0"))
            yield Shape(f"text {role_of(shape.get('fill', ''))}", _moved((*at, *at), matrix)[:2], shape.text or "")
        elif kind == "image":
            yield Shape("image", _moved(_bounds(kind, shape), matrix), shades=_shades(shape))
        elif kind != "g":
            yield Shape(" ".join(filter(None, (kind, *colors))), _moved(_bounds(kind, shape), matrix))


def _bounds(kind: str, shape: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom."""
    if kind in ("rect", "image"):
        left, top, width, height = (float(shape.get(name, "0")) for name in ("x", "y", "width", "height"))
        return left, top, left + width, top + height
    if kind in ("circle", "ellipse"):
        x, y = float(shape.get("cx", "0")), float(shape.get("cy", "0"))
        wide, high = (float(shape.get(name) or shape.get("r") or 0) for name in ("rx", "ry"))
        return x - wide, y - high, x + wide, y + high
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", shape.get("d") or shape.get("points") or "0,0")]
    return min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])


def _moved(box: tuple[float, ...], matrix: list[float]) -> tuple[float, ...]:
    """Left, top, width and height of a box where a group lies."""
    wide, _, _, tall, x, y = matrix
    return box[0] * wide + x, box[1] * tall + y, (box[2] - box[0]) * wide, (box[3] - box[1]) * tall


def _shades(shape: ElementTree.Element) -> tuple[float, ...]:
    """How bright the quarters of an image are; of one that is transparent in places, how much of each is covered."""
    link = next(value for name, value in shape.attrib.items() if name.endswith("href"))
    image = QImage.fromData(base64.b64decode(link.partition(",")[2])).convertToFormat(QImage.Format.Format_RGBA8888)
    pixels = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine() // 4, 4)
    pixels = pixels[:, : image.width()].astype(float)
    grey = pixels[..., :3].mean(axis=2) if (pixels[..., 3] == 255).all() else pixels[..., 3]
    halves = (half for part in np.array_split(grey, 2) for half in np.array_split(part, 2, axis=1))
    return tuple(float(half.mean()) if half.size else 0.0 for half in halves)
