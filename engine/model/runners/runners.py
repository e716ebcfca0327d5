"""Which runner computes the forwards of a model: the one chosen where it can, else the next best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import torch

from engine.errors import InputError
from engine.model.runners.decoder import Decoder
from engine.spec.runners import RUNNERS, RunnerName, check_runner
from engine.wire.events import RunnerState


class Runners:
    """The runners of one model. `chosen` is what somebody wants; what computed the forwards since `begin` is `used`."""

    def __init__(self, decoder: Decoder | None, chosen: RunnerName = "auto") -> None:
        self.decoder = decoder
        self.chosen: RunnerName = chosen
        self._used: list[str] = []

    @property
    def state(self) -> RunnerState:
        """What is chosen, and why others cannot be."""
        refused = ((name, self.why_not(name)) for name in RUNNERS)
        return RunnerState(self.chosen, tuple((name, why) for name, why in refused if why))

    @property
    def note(self) -> str:
        """What is said once of a choice that the model cannot have; empty of any other."""
        row = RUNNERS[self.chosen]
        why = self.why_not(row.name)
        return f"no {row.label} for this model, which runs through transformers: {why}" if why else ""

    def why_not(self, name: RunnerName) -> str:
        """Why the model cannot have a runner, empty where it can."""
        return f"it needs {RUNNERS[name].needs}" if name == "fused" and self.decoder is None else ""

    def choose(self, name: str) -> None:
        """From now on forwards are computed so; raises `InputError` where they cannot be."""
        check_runner(name)
        row = RUNNERS[name]  # type: ignore[index]
        if why := self.why_not(row.name):
            raise InputError(f"The runner '{name}' cannot compute this model: {why}. Use auto.")
        self.chosen = row.name

    @contextmanager
    def chosen_as(self, name: str) -> Iterator[None]:
        """Meanwhile that one is chosen, where the model can have it: a step is repeated as it was done."""
        before = self.chosen
        if name in get_args(RunnerName) and not self.why_not(RUNNERS[name].name):  # type: ignore[index]
            self.chosen = RUNNERS[name].name  # type: ignore[index]
        try:
            yield
        finally:
            self.chosen = before

    # ---- forwards ------------------------------------------------------------------------------------------------

    def decoder_for(self, ids: torch.Tensor, cache: Any) -> Decoder | None:
        """The fused decoder, if ids `[B, T]` are to go through it into that cache; None: through transformers."""
        decoder = None if self.chosen == "transformers" or cache is None else self.decoder
        found = decoder if decoder is not None and decoder.takes(ids) else None
        self._note("transformers" if found is None else "fused")
        return found

    def begin(self) -> None:
        """Forget which runners were used."""
        self._used.clear()

    @property
    def used(self) -> str:
        """Names of the runners that computed the forwards since `begin`, joined by +."""
        return "+".join(self._used)

    def _note(self, name: str) -> None:
        if name not in self._used:
            self._used.append(name)
