"""Chooses the runner that computes each forward of a model: the one that the user chose where possible, else the next
best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.layers.build import CompiledStaticCache, compiled_static
from engine.errors import Cancelled, InputError, check_known, first_line, is_of_device
from engine.model.attention import explicit_weights
from engine.model.batch import Batch, Result
from engine.model.runners.compiler import Compiler, Compiling, at_once, why_not_compiled
from engine.model.runners.decoder import FusedDecoder
from engine.model.runners.launch import Announce, Launches, is_near, recorder_of, shortage_in
from engine.model.runners.pages import PAGES, PagedAttention
from engine.spec.model import RUNNERS, PagedAttentionName, RunnerName, reads_in_place
from engine.wire.status import RunnerState


class Runners:
    """The runners of one model. `chosen` is the user's choice, and `compile_s` the seconds that torch.compile has taken
    so far."""

    def __init__(
        self, decoder: FusedDecoder | None, chosen: RunnerName = "auto", pages: PagedAttention | None = None
    ) -> None:
        self.decoder, self.pages = decoder, pages or PagedAttention()
        self.chosen: RunnerName = chosen
        self.announce: Announce = lambda label: nullcontext()  # announces that a step is being recorded or compiled
        self.pages.announce = lambda label: self.announce(label)
        self.compiling: Compiling = at_once
        self.compile_s = 0.0
        self.pages.compiling = self._compile_and_time
        self._launches: dict[str, Launches] = {}
        self._compiled_step: CompiledStep | None = None  # of the latest cache that asked for one

    @property
    def state(self) -> RunnerState:
        """The chosen runner, which others are impossible and why, and why another one is used."""
        pages = self.pages
        why: tuple[tuple[PagedAttentionName, str], ...] = (("pages", pages.why_not),) if pages.why_not else ()
        return RunnerState(self.chosen, tuple(self._refused.items()), self.note, pages.chosen, why)

    @property
    def note(self) -> str:
        """Why the chosen runner or way of reading pages is not used; empty if it is."""
        gathers = self.pages.chosen == "pages" and self.pages.kernel is None and self.chosen in ("graph", "compile")
        recorded = f"{RUNNERS[self.chosen].label} read gathered pages where there is no GPU" if gathers else ""
        refused = self._compiled_step.refused if self._compiled_step else ""
        own = f"the steps are not compiled: {refused}" if refused else ""
        launches, left = self._launches.get(self._recorded), ""
        if why := self.why_not(self.chosen):
            left = f"no {RUNNERS[self.chosen].label} for this model, which runs through transformers: {why}"
        elif launches is not None and launches.note:
            left = f"no {RUNNERS[self._recorded].label} {launches.note}: the fused decoder is used"
        return "; ".join(filter(None, (left, self.pages.note, recorded, own)))

    @property
    def _recorded(self) -> RunnerName:
        """The chosen runner; for `auto` on a GPU, the one that records steps (it checks each recording before it relies
        on it)."""
        return "graph" if self.chosen == "auto" and self._has_graphs else self.chosen

    @property
    def _has_graphs(self) -> bool:
        """Whether a recorded step is a CUDA graph, rather than the same operations run again."""
        return self.decoder is not None and self.decoder.device.type == "cuda"

    def why_not(self, name: RunnerName) -> str:
        """The reason why a runner is impossible for this model, empty where it is possible."""
        return self._refused.get(name, "")

    @cached_property
    def _refused(self) -> dict[RunnerName, str]:
        """Cached, because it searches the disk and every step's status needs it."""
        if self.decoder is None:
            return {row.name: f"it needs {RUNNERS['fused'].needs}" for row in RUNNERS.values() if row.needs}
        why = why_not_compiled(self.decoder.device)
        return {"compile": why} if why else {}

    def choose(self, name: str) -> None:
        """Set the runner from now on; raises `InputError` where it is impossible."""
        check_known("runner", name, RUNNERS)
        row = RUNNERS[name]  # type: ignore[index]
        if why := self.why_not(row.name):
            raise InputError(f"The runner '{name}' cannot compute this model: {why}. Use auto.")
        self.chosen = row.name
        if (launches := self._launches.get(self._recorded)) is not None:
            launches.try_again()

    @contextmanager
    def chosen_as(self, name: str) -> Iterator[None]:
        """While this context is open, use the runner and way of reading pages of a recorded `used` name, if possible: a
        step is to be repeated as it was computed. In a name joined by +, that is the runner that left to the others
        what it could not compute."""
        before, joined = (self.chosen, self.pages.chosen), name.split("+")
        meant = next((row.name for row in reversed(RUNNERS.values()) if row.name in joined), None)
        if meant is not None and not self.why_not(meant):
            self.chosen = meant
        if name:
            self.pages.chosen = "pages" if reads_in_place(name) else "gather"
        try:
            yield
        finally:
            self.chosen, self.pages.chosen = before

    # ---- forwards ------------------------------------------------------------------------------------------------

    def run(self, batch: Batch, own: OwnForward) -> Result:
        """The result of a batch from the chosen runner where that can compute it, else from the next best. `own` is
        transformers' forward, which computes any batch."""
        before = self.compile_s
        if batch.padding is None and (pages := self.pages.reader(batch.cache)) is not None:
            batch = replace(batch, pages=pages)
        found = self._compiled(batch, own) or self._decoded(batch) or Result(own(batch), named("transformers", batch))
        return found if self.compile_s == before else found._replace(compile_s=self.compile_s - before)

    def _compiled(self, batch: Batch, own: OwnForward) -> Result | None:
        """The result of a compiled step of transformers' own forward, for caches whose decode steps are to be compiled;
        None for others, and where it cannot be compiled."""
        if compiled_static(batch.cache) is None or len(batch.ids) > 1 or not batch.is_plain_step:
            return None
        if self._compiled_step is None:
            with self._time_compilation():  # this imports torch's compiler, which takes seconds
                self._compiled_step = CompiledStep(
                    own, batch.ids.device, self._announce_and_time, lambda work: self.compiling(work)
                )
        return self._compiled_step.run(batch)

    def _decoded(self, batch: Batch) -> Result | None:
        """The result of the fused decoder, its step recorded where possible; None where the decoder cannot compute the
        batch, or another runner was chosen."""
        decoder = None if self.chosen == "transformers" or batch.cache is None else self.decoder
        if decoder is None or batch.padding is not None or not decoder.takes(batch.ids):
            return None
        name, recorded = self._recorded, None
        if name in ("graph", "compile") and batch.is_plain_step:
            recorded = self._launches_of(name, decoder).run(batch)
        return recorded or Result(decoder(batch), named("fused", batch))

    def _launches_of(self, name: RunnerName, decoder: FusedDecoder) -> Launches:
        """The recorded steps of a runner that records some."""
        if name not in self._launches:
            recorder = recorder_of(name, decoder.device, lambda work: self.compiling(work))
            announce = self._announce_and_time if name == "compile" else lambda label: self.announce(label)
            self._launches[name] = Launches(decoder, recorder, announce)
        return self._launches[name]

    def _compile_and_time(self, work: Callable[[], None]) -> None:
        with self._time_compilation():
            self.compiling(work)

    @contextmanager
    def _announce_and_time(self, label: str) -> Iterator[None]:
        with self.announce(label), self._time_compilation():
            yield

    @contextmanager
    def _time_compilation(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.compile_s += time.perf_counter() - began

    def forget(self, cache: Any) -> None:
        """Drop the recordings of one cache; those of pages are shared by all sequences and stay."""
        for launches in self._launches.values():
            launches.forget(cache)


def named(name: str, batch: Batch) -> tuple[str, ...]:
    """The name of a runner, and "pages" if it reads pages in place."""
    return (name,) if batch.pages is None else (name, PAGES)


# ---- decode steps of transformers' own forward over its static cache, compiled by torch.compile ---------------------


OwnForward = Callable[[Batch], torch.Tensor]  # the newest logits [B, 1, V], computed by transformers
_Outputs = tuple[torch.Tensor, dict[int, torch.Tensor]]  # logits, weights by layer
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

    def _first(self, ids: torch.Tensor, cache: Any, rows: CompiledStaticCache, shows: bool) -> _Outputs | None:
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

    def _computed(self, ids: torch.Tensor, cache: Any, shows: bool) -> _Outputs:
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


def are_near(found: _Outputs, expected: _Outputs) -> bool:
    """Whether two outputs differ by no more than the rounding of the model's dtype. Attention weights are compared in
    it too: they are float32, but computed from queries and keys in that dtype."""
    dtype = expected[0].dtype
    parts = [(found[0], expected[0]), *((found[1][layer], each) for layer, each in expected[1].items())]
    return all(is_near(one.to(dtype), other.to(dtype)) for one, other in parts)
