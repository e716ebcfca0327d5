"""Answers to measurements, made by hand: the last step of a run of twenty, with one number of ours in each."""

from __future__ import annotations

import numpy as np

from engine.spec.cache import CacheSpec
from engine.wire.measurements import (
    CheckParity,
    DamageMap,
    MapDamage,
    MeasureRegret,
    ParityReport,
    Regret,
    Shift,
    TensorDamage,
    WhatIf,
    WhatIfAnswer,
)
from engine.wire.records import Candidate
from tests.app import samples

LAYERS, HEADS, KV_HEADS, DIM = samples.LAYERS, samples.HEADS, samples.KV_HEADS, samples.HEAD_DIM


def what_if(request: WhatIf, kl: float) -> WhatIfAnswer:
    listed = (Candidate(7, " cat", -1.0, 0.4, 0.0),)
    shifts = (Shift(7, " cat", 0.6, 0.4, 0, 0),)
    return WhatIfAnswer(request, 20, kl, 1.5, False, listed, listed, 0.5, 4096, 1024, 3.0, "", shifts)


def parity(request: CheckParity, kl: float) -> ParityReport:
    steps, ones = np.arange(21), np.ones(21, np.int64)
    differences = np.full(21, kl, np.float32)
    return ParityReport(
        request, CacheSpec(), "float32", steps, steps + 3, differences, differences, ones, 0 * ones, 1e-3,
        "departs", 2, "values", 7, 12.0,
    )  # fmt: skip


def damage(request: MapDamage, kl: float) -> DamageMap:
    tokens = np.full((LAYERS, KV_HEADS, 23), min(kl, 1), np.float32)
    channels = np.full((LAYERS, KV_HEADS, DIM), min(kl, 1), np.float32)
    heads = np.full((LAYERS, KV_HEADS), 0.5, np.float32)
    tensor = TensorDamage(tokens, channels, heads)
    by_layer = np.full(LAYERS, kl, np.float32)
    attention = np.full((LAYERS, HEADS), 0.1, np.float32)
    return DamageMap(
        request, tuple(range(LAYERS)), tensor, tensor, 1, attention, kl, by_layer, 4096, 1024, (), None, None, None,
        9.0, 20, 23,
    )  # fmt: skip


def regret(request: MeasureRegret, kl: float) -> Regret:
    rows = np.arange(23)
    return Regret(request, 20, rows, np.linspace(0, kl, 23), np.linspace(0, 1, 23), 0.5, 1.0)
