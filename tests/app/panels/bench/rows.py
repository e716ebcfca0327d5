"""Rows of a bench, two of a mode among them and one refused."""

from __future__ import annotations

from engine.wire.measurements import BenchRefused, BenchRow


def row(cache: str, context: int, rate: float, batch: int = 1, ttft: float = 5.0, kv: int = 1024) -> BenchRow:
    return BenchRow(
        cache, context, batch, rate, 2.5, 1e3 * batch / rate, ttft, kv, 2 * kv, 0.25, "dynamic", rate / 40, 0.1, 32, 8,
        "cpu", "float32",
    )  # fmt: skip


ROWS = (
    row("dynamic", 512, 40, kv=1 << 20),
    row("int8", 512, 30, kv=1 << 18),
    row("dynamic", 128, 80),
    BenchRefused(
        "static", 2048, 1, "2,048 tokens and 33 steps exceed the model's context of 1,024: shorten one of them."
    ),
    row("int8", 128, 60, batch=4),
)
