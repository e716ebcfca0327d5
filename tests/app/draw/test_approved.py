"""What the arithmetic of pictures answers, at its edges and beside them, as approved (`approved/answers.txt`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw import attention, axis, colormap, format, ghost, grid, spark, token_range
from app.draw.axis import ByteTicks, FixedTicks, LinearTicks, LogScale, Tick
from engine.wire.slices import AttentionRequest
from tests.app import samples
from tests.approve import approve, in_words

APPROVED = Path(__file__).parent / "approved"
NAN, INF = float("nan"), float("inf")
SIZES = (0, 1, 1023, 1024, 1025, 10_239, 1 << 20, 1_048_575, 5 << 30, 1023 << 30)
NUMBERS = (
    0.0, -0.0, 1e-9, 0.00049, 0.0005, 0.004, 0.05, 0.0949, 0.5, 0.995, 0.9995, 1.0, 1.5, 9.95, 9.995, 12.34, 99.5,
    999.5, 1234.5, 99_999.5, 1e7, -3.14159, -0.002, NAN, INF, -INF,
)  # fmt: skip
GRID = grid.grid(
    "Keys",
    np.square(np.arange(54).reshape(3, 2, 9) / 10).astype(np.float32),
    (0, 4, 5),
    ((2, 9), (1, 6), (2, 9)),
    2,
    17,
)
NO_GRID = grid.grid("None", np.zeros((0, 0, 0), np.float32), (), (), 1, 0)
PIECE = samples.attention_slice(AttentionRequest(0, 9, 2, 6, 1, 12), 13)
WITHOUT_TOP = replace(PIECE, top_positions=None, top_weights=None)
SHARE = ghost.Ghosts(np.array([[0, 0.5, 1, 1, 0.25, 0]], np.float32), 2.0, 2)
HATCH = ghost.Hatch(0xFF112233, 0xFF000000, 5)


def calls() -> Iterator[tuple[Callable[..., Any], Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]]]:
    yield format.byte_size, [(one,) for one in SIZES]
    yield format.thousands, [(one,) for one in (0, 999, 1000, -1234, 1_000_000)]
    yield format.milliseconds, [(one,) for one in NUMBERS[:22]]
    yield format.percent, [(one,) for one in (0.0, 1e-6, 0.0004, 0.0005, 0.01, 0.0995, 0.5, 0.9994, 0.9996, 1.0, NAN)]
    yield format.exact, [(one,) for one in NUMBERS]
    yield format.brief, [(one, digits) for one in NUMBERS for digits in (1, 2, 3)]
    yield format.decimal, [(one, digits) for one in NUMBERS for digits in (0, 2)]
    yield format.cell_number, [(one, wide) for one in NUMBERS for wide in (24.0, 36.0, 60.0)]
    yield format.times, [(one,) for one in (0.0, 0.3, 0.999, 1.0, 1.04, 2.5, 99.6, 1234.0)]
    yield format.divergence_words, [(one,) for one in (0.0, 1e-7, 1e-4, 0.01, 1.0, 12.5, NAN, INF)]
    yield format.bytes_words, list(product((0, 1024, 5 << 20), (0, 512, 9 << 20)))
    yield format.byte_share, list(product((0, 1024, 5 << 20), (0, 512, 9 << 20)))
    yield format.token_label, list(product(("", " a", "\n", "a\tb", "\u202e", "é�", "a" * 30, " " * 3), (1, 4, 12)))
    yield format.shortened, list(product(("", "abc", "abcd", "abcde", "a b c d e f"), (1, 3, 4, 5)))
    yield (
        format.whole_words,
        [(text, room, len) for text in ("one two three", "one · two · three", "") for room in range(0, 20, 2)],
    )
    yield axis.nice_step, [(one,) for one in (0.1, 1, 1.01, 2, 2.5, 5, 5.1, 10, 49, 51)]
    yield (
        axis.ticks,
        [(a, b, p, 20.0, str) for a, b in ((0, 1), (0, 10), (3.5, 9.5), (5, 5), (0, 400)) for p in (0, 30, 100, 400)],
    )
    for linear in (LinearTicks(str), LinearTicks(str, least=1.0), LinearTicks(str, is_binary=True)):
        yield (
            linear.ticks,
            [
                (most, low, high)
                for most in (0, 1, 3, 8)
                for low, high in ((0, 1), (-2, 7.5), (3, 3), (0.1, 0.11), (0, 4096))
            ],
        )
    yield (
        ByteTicks(str).ticks,
        [
            (most, low, high)
            for most in (0, 1, 3, 8)
            for low, high in ((0, 1), (-1, 3), (10, 12), (10.2, 11.9), (20, 41))
        ],
    )
    yield FixedTicks((Tick(1, "a"), Tick(2, "b"), Tick(3, "c"))).ticks, [(9, 1, 2), (9, 1.5, 3), (9, 4, 5)]
    yield (
        axis.log_scale,
        [
            (v, lo, hi, f)
            for v in ((), (0.0, NAN, INF), (1e-7, 3.0), (20.0, 1e5))
            for lo, hi in ((-3, 0), (0, 0))
            for f in (-6, -2)
        ],
    )
    for log in (LogScale(-3, 1), LogScale(-2, 2, has_floor=False), LogScale(0, 0)):
        yield log.at, [([0.0, 1e-4, 1e-3, 0.5, 1.0, 10.0, 99.0, 1e6, NAN, INF],)]
        yield log.ticks, [(most, low, high) for most in (0, 1, 2, 9) for low, high in ((0, 1), (0.2, 0.6), (0.35, 0.4))]
    yield grid.whole_steps, list(product((0, 63.9, 64, 200.5), (1, 64)))
    yield (
        grid.cell_span,
        [(cell, count, size) for count, size in ((4, 4), (3, 8), (9, 4), (1, 5)) for cell in range(count)],
    )
    yield (
        grid.cell_at,
        [(pixel, count, size) for count, size in ((4, 4), (3, 8), (9, 4)) for pixel in range(-1, size + 1)],
    )
    low = np.arange(14, dtype=np.float32).reshape(2, 7)
    yield (
        grid.resample,
        [(low, low + 10, size, 1) for size in (1, 3, 7, 12)] + [(low, -low, size, 0) for size in (1, 2, 5)],
    )
    yield axis.clusters, [(np.array([0, 1, 9, 0.5, 9]), np.array([0, 0, 3, 1, 3]), reach) for reach in (0.5, 1.0, 4.0)]
    x, y = np.array([20.0, 60, 64, 150, 190]), np.array([20.0, 40, 42, 60, 10])
    yield (
        axis.labels,
        [(x, y, (30, 40, 40, 50, 30), size, 12.0, first) for size in ((200, 80), (90, 50)) for first in ((), (2, 3))],
    )
    yield (
        spark.spark,
        [
            ((0.0, 1.0, NAN, -0.5, 0.001), w, h, gap, marked)
            for w, h in ((20, 6), (5, 4), (0, 0))
            for gap in (0, 1)
            for marked in (None, 1)
        ],
    )
    yield spark.row_norms, [((0, 2), (np.ones((2, 4), np.float32), np.full((1, 4), 2, np.float32)), (2, 1, 0))]
    yield colormap.rgb, [("#102030",), ("#ffffff",)]
    table = colormap.signed_table("#62b5ff", "#121417", "#ffaa54", "#ff00ff")
    yield colormap.signed_table, [("#62b5ff", "#121417", "#ffaa54", "#ff00ff")]
    yield colormap.magnitude_table, [("#121417", "#62b5ff", "#ffffff", "#ff00ff")]
    yield colormap.blend, [(("#000000", "#ffffff"), count) for count in (1, 2, 5)]
    values = np.array([[-9, -2, -1, -0.001, 0, 0.5, 1.999, 2, 50, NAN, INF, -INF]], np.float32)
    yield colormap.signed_index, [(values, limit) for limit in (0.0, 1.0, 2.0, NAN)]
    yield colormap.magnitude_index, [(values, limit) for limit in (0.0, 1.0, 2.0, NAN)]
    yield colormap.larger, [(values, values[:, ::-1])]
    yield (
        colormap.robust_limit,
        [(values,), (np.linspace(0, 1, 999, dtype=np.float32),), (values[:, 9:],), (values[:0],)],
    )
    yield colormap.contrast_text, [(table, "#000000", "#ffffff")]
    yield grid.present, [(GRID,), (NO_GRID,)]
    yield grid.shared_limit, [((GRID,),), ((NO_GRID,),), ((),)]
    yield grid.largest, [((GRID,),), ((NO_GRID,),), ((),)]
    yield grid.exact_from, [(GRID,), (NO_GRID,)]
    yield (
        grid.find,
        [(GRID, x, y, w, h) for w, h in ((30, 20), (5, 3)) for x in (-1, 0, 4, 17, 29) for y in (0, 2, 11, 19)],
    )
    yield grid.row_span, [(GRID, layer, head, 20) for layer in (0, 4, 7) for head in (0, 1)]
    yield grid.column_span, [(GRID, place, 30) for place in (0, 1, 8, 16, 17, 40)]
    yield grid.layer_spans, [(GRID, 20), (GRID, 3), (NO_GRID, 20)]
    yield grid.paint, [(GRID, w, h, 10.0, table) for w, h in ((8, 6), (30, 20))]
    yield ghost.shares, [(np.array([[0, 2, 3]]), per, n) for per, n in ((2, 5), (4, 12), (4, 9))]
    yield ghost.lines, [(4, 6, left, top, 3) for left in (0, 2) for top in (0, 1)]
    yield ghost.foot, [(np.array([0, 0.01, 0.5, 1], np.float32), height) for height in (1, 9)]
    yield ghost.overlay, [(SHARE, low, high, 8, 6, HATCH) for low, high in ((0, 14), (3, 6), (0, 2), (14, 20))]
    yield SHARE.is_gone, [(row, column) for row in (0, 3) for column in range(6)]
    yield attention.attention_indices, [(PIECE, kind) for kind in (attention.LOG, attention.PER_HEAD, attention.LINEAR)]
    yield attention.head_limits, [(PIECE,), (WITHOUT_TOP,)]
    yield attention.top_positions, [(piece, head) for piece in (PIECE, WITHOUT_TOP) for head in (-1, 0, 7, 8)]
    yield attention.sinks, [(PIECE,), (WITHOUT_TOP,)]
    yield attention.extent, [(PIECE,)]
    yield attention.span_of, [(PIECE, position) for position in (0, 1, 2, 6, 11, 12, 40)]
    yield attention.weight_at, [(PIECE, position, head) for position in (0, 1, 5, 11, 12) for head in (0, 7)]
    yield attention.received, [(PIECE, position) for position in (0, 1, 5, 11, 12)]
    yield attention.kv_head_of, list(product((0, 1, 5), (1, 2, 4)))
    yield attention.group_borders, list(product((1, 8, 6), (1, 2, 4)))
    yield attention.masses, [(samples.attention_summary(3), layer, np.full(8, 0.5)) for layer in (0, 5)]
    yield token_range.covers, list(product(((0.0, 9.0), (2.0, 5.0)), ((0.0, 9.0), (2.0, 5.0), (1.0, 4.0))))


def test_the_arithmetic_of_pictures_answers_as_approved() -> None:
    lines: list[str] = []
    for function, asked in calls():
        name = getattr(function, "__qualname__", "").replace("<lambda>", "").rpartition(".<locals>.")[2]
        told: dict[str, list[str]] = {}
        for arguments in asked:
            given = [one for one in arguments if not (callable(one) or isinstance(one, np.ndarray | Struct))]
            try:
                found = in_words(function(*arguments))
            except (IndexError, ValueError, KeyError, ZeroDivisionError) as error:
                found = type(error).__name__
            told.setdefault(found, []).append(in_words(given)[1:-1])
        lines += [name, *(f"  {found}  ← {' | '.join(dict.fromkeys(given))}" for found, given in told.items())]
    approve(APPROVED / "answers.txt", lines)
