"""Memory over the steps: peaks are marked, and unknown values are left out."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.draw.axis import StepAxis
from app.kit.chart import Curve, Dots, SelectedLine
from app.panels import bytes as memory
from tests.app import samples


def test_memory_over_the_steps_marks_each_peak_and_leaves_out_unknown_values() -> None:
    kib = 1024.0
    nan = float("nan")
    rows = np.array(
        [
            [kib, 4 * kib, nan, nan, nan, 64 * kib, nan],
            [8 * kib, 8 * kib, nan, nan, nan, 16 * kib, nan],
            [2 * kib, 8 * kib, nan, nan, nan, 32 * kib, nan],
        ]
    )
    chart = memory.memory_chart(rows, StepAxis((5, 9, 10)), 9)
    curves = [mark for mark in chart.marks if isinstance(mark, Curve)]
    peaks = [mark for mark in chart.marks if isinstance(mark, Dots)]
    assert [curve.y.tolist() for curve in curves] == [[10, 13, 11], [12, 13, 13], [16, 14, 15]]
    assert [curve.x.tolist() for curve in curves] == [[5, 6, 7]] * 3
    assert [(dot.x.tolist(), dot.y.tolist()) for dot in peaks] == [([6], [13]), ([6], [13]), ([5], [16])]
    assert chart.note == "peak: stored 8.0 KiB · reserved 8.0 KiB · process 64.0 KiB"
    assert memory.key_names(rows) == ("stored", "reserved", "", "", "", "process", "")
    assert SelectedLine(6) in chart.marks, "the second step, which is step 9"
    record = samples.step_record(3)
    held = replace(record.num_bytes, looking=0, weights=7, allocator=None, peak=9)
    row = memory.memory_row(replace(record, num_bytes=held))
    told = {name: size for name, size in zip(memory.NAMES, row, strict=True) if size == size}
    assert told == {
        "stored": held.stored, "reserved": held.reserved, "weights": 7, "process": held.process, "peak": 9
    }  # fmt: skip
    assert memory.step_words(samples.step_record(3)).startswith("step 3 · stored ")
