"""What the timeline shows of conditions: the steps at which the one that is looked for held, and where runs halted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter

from app.draw.format import thousands
from app.kit.theme import current_theme
from app.models import Models

FOUND = QRectF(-1, 1, 2, 5)
HALT = QRectF(-2.5, 1, 5, 5)


@dataclass(frozen=True)
class Found:
    """Which condition is looked for, at how many steps it held, and how many halts are known."""

    query: str = ""
    num_found: int = 0
    num_halts: int = 0

    @classmethod
    def of(cls, models: Models) -> Found:
        stops = models.stops
        return cls(stops.query, len(stops.queried.matches) if stops.queried else 0, len(stops.hits))

    @property
    def words(self) -> str:
        """For a screen reader; empty where nothing is looked for."""
        return f", {thousands(self.num_found)} found" if self.query else ""


def paint_found(painter: QPainter, models: Models, x_of: Callable[[int], float]) -> None:
    """A bar above each step that was found, a red block where a run halted: one for each pixel at most."""
    stops = models.stops
    _paint(painter, models, stops.queried.matches if stops.queried else (), FOUND, "accent", x_of)
    _paint(painter, models, stops.hits, HALT, "bad", x_of)


def _paint(
    painter: QPainter, models: Models, steps: Iterable[int], mark: QRectF, role: str, x_of: Callable[[int], float]
) -> None:
    indices = (models.timeline.index_of(step) for step in steps)
    for x in {round(x_of(index)) for index in indices if index is not None}:
        painter.fillRect(mark.translated(x, 0), current_theme().color(role))


def words_at(models: Models, step: int) -> list[str]:
    """What held at a step, and what a run halted at there."""
    stops = models.stops
    verdict = stops.queried.verdicts.get(step) if stops.queried is not None else None
    found = [f"found: {stops.query} · {verdict.value}"] if verdict is not None else []
    hit = stops.hits.get(step)
    return found + ([f"halted: {hit.condition} · {hit.value}"] if hit is not None else [])
