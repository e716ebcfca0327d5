"""Counts what a window on a running engine does: records taken, pictures painted, work between two looks for events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from app.shell import Shell
    from engine.client import Client

WARM_UP = 32  # decode steps before the first that counts
NO_WORK_S = 2e-4  # less is a look that found no events


class Meter:
    """Takes the time of every record, and knows when the run is over."""

    def __init__(self, tokens: int, client: Client) -> None:
        self._tokens = tokens
        self._child = psutil.Process(pid) if (pid := getattr(client, "process_id", None)) is not None else None
        self._times: list[float] = []
        self._spent: list[
            tuple[float, float]
        ] = []  # processor seconds of both processes and of this thread, at the first and at the last record

    @property
    def is_warm(self) -> bool:
        return len(self._times) >= WARM_UP

    def take(self, events: Sequence[object]) -> bool:
        """Take events; return whether all records of the run are there."""
        from engine.wire.events import Failed
        from engine.wire.records import StepRecord

        for event in events:
            if isinstance(event, Failed):
                raise SystemExit(event.message)
            if isinstance(event, StepRecord) and event.phase == "decode":
                self._times.append(event.wall_time)
                if len(self._times) in (
                    WARM_UP + 1,
                    self._tokens + WARM_UP,
                ):  # reading the clocks at every record would cost what is measured
                    self._spent.append((time.process_time() + self._child_time(), time.thread_time()))
        return len(self._times) >= self._tokens + WARM_UP

    def _child_time(self) -> float:
        """Processor seconds of an engine in a process of its own."""
        if self._child is None:
            return 0.0
        times = self._child.cpu_times()
        return times.user + times.system

    def result(self) -> dict[str, float]:
        times = self._times[WARM_UP : WARM_UP + self._tokens]
        (both, own), (both_then, own_then) = self._spent
        return {
            "speed": (len(times) - 1) / (times[-1] - times[0]),
            "window": 100 * (own_then - own) / (times[-1] - times[0]),
            "cpu": (both_then - both) * 1e3 / (len(times) - 1),
        }


class Painted:
    """Counts frames of the wall, a head and the newest row that were painted and show another step than the frame
    before, and how often texts are updated."""

    def __init__(self, shell: Shell) -> None:
        from app.kit.heatmap import HeatMap
        from app.panels.wall.view import WallCanvas

        window = shell.window
        self.counts = dict.fromkeys(("wall", "head", "row", "words"), 0)
        self.heard: Callable[[str], None] | None = None
        self._last: dict[str, object] = {}
        self._piece_of: dict[int, tuple[str, Callable[[], Any]]] = {
            id(window.wall.canvas): ("wall", lambda: window.wall.canvas.state.picture),
            id(window.head.map): ("head", lambda: window.head.picture),
            id(window.attention.map): ("row", lambda: window.attention.picture),
        }
        for kind in (WallCanvas, HeatMap):
            self._count_paints(kind)
        shell.models.timeline.texts_due.connect(self._on_words)

    def _count_paints(self, kind: type) -> None:
        paint, painted = kind.paintEvent, self._on_painted  # type: ignore[attr-defined]

        def paint_and_count(widget: object, event: object) -> None:
            paint(widget, event)
            painted(widget)

        kind.paintEvent = paint_and_count  # type: ignore[attr-defined]

    def _on_painted(self, widget: object) -> None:
        if id(widget) not in self._piece_of:
            return
        name, piece_of = self._piece_of[id(widget)]
        piece = piece_of()
        shown = None if piece is None else piece.request
        if shown != self._last.get(name):
            self._last[name] = shown
            self.counts[name] += 1
            if self.heard is not None:
                self.heard(name)

    def _on_words(self) -> None:
        self.counts["words"] += 1


class Stretches:
    """Processor milliseconds that the window's thread worked between two looks for events."""

    def __init__(self, is_counting: Callable[[], bool]) -> None:
        from PySide6.QtCore import QAbstractEventDispatcher

        self._is_counting = is_counting
        self._began: float | None = None
        self.millis: list[float] = []
        QAbstractEventDispatcher.instance().aboutToBlock.connect(self._on_looking)

    def _on_looking(self) -> None:
        now, began = time.thread_time(), self._began
        self._began = now if self._is_counting() else None
        if began is not None and now - began > NO_WORK_S:
            self.millis.append((now - began) * 1e3)
