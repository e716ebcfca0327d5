"""What a step costs the page grid at 1k, 16k and 1M pages, and what painting a frame costs.

`update` reads the one block of 1,024 pages that a decode step changes, `draw` makes the picture of a 1250 x 300 panel,
`paint` is the widget's own frame with the selection on it. Run: `python tests/benchmarks/page_grid.py`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication

from app.kit.theme import DARK
from app.panels.pages.draw import GridLayout, Mode, PoolArrays, arrange, paint
from app.panels.pages.view import PageCanvas, grid_colors
from engine.history.pages import PageTracker
from engine.wire.pages import PageAllocated, PageMap

WIDTH, HEIGHT, ROUNDS = 1250, 300, 30
MODES: tuple[Mode, ...] = ("state", "owner", "age", "refs")


def story(num_pages: int) -> tuple[PageTracker, Callable[[], PageMap]]:
    """A pool that is half full with eight sequences."""
    tracker = PageTracker(num_pages, 16)
    tracker.apply((PageAllocated(page % 8, page) for page in range(1, num_pages // 2)), 0)

    def page_map() -> PageMap:
        return PageMap(1, 16, num_pages, None, 0, (), num_pages // 2, num_pages // 2, 0, 0, 0, 0, 0, tracker.blocks())

    return tracker, page_map


def milliseconds(work: Callable[[], object]) -> float:
    """Median milliseconds of several rounds after a warm-up."""
    work()
    spent = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        spent.append((time.perf_counter() - began) * 1e3)
    return statistics.median(spent)


def measure(num_pages: int, app: QApplication) -> list[float]:
    tracker, page_map = story(num_pages)
    arrays = PoolArrays()
    arrays.follow(page_map())
    fresh = iter(range(num_pages // 2, num_pages))

    def update() -> None:
        tracker.apply([PageAllocated(1, next(fresh))], 1)
        arrays.follow(page_map())

    layout: GridLayout = arrange(num_pages, WIDTH, HEIGHT, 26)
    colors = grid_colors(DARK)
    costs = [milliseconds(update)]
    costs += [milliseconds(lambda mode=mode: paint(layout, arrays, mode, 5, colors)) for mode in MODES]
    canvas = PageCanvas()
    canvas.resize(WIDTH, HEIGHT)
    canvas.show_pools((page_map(),), ("full",), "state", 0)
    canvas.set_marks((0, num_pages // 3), [list(range(1, 200))], ())
    target = canvas.grab()
    costs.append(milliseconds(lambda: canvas.render(target)))
    app.processEvents()
    return costs


def main() -> None:
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    heads = " ".join(f"{'draw ' + mode:>11}" for mode in MODES)
    print(f"{'pages':>9} {'update':>8} {heads} {'paint':>8}   (ms)")
    for num_pages in (1_024, 16_384, 1_000_000):
        update, *drawn, painted = measure(num_pages, app)
        row = " ".join(f"{cost:>11.2f}" for cost in drawn)
        print(f"{num_pages:>9,} {update:>8.3f} {row} {painted:>8.2f}")


if __name__ == "__main__":
    main()
