"""From data ready to painted, a 1920 x 1080 heat map of one head: 128k tokens of context over fewer; the wall.

A frame is what a new slice costs the window: extremes to one value, value to colour index, image to widget, painted.
The engine sends a tile of the screen's size at most: 1,024 tokens are as many columns of one number a cell, 3,456 and
128k are 1,728 columns of two extremes. So 128k over 3,456 tells whether anything in the window grows with the tokens,
and over 1k what more cells cost as well. Pairs alternate A B, B A in one process; medians and spread of the frames are
printed.

    python tests/benchmarks/heatmap_frame.py [--pairs 9] [--frames 12]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from PySide6.QtWidgets import QApplication, QWidget

from app.kit.theme import DARK, apply_theme, load_fonts
from app.models import Models
from app.panels.head import HeadView
from app.panels.wall.view import WallView
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.pictures import HeadPicture, HeadRequest, WallPicture, WallRequest
from engine.wire.records import CacheBytes, SequenceStep, StepRecord, Timings
from engine.wire.status import EngineStatus, ModelInfo
from tests.benchmarks.protocol import Paired, header

DIM, COLUMNS = 128, 1728
LAYERS, KV_HEADS = 30, 3
CONTEXTS = {"1k": 1024, "3,456": 2 * COLUMNS, "128k": 131072}


def record(num_tokens: int) -> StepRecord:
    """The record of a prefill of so many tokens, so that axes have token names."""
    part = SequenceStep(
        0,
        "prefill",
        tuple(range(num_tokens)),
        tuple(f" w{i % 97}" for i in range(num_tokens)),
        0,
        num_tokens,
        num_tokens,
        (None,) * num_tokens,
        1,
        " x",
        False,
        (),
        None,
        None,
        None,
        None,
        0,
    )
    return StepRecord(
        0, "prefill", CacheSpec(), "float32", False, (part,), Timings(1, 1, 1, 1), CacheBytes((), 0, 0, None), (), 0.0
    )


def models_of(num_tokens: int) -> Models:
    geometry = CacheGeometry.uniform(LAYERS, KV_HEADS, 64, num_heads=9, max_length=131072)
    info = ModelInfo("bench", "bench", "Llama", geometry, "float32", "cpu", 1, 0, 0, False, True, True, "", "")
    models = Models()
    models.status.set(EngineStatus(info, CacheSpec(), SamplingParams(), (), 0, False, None))
    models.timeline.append([record(num_tokens)])
    return models


def head_pictures(num_tokens: int, count: int) -> list[HeadPicture]:
    rng = np.random.default_rng(num_tokens)
    per_column = max(1, math.ceil(num_tokens / COLUMNS))
    columns = math.ceil(num_tokens / per_column)
    request = HeadRequest(0, num_tokens, "keys", 0, 0, 0, num_tokens, COLUMNS)
    pieces = []
    for _ in range(count):
        low = rng.normal(size=(columns, DIM)).astype(np.float32)
        high = low if per_column == 1 else low + 1
        counts, edges = np.histogram(low, 64)
        positions = np.arange(columns, dtype=np.int64) * per_column
        pieces.append(
            HeadPicture(
                request,
                "live cache",
                "float32",
                low,
                high,
                positions,
                per_column,
                counts,
                edges.astype(np.float32),
                3.0,
                -4.0,
                4.0,
                0,
                0,
                (0, 1, 2),
                "K",
                "",
                0.0,
            )
        )
    return pieces


def wall_pictures(models: Models, num_tokens: int, count: int) -> list[WallPicture]:
    rng = np.random.default_rng(3)
    wanted = models.viewport.now.wall_size
    assert wanted is not None
    per_column, per_row = max(1, math.ceil(num_tokens / wanted[0])), max(1, math.ceil(64 / wanted[1]))
    shape = (LAYERS, KV_HEADS, math.ceil(num_tokens / per_column), math.ceil(64 / per_row))
    request = WallRequest(0, num_tokens, 0, "keys", False, *wanted)
    return [
        WallPicture(
            request,
            "live cache",
            "float32",
            tuple(range(LAYERS)),
            (KV_HEADS,) * LAYERS,
            low := rng.normal(size=shape).astype(np.float32),
            low + 1,
            num_tokens,
            per_column,
            per_row,
            "",
            0.0,
        )
        for _ in range(count)
    ]


def frame(models: Models, piece: HeadPicture | WallPicture, view: QWidget) -> float:
    """Milliseconds from the slice's arrival to painted pixels."""
    began = time.perf_counter()
    models.pictures.put(piece)
    QApplication.processEvents()
    return (time.perf_counter() - began) * 1e3


def shown(view: QWidget, width: int, height: int) -> QWidget:
    view.resize(width, height)
    view.show()
    QApplication.processEvents()
    return view


def told(name: str, frames: list[float]) -> None:
    frames = sorted(frames)
    p95 = frames[min(len(frames) - 1, int(0.95 * len(frames)))]
    print(f"{name:<44}{statistics.median(frames):>9.2f}{p95:>9.2f}{frames[0]:>9.2f}{frames[-1]:>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--frames", type=int, default=12)
    options = parser.parse_args()
    app = QApplication([])
    load_fonts()
    apply_theme(app, DARK)
    cases: dict[str, Callable[[], list[float]]] = {}
    for name, num_tokens in CONTEXTS.items():
        models = models_of(num_tokens)
        view = shown(HeadView(models), 1920, 1080)
        pieces = head_pictures(num_tokens, options.frames)
        cases[name] = _runner(models, view, pieces)
    walls = models_of(1024)
    wall = shown(WallView(walls), 965, 317)
    wall_run = _runner(walls, wall, wall_pictures(walls, 1024, options.frames))
    for run in (*cases.values(), wall_run):
        run()  # warm-up
    frames: dict[str, list[float]] = {name: [] for name in CONTEXTS}
    medians: dict[str, list[float]] = {name: [] for name in CONTEXTS}
    for pair in range(options.pairs):
        for name in list(CONTEXTS)[:: 1 if pair % 2 == 0 else -1]:
            times = cases[name]()
            frames[name] += times
            medians[name].append(statistics.median(times))
    print(f"{'frame, data ready to painted':<44}{'median':>9}{'p95':>9}{'min':>9}{'max':>9}   ms")
    for name in CONTEXTS:
        told(f"head 1920x1080, {name} tokens, 128 channels", frames[name])
    told("wall 965x317, 30 layers x 3 heads", [ms for _ in range(options.pairs) for ms in wall_run()])
    print(header("fewer", "128k"))
    print(Paired(tuple(medians["1k"]), tuple(medians["128k"])).row("head, 128k over 1k", "ms"))
    print(Paired(tuple(medians["3,456"]), tuple(medians["128k"])).row("head, as many cells: over 3,456", "ms"))


def _runner(models: Models, view: QWidget, pieces: list[HeadPicture] | list[WallPicture]) -> Callable[[], list[float]]:
    def run() -> list[float]:
        return [frame(models, piece, view) for piece in pieces]

    return run


if __name__ == "__main__":
    main()
