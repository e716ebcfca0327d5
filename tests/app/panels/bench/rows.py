"""Rows of a bench, two of a mode among them and one refused; and the panel that shows them."""

from __future__ import annotations

from collections.abc import Sequence

from pytestqt.qtbot import QtBot

from app.kit.theme import load_fonts
from app.models import Models
from app.panels.bench import BenchOutcome, BenchView
from engine.wire.measurements import Bench, Benched, BenchRefused, BenchRow
from tests.app import samples


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


def bench_of(
    qtbot: QtBot, models: Models, request: Bench, rows: Sequence[BenchOutcome], width: int, *, is_done: bool = False
) -> BenchView:
    """The panel with these rows as the answers to a request; the last of them, if it `is_done`."""
    load_fonts()
    models.status.set(samples.status())
    view = BenchView(models)
    qtbot.addWidget(view)
    view.resize(width, 300)
    view.show()
    models.measurements.bench.ask(request, view.num_wanted(request))
    for each in rows:
        models.measurements.bench.take(Benched(request, each, is_done and each is rows[-1], reply_to=request.id))
    return view
