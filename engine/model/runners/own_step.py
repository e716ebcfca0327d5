"""A decode step of transformers' own forward over its static cache, through torch.compile, of any architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.layers.compiled import CompiledStaticCache, compiled_static
from engine.errors import Cancelled, first_line, is_of_device
from engine.model.attention import explicit_weights
from engine.model.runners.compiler import Compiler, Compiling, why_not_compiled
from engine.model.runners.launch import Telling, is_near, shortage_in

OwnForward = Callable[[torch.Tensor, Any, Probe | None], torch.Tensor]  # ids [B, T], cache -> logits [B, 1, V]

Outputs = tuple[torch.Tensor, dict[int, torch.Tensor]]  # logits, weights by layer

LABEL = "Compiling the model's decode step"


class OwnStep:
    """`refused` says why it could not be compiled: then steps are computed as they stand, with the same rows.

    The first step behind a compilation is computed as it stands as well, and tells whether the numbers are near. torch
    compiles anew where the arguments are of another kind: once a window is full, or weights of attention are shown.
    """

    def __init__(
        self,
        own: OwnForward,
        device: torch.device,
        telling: Telling,
        compiling: Compiling,
    ) -> None:
        self._own, self._telling = own, telling
        self._step = Compiler(self._computed, compiling)
        self.refused = why_not_compiled(device)
        self._is_tried = False  # torch may have what it compiled for another model of the kind

    def __call__(self, ids: torch.Tensor, cache: Any, probe: Probe | None) -> torch.Tensor | None:
        """The logits `[1, 1, V]` of ids `[1, 1]`, and the newest weights to the probe; None, and nothing done, where
        the step cannot be compiled."""
        rows = None if self.refused else compiled_static(cache)
        if rows is None:
            return None
        ids, shows = ids.clone(), probe is not None  # a tensor of this forward: others are another kind of argument
        rows.write_lengths()
        found = self._step.run(ids, cache, shows) if self._is_tried else None
        if found is None:
            found = self._first(ids, cache, rows, shows)
        else:
            rows.count_row()
        if found is None:
            return None
        logits, weights = found
        if probe is not None:
            probe.weights.update(weights)
        return logits

    def _first(self, ids: torch.Tensor, cache: Any, rows: CompiledStaticCache, shows: bool) -> Outputs | None:
        """The first step behind a compilation: its own numbers, as they are without it."""
        kept = rows.copy_state()
        try:
            with self._telling(LABEL):
                self._step.compile(ids, cache, shows)
                found = self._step.run(ids, cache, shows)  # what is left of compiling is done with the first call
            if found is None:
                raise RuntimeError("it would have to be compiled at every step")
        except Cancelled:
            raise
        except Exception as error:  # a compiler can fail in more ways than can be named
            if (shortage := shortage_in(error)) is not None:
                raise shortage from None
            if is_of_device(error):
                raise
            self.refused = first_line(error)
            return None
        finally:
            rows.restore_state(kept)
        self._is_tried = True
        expected = self._computed(ids, cache, shows)
        if not are_near(found, expected):
            self.refused = "compiled, it gives other numbers than computed as it stands"
        return expected

    def _computed(self, ids: torch.Tensor, cache: Any, shows: bool) -> Outputs:
        """The logits, and the newest query's weights `[1, H, S]` of each layer that reports."""
        probe = Probe() if shows else None
        logits = self._own(ids, cache, probe)
        if probe is None:
            return logits, {}
        weights = dict(probe.weights)
        for layer, seen in probe.seen.items():
            mask = None if seen.mask is None else seen.mask[:, :, None]
            weights[layer] = explicit_weights(seen.query[:, :, None], seen.keys, mask, seen.scale, None, None)[:, :, 0]
        return logits, weights


def are_near(found: Outputs, expected: Outputs) -> bool:
    """Whether two outputs differ by the rounding of the model's dtype, in which weights of attention are compared too:
    they are in float32, and made of queries and keys in that dtype."""
    dtype = expected[0].dtype
    parts = [(found[0], expected[0]), *((found[1][layer], each) for layer, each in expected[1].items())]
    return all(is_near(one.to(dtype), other.to(dtype)) for one, other in parts)
