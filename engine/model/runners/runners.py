"""Chooses the runner that computes each forward of a model: the one that the user chose where possible, else the next
best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

from engine.cache.layers.build import compiled_static
from engine.errors import InputError, check_known
from engine.model.batch import Batch, Result
from engine.model.runners.compiled_step import CompiledStep, OwnForward
from engine.model.runners.compiler import Compiling, at_once, why_not_compiled
from engine.model.runners.decoder import FusedDecoder
from engine.model.runners.launch import Announce, Launches, recorder_of
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
        refused = tuple((name, each) for name in RUNNERS if (each := self.why_not(name)))
        pages = self.pages
        why: tuple[tuple[PagedAttentionName, str], ...] = (("pages", pages.why_not),) if pages.why_not else ()
        return RunnerState(self.chosen, refused, self.note, pages.chosen, why)

    @property
    def note(self) -> str:
        """Why the chosen runner or way of reading pages is not used; empty if it is."""
        gathers = self.pages.chosen == "pages" and self.pages.kernel is None and self.chosen in ("graph", "compile")
        recorded = f"{RUNNERS[self.chosen].label} read gathered pages where there is no GPU" if gathers else ""
        refused = self._compiled_step.refused if self._compiled_step else ""
        own = f"the steps are not compiled: {refused}" if refused else ""
        return "; ".join(filter(None, (self._runner_note, self.pages.note, recorded, own)))

    @property
    def _runner_note(self) -> str:
        row = RUNNERS[self.chosen]
        if why := self.why_not(row.name):
            return f"no {row.label} for this model, which runs through transformers: {why}"
        launches = self._launches.get(self._recorded)
        label = RUNNERS[self._recorded].label
        return f"no {label} {launches.note}: the fused decoder is used" if launches and launches.note else ""

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
        if not RUNNERS[name].needs:
            return ""
        if self.decoder is None:
            return f"it needs {RUNNERS['fused'].needs}"
        return self._why_not_compiled if name == "compile" else ""

    @cached_property
    def _why_not_compiled(self) -> str:
        """Cached, because it searches the disk and every step's status needs it."""
        return "" if self.decoder is None else why_not_compiled(self.decoder.device)

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
        if not batch.is_plain_step or len(batch.ids) > 1 or compiled_static(batch.cache) is None:
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
        launches = self._launches_of(decoder) if batch.is_plain_step else None
        recorded = None if launches is None else launches.run(batch)
        return recorded or Result(decoder(batch), named("fused", batch))

    def _launches_of(self, decoder: FusedDecoder) -> Launches | None:
        """The recorded steps of the chosen runner; None if it records none."""
        name = self._recorded
        if name not in ("graph", "compile"):
            return None
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
