"""Faults to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from engine.cache.layers.layer import GrowingLayer
from engine.look.measures import PackedMeasures
from engine.model.batch import Result
from engine.session.stepper import LaunchedAhead

LAUNCH, APPEND = LaunchedAhead.of, GrowingLayer.append


def changed(real: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same, with another result."""
    return lambda *args, **named: make(real(*args, **named))


def of_other_tokens(forwards: Any, work: Any, chosen: torch.Tensor, *rest: Any) -> Any:
    return LAUNCH(forwards, work, chosen - 1, *rest)


def of_other_values(self: GrowingLayer, keys: torch.Tensor, values: torch.Tensor) -> Any:
    """Rows behind the first ones, which the forward without a cache writes too."""
    held_keys, held_values = APPEND(self, keys, values)
    return held_keys, held_values if self.length == keys.shape[2] else 1.5 * held_values


def of_other_logits(found: Result | None) -> Result | None:
    return found and found._replace(logits=1.1 * found.logits)


def of_other_bytes(measured: PackedMeasures) -> PackedMeasures:
    return replace(measured, packed=torch.zeros_like(measured.packed))
