"""Chooses the runner that computes each forward of a model: the one that the user chose where possible, else the next
best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.layers.compiled import compiled_static
from engine.errors import InputError
from engine.look.strip import Strip
from engine.model.runners.attending import HiddenRows
from engine.model.runners.compiled_step import CompiledStep, PlainForward
from engine.model.runners.compiler import Compiling, at_once, why_not_compiled
from engine.model.runners.decoder import FusedDecoder, LayerCallback
from engine.model.runners.launch import Announce, Launches
from engine.model.runners.pages import PAGES, PagedAttention, PageReader
from engine.model.runners.recorders import recorder_of
from engine.model.surprisal import Surprisal
from engine.spec.runners import RUNNERS, PagedAttentionName, RunnerName, check_runner, reads_in_place
from engine.wire.status import RunnerState


class Runners:
    """The runners of one model. `chosen` is the user's choice; `used` are those that computed the forwards since
    `begin`, and `compile_s` the seconds that torch.compile took in these."""

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
        self._used: list[str] = []

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
        check_runner(name)
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

    def forward(
        self,
        ids: torch.Tensor,
        cache: Any,
        probe: Probe | None,
        surprisal: Surprisal | None,
        check: Callable[[], None] | None,
        on_layer: LayerCallback | None,
        hidden_rows: HiddenRows | None,
        lengths: Sequence[int] | None,
        pages: PageReader | None = None,
        strip: Strip | None = None,
        own: PlainForward | None = None,
    ) -> torch.Tensor | None:
        """The newest logits `[B, 1, V]` of ids `[B, T]`, with the arguments of `FusedDecoder`; None, and nothing is
        done, where transformers must compute the forward. A recorded step measures what the `strip` asks for. `own` is
        transformers' forward, for caches whose decode steps are to be compiled."""
        is_plain = (
            on_layer is None
            and not hidden_rows
            and surprisal is None
            and not (probe and (probe.wants_more or probe.timer))
        )
        if own is not None and is_plain and ids.shape == (1, 1) and compiled_static(cache) is not None:
            logits = self._compiled_logits(ids, cache, probe, own)
            if logits is not None:
                return logits
        decoder = None if self.chosen == "transformers" or cache is None else self.decoder
        if decoder is None or not decoder.takes(ids):
            self._note("transformers", pages)
            return None
        if is_plain and ids.shape[1] == 1 and (launches := self._launches_of(decoder)) is not None:
            if check is not None:
                check()
            kernel = pages.kernel if pages is not None else None
            if (logits := launches.step(decoder, ids, cache, probe, lengths, kernel, strip)) is not None:
                self._note(self._recorded, pages if kernel is not None else None)
                return logits
        self._note("fused", pages)
        return decoder(ids, cache, probe, surprisal, check, on_layer, hidden_rows, lengths, pages)

    def _compiled_logits(
        self, ids: torch.Tensor, cache: Any, probe: Probe | None, own: PlainForward
    ) -> torch.Tensor | None:
        """The logits of a compiled step of transformers' own forward; None, and nothing is done, where it cannot be
        compiled."""
        if self._compiled_step is None:
            with self._time_compilation():  # this imports torch's compiler, which takes seconds
                self._compiled_step = CompiledStep(
                    own, ids.device, self._announce_and_time, lambda work: self.compiling(work)
                )
        logits = self._compiled_step(ids, cache, probe)
        if logits is not None:
            for name in ("transformers",) if self._compiled_step.refused else ("transformers", "compile"):
                self._note(name, None)
        return logits

    def _launches_of(self, decoder: FusedDecoder) -> Launches | None:
        """The recorded steps of the chosen runner; None if it records none."""
        name = self._recorded
        if name not in ("graph", "compile"):
            return None
        if name not in self._launches:
            recorder = recorder_of(name, decoder.device, lambda work: self.compiling(work))
            announce = self._announce_and_time if name == "compile" else lambda label: self.announce(label)
            self._launches[name] = Launches(recorder, announce)
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

    def begin(self) -> None:
        """Start a new count of the runners used and of the seconds spent compiling."""
        self._used.clear()
        self.compile_s = 0.0

    @property
    def used(self) -> str:
        """Names of the runners that computed the forwards since `begin`, joined by +, and "pages" if pages were read in
        place."""
        return "+".join(self._used)

    def _note(self, name: str, pages: PageReader | None) -> None:
        for each in (name,) if pages is None else (name, PAGES):
            if each not in self._used:
                self._used.append(each)
