"""Decode steps of transformers' own forward over its static cache, compiled by torch.compile: for any architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.layers.build import CompiledStaticCache, compiled_static
from engine.errors import Cancelled, first_line, is_of_device
from engine.model.attention import explicit_weights
from engine.model.batch import Batch, Result
from engine.model.runners.compiler import Compiler, Compiling, why_not_compiled
from engine.model.runners.launch import Announce, is_near, shortage_in

# runs a compilation: in this thread, or in another one while this one waits, and raises, for a cancel


OwnForward = Callable[[Batch], torch.Tensor]  # the newest logits [B, 1, V], computed by transformers

Outputs = tuple[torch.Tensor, dict[int, torch.Tensor]]  # logits, weights by layer

LABEL = "Compiling the model's decode step"


class CompiledStep:
    """Computes a decode step of transformers' forward through torch.compile. If that fails, `refused` gives the reason,
    and steps run uncompiled, with the same rows.

    The first step after a compilation also runs uncompiled, which checks that the numbers agree. torch compiles again
    when the kind of arguments changes: once a window is full, or when attention weights are recorded.
    """

    def __init__(
        self,
        own: OwnForward,
        device: torch.device,
        announce: Announce,
        compiling: Compiling,
    ) -> None:
        self._own, self._telling = own, announce
        self._step = Compiler(self._computed, compiling)
        self.refused = why_not_compiled(device)
        self._is_tried = False  # torch may reuse code that it compiled for another model of the same class

    def run(self, batch: Batch) -> Result | None:
        """The result of one more token `[1, 1]`; None, and nothing is done, where the step cannot be compiled."""
        cache, probe = batch.cache, batch.probe
        rows = None if self.refused else compiled_static(cache)
        if rows is None:
            return None
        # cloned, as other kinds of tensors would cause a recompilation
        ids, shows = batch.ids.clone(), probe is not None
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
        return Result(logits, ("transformers",) if self.refused else ("transformers", "compile"))

    def _first(self, ids: torch.Tensor, cache: Any, rows: CompiledStaticCache, shows: bool) -> Outputs | None:
        """Compile, and compute the first step both ways; returns the uncompiled numbers."""
        kept = rows.copy_state()
        try:
            with self._telling(LABEL):
                self._step.compile(ids, cache, shows)
                found = self._step.run(ids, cache, shows)  # the first call finishes the compilation
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
            self.refused = "compiled steps give other numbers than uncompiled ones"
        return expected

    def _computed(self, ids: torch.Tensor, cache: Any, shows: bool) -> Outputs:
        """The logits, and the newest query's weights `[1, H, S]` of each layer that records them."""
        probe = Probe() if shows else None
        logits = self._own(Batch(ids, cache, probe))
        if probe is None:
            return logits, {}
        weights = dict(probe.weights)
        for layer, seen in probe.seen.items():
            mask = None if seen.mask is None else seen.mask[:, :, None]
            weights[layer] = explicit_weights(seen.query[:, :, None], seen.keys, mask, seen.scale, None, None)[:, :, 0]
        return logits, weights


def are_near(found: Outputs, expected: Outputs) -> bool:
    """Whether two outputs differ by no more than the rounding of the model's dtype. Attention weights are compared in
    it too: they are float32, but computed from queries and keys in that dtype."""
    dtype = expected[0].dtype
    parts = [(found[0], expected[0]), *((found[1][layer], each) for layer, each in expected[1].items())]
    return all(is_near(one.to(dtype), other.to(dtype)) for one, other in parts)
