"""Marks of conditions on the timeline: the steps at which the query held, where stops held, and where runs halted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import Struct
from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter

from app.draw.format import thousands
from app.kit.theme import current_theme
from app.models import Models

FOUND = QRectF(-1, 1, 2, 5)
HALT = QRectF(-2.5, 1, 5, 5)


class FoundSteps(Struct, frozen=True):
    """The query, at how many steps it held, at how many each enabled stop held, and how many halts are known."""

    query: str = ""
    num_found: int = 0
    held: tuple[tuple[str, int], ...] = ()
    num_halts: int = 0

    @classmethod
    def of(cls, models: Models) -> FoundSteps:
        stops = models.stops
        held = tuple((text, len(search.matches)) for text, search in stops.halting)
        return cls(stops.query, len(stops.queried.matches) if stops.queried else 0, held, len(stops.hits))

    @property
    def words(self) -> str:
        """For a screen reader; empty without a query."""
        return f", {thousands(self.num_found)} found" if self.query else ""


def paint_found(painter: QPainter, models: Models, left: float, right: float) -> None:
    """Paint a bar above each step found, and a red block where a stop held or a run halted, on a line of steps from
    `left` to `right`; at most one for each condition and pixel."""
    stops, on_path, theme = models.stops, models.timeline.nodes, current_theme()
    found = stops.queried.matches if stops.queried else ()
    halts = (*(search.matches for _, search in stops.halting), sorted(stops.hits))
    for steps, mark, role in ((found, FOUND, "accent"), *((steps, HALT, "bad") for steps in halts)):
        color = theme.color(role)
        for x in marked_pixels(steps, on_path, left, right):
            painter.fillRect(mark.translated(x, 0), color)


def marked_pixels(steps: Sequence[int], on_path: Sequence[int], left: float, right: float) -> Iterator[int]:
    """The pixels of the ascending `steps`, on a line that the nodes `on_path` share evenly. Examines one step per
    pixel, however many there are."""
    last, at = max(1, len(on_path) - 1), 0
    while at < len(steps):
        index = bisect_left(on_path, steps[at])
        if index == len(on_path):
            return
        if on_path[index] != steps[at]:  # a step of another branch
            at += 1
            continue
        x = round(left + (right - left) * index / last) if len(on_path) > 1 else round(right)
        yield x
        beside = max(index + 1, math.ceil((x + 0.5 - left) * last / (right - left)))  # first node on another pixel
        if beside >= len(on_path):
            return
        at = bisect_left(steps, on_path[beside], at + 1)


def words_at(models: Models, step: int) -> list[str]:
    """What held at a step, and what a run was halted by there."""
    stops = models.stops
    verdict = stops.queried.verdicts.get(step) if stops.queried is not None else None
    words = [f"found: {stops.query} · {verdict.value}"] if verdict is not None else []
    if (hit := stops.hits.get(step)) is not None:
        words.append(f"halted: {hit.condition} · {hit.value}")
    for text, search in stops.halting:
        if (verdict := search.verdicts.get(step)) is not None and (hit is None or hit.condition != text):
            words.append(f"breakpoint: {text} · {verdict.value}")
    return words
