"""Checks that the steps of a run do not make the host wait for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from engine.analysis.device_models import Verdict, token_ids
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.presets import cache_preset
from engine.spec.runners import RunnerName
from engine.spec.sampling import NEWEST_DRAWS, LogitBias, Prompt, SamplingParams
from engine.spec.tuning import fitted

WAITED: Final[tuple[tuple[str, RunnerName], ...]] = (
    ("growing", "auto"), ("paged", "auto"), ("paged", "transformers"), ("h2o", "auto"),
)  # fmt: skip
LENGTHS = (40, 44)  # no step of the run is the first of a bucket, which is verified and therefore waited for
WARM_UPS, STEPS = 6, 10


@dataclass(frozen=True, eq=False)
class WaitsCheck:
    """Checks that decode steps of two sequences, one with biased logits, contain no operation that makes the host wait
    for the device. The chosen token is copied asynchronously and waited for by its event."""

    model: LoadedModel
    cache: str
    runner: RunnerName

    def __call__(self) -> tuple[Verdict, str]:
        session = Session(self.model, fitted(cache_preset(self.cache).spec, sum(LENGTHS), share=0.5))
        steered = SamplingParams(0.8, seed=1, top_p=0.9, bias=LogitBias(((5, 1.0),), (6, 7)), draws=NEWEST_DRAWS)
        for length, sampling in zip(LENGTHS, (SamplingParams(), steered), strict=True):
            session.submit(Prompt(token_ids=token_ids(length), sampling=sampling))
        name = "" if self.runner == "auto" else self.runner
        with self.model.runners.chosen_as(name):
            while session.is_prefilling:
                session.step()
            for _ in range(WARM_UPS):
                session.step_late()
            with no_waits():
                for _ in range(STEPS):
                    session.step_late()
        session.finish_records()
        session.close()
        return "ok", f"{STEPS} steps without one"


@contextmanager
def no_waits() -> Iterator[None]:
    """Within this context torch raises `RuntimeError` if the host would wait for a GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
