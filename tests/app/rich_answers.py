"""Answers to measurements of the rich run, in which every number differs from every other."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from app.models import Models
from engine.spec.cache import cache_preset
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.grid import SweepMode, SweepText, TextKind
from engine.spec.sampling import Prompt
from engine.wire.measurements import (
    Bench,
    Benched,
    CheckParity,
    DamageMap,
    LayerPlanStep,
    MapDamage,
    MeasureRegret,
    ParityReport,
    Regret,
    Shift,
    Sweep,
    SweepRow,
    Swept,
    TensorDamage,
    Unavailable,
    WhatIf,
    WhatIfAnswer,
)
from tests.app import samples
from tests.app.panels.bench.rows import ROWS
from tests.app.rich import SPEC, rich_models

KIVI = cache_preset("kivi-2").spec
CHOSEN = Coding("int8")  # what the panel of codecs has at its start
LAYERS, KV_HEADS, DIM = samples.LAYERS, samples.KV_HEADS, samples.HEAD_DIM


def what_if(request: WhatIf) -> WhatIfAnswer:
    """The second candidate becomes the first, and the fifth falls to rank 30."""
    before = samples.candidates(3, 5)
    probs = [before[1].prob, *(one.prob * 0.9 for one in (before[0], *before[2:]))]
    order = [before[1], before[0], *before[2:]]
    after = tuple(replace(one, prob=prob, sampled_prob=prob) for one, prob in zip(order, probs, strict=True))
    ranks = (1, 0, 2, 3, 30)
    shifts = tuple(Shift(c.token_id, c.text, c.prob, c.prob * 0.8, n, ranks[n]) for n, c in enumerate(before))
    return WhatIfAnswer(request, 10, 0.375, 1.5, True, before, after, 0.625, 4096, 1024, 3.25, "a note", shifts)


def parity(request: CheckParity) -> ParityReport:
    steps = np.array([0, 1, 2, 3, 6, 8, 9, 10])
    differences = np.array([0, 1e-5, 2e-4, 0.002, 0.03, 0.4, 2.5, 0.0007], np.float32)
    return ParityReport(
        request, SPEC, "bfloat16", steps, steps + 4, differences, differences**2, np.array([1, 1, 1, 1, 0, 1, 0, 1]),
        np.array([0, 0, 0, 1, 1, 1, 0, 0]), 1e-3, "departs", 2, "values", 7, 12.5,
    )  # fmt: skip


def damage(request: MapDamage) -> DamageMap:
    def tensor(scale: float) -> TensorDamage:
        heads = scale * (1 + np.arange(LAYERS)[:, None] + 0.1 * np.arange(KV_HEADS)[None]).astype(np.float32)
        tokens = (heads[:, :, None] * (1 + np.arange(10)) / 40).astype(np.float32)
        channels = (heads[:, :, None] * (1 + np.arange(DIM)) / 160).astype(np.float32)
        tokens[2, 2:] = channels[2, 2:] = np.nan  # a layer with fewer heads
        return TensorDamage(tokens, channels, heads)

    plan = tuple(
        LayerPlanStep(
            LayerCoding(n, Coding("int8" if n % 2 else "exact"), Coding("kivi-4" if n > 3 else "fp8")),
            0.01 * (n + 1),
            1000 + 111 * n,
        )
        for n in range(LAYERS)
    )  # fmt: skip
    attention = (0.01 * (1 + np.arange(LAYERS * samples.HEADS))).reshape(LAYERS, samples.HEADS).astype(np.float32)
    by_layer = np.array([0.5, 0.25, 0.125, 0.75, 0.0625, 0.03], np.float32)
    codec = CodecSpec(layers=tuple(one.coding for one in plan))
    return DamageMap(
        request, tuple(range(LAYERS)), tensor(0.1), tensor(0.2), 1, attention, 0.875, by_layer, 40_960, 10_240, plan,
        codec,
        0.0625, 7_665, 9.5, 10, 10,
    )  # fmt: skip


def regret(request: MeasureRegret) -> Regret:
    rows = np.arange(10)
    return Regret(
        request,
        10,
        rows,
        (0.05 * (rows - 3.0) ** 2).astype(np.float32),
        np.linspace(1, 0, 10, dtype=np.float32) ** 2,
        -0.375,
        21.5,
    )


def sweep_rows() -> tuple[SweepRow | Unavailable, ...]:
    def row(cache: str, n: int, text: str, kind: TextKind, recall: float | None = None) -> SweepRow:
        return SweepRow(
            cache, 100_000 - 9_000 * n, 40.0 + n, 0.0012345 * n, 1 - 0.05 * n, 5.5 + n, 0.1 * n, n < 2, text, kind,
            recall, 11, 8,
        )  # fmt: skip

    return (
        row("dynamic", 0, "live", "greedy"), row("int8", 2, "live", "greedy"), row("kivi-2", 5, "live", "greedy"),
        Unavailable("static", "too long for it", "live"),
        row("dynamic", 1, "a story", "given"), row("int8", 3, "a story", "given"),
        row("kivi-2", 7, "a fact", "recall", 0.25),
    )  # fmt: skip


def measured_models() -> Models:
    """The rich run with an answer to everything; the what-if is of KIVI-2."""
    models = rich_models()
    known = models.measurements
    questions: tuple[tuple[Any, Any, Any], ...] = (
        (known.what_if, WhatIf(0, KIVI, id=1), what_if), (known.parity, CheckParity(0, id=2), parity),
        (known.damage, MapDamage(0, CodecSpec(CHOSEN, CHOSEN), budget_bytes=8_000, id=3), damage),
        (known.regret, MeasureRegret(0, SPEC, id=4), regret),
    )  # fmt: skip
    for measurement, question, answer in questions:
        measurement.ask(question, 10)
        measurement.take(replace(answer(question), reply_to=question.id))
    text = SweepText("live", Prompt(token_ids=(1, 2, 3)))
    modes = tuple(SweepMode(name, cache_preset(name).spec) for name in ("dynamic", "int8", "kivi-2", "static"))
    swept = Sweep((text,), 8, modes, id=5)
    known.sweep.ask(swept, 10)
    rows = sweep_rows()
    for number, row in enumerate(rows, 1):
        known.sweep.take(Swept(swept, row, number == len(rows), reply_to=5))
    compared = tuple((name, cache_preset(name).spec) for name in ("dynamic", "int8", "static"))
    bench = Bench(compared, (128, 512), 32, (1, 4), id=6)
    known.bench.ask(bench, 10)
    found: tuple[Any, ...] = ROWS
    for number, one in enumerate(found, 1):
        known.bench.take(Benched(bench, one, number == len(ROWS), reply_to=6))
    return models
