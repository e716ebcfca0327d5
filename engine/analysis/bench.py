"""The cache modes side by side: what each costs in time, saves in bytes, and does to the next-token distribution."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from msgspec import Struct

from engine.analysis.reference import Reference, measure
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.driver import ModeDriver, go_on
from engine.spec.cache import CacheSpec
from engine.spec.tuning import fitted
from engine.wire.measurements import SweepRow, Unavailable

ROUNDS = 8


def sweep(
    model: LoadedModel, specs: Mapping[str, CacheSpec], truth: Reference, check: Callable[[], None] = go_on
) -> Iterator[SweepRow | Unavailable]:
    """Every mode in turn on the same tokens. Stop iterating to stop: nothing outlives its own row."""
    for name, spec in specs.items():
        check()
        try:
            yield sweep_row(model, name, spec, truth, check)
        except InputError as error:
            yield Unavailable(name, str(error))


def sweep_row(
    model: LoadedModel, name: str, spec: CacheSpec, truth: Reference, check: Callable[[], None] = go_on
) -> SweepRow:
    """One mode, fed the tokens of the reference. The rate is of decode steps alone, nothing observed."""
    driver = ModeDriver(model, fitted(spec, len(truth.prompt_ids) + len(truth.token_ids)), len(truth.prompt_ids))
    logits, seconds = [driver.prefill(truth.prompt_ids, check).float().cpu()], 0.0
    for token_id in truth.token_ids[:-1]:
        check()
        began = time.perf_counter()
        newest = driver.feed([token_id])
        seconds += time.perf_counter() - began
        logits.append(newest.float().cpu())
    stacked = torch.stack(logits)
    found = measure(name, spec.is_exact, stacked, truth.logits, model.info.dtype)
    # the exact model's own greedy tokens: how sure a mode is of them, no perplexity of held-out text
    surprise = torch.nn.functional.cross_entropy(stacked, torch.tensor(truth.token_ids))
    return SweepRow(
        cache=name,
        kv_bytes=driver.bytes().stored,
        tok_per_s=round((len(truth.token_ids) - 1) / seconds, 2) if seconds else 0.0,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        perplexity=float(surprise.exp()),
        max_abs_logit_diff=found.max_abs_logit_diff,
        lossless=found.lossless,
    )


# ---- bench -------------------------------------------------------------------------------------------------------


class BenchRow(Struct, frozen=True):
    """One mode among others on the same tokens. `ratio` is its speed over that of `base`, the first mode that ran to
    the end, median of rounds in which both took turns; `spread` is the difference of that ratio's quartiles."""

    cache: str
    tok_per_s: float
    ms_per_step: float
    prefill_ms: float
    kv_bytes: int
    reserved_bytes: int
    base: str
    ratio: float
    spread: float


@dataclass(eq=False)
class Contender:
    """A mode that takes turns with others; `token_ids` are still to be fed, one a step."""

    name: str
    driver: ModeDriver
    token_ids: Iterator[int]
    prefill_ms: float
    round_ms: list[float]

    def run(self, steps: int) -> None:
        """A turn of so many steps."""
        began = time.perf_counter()
        for token_id in islice(self.token_ids, steps):
            self.driver.feed([token_id])
        self.round_ms.append((time.perf_counter() - began) * 1e3 / steps)


def bench(
    model: LoadedModel, specs: Mapping[str, CacheSpec], prompt_ids: tuple[int, ...], num_steps: int
) -> Iterator[BenchRow | Unavailable]:
    """Modes take turns, a few steps each, the order swapped every round, so that what slows the machine slows all."""
    if len(prompt_ids) + num_steps > model.max_length:
        raise InputError(
            f"{len(prompt_ids)} prompt tokens and {num_steps} steps exceed the model's context of {model.max_length}."
        )
    contenders: list[Contender] = []
    for name, spec in specs.items():
        try:
            contenders.append(contender(model, name, spec, prompt_ids, num_steps))
        except InputError as error:
            yield Unavailable(name, str(error))
    rounds = min(ROUNDS, num_steps)
    for number in range(rounds):
        steps = num_steps * (number + 1) // rounds - num_steps * number // rounds
        for each in list(contenders if number % 2 == 0 else reversed(contenders)):
            try:
                each.run(steps)
            except InputError as error:  # full before the others: they go on
                contenders.remove(each)
                yield Unavailable(each.name, str(error))
    yield from (bench_row(each, contenders[0]) for each in contenders)


def contender(model: LoadedModel, name: str, spec: CacheSpec, prompt_ids: tuple[int, ...], num_steps: int) -> Contender:
    """A mode that has been fed the prompt."""
    driver = ModeDriver(model, fitted(spec, len(prompt_ids) + num_steps), len(prompt_ids))
    began = time.perf_counter()
    driver.prefill(prompt_ids)
    return Contender(name, driver, cycle(prompt_ids), (time.perf_counter() - began) * 1e3, [])


def bench_row(mine: Contender, base: Contender) -> BenchRow:
    ratios = [theirs / own for theirs, own in zip(base.round_ms, mine.round_ms, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    ms = statistics.median(mine.round_ms)
    held = mine.driver.bytes()
    return BenchRow(
        cache=mine.name,
        tok_per_s=round(1e3 / ms, 2),
        ms_per_step=round(ms, 3),
        prefill_ms=round(mine.prefill_ms, 1),
        kv_bytes=held.stored,
        reserved_bytes=held.reserved,
        base=base.name,
        ratio=round(statistics.median(ratios), 3),
        spread=round(quartiles[2] - quartiles[0], 3),
    )
