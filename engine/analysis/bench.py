"""The cache modes side by side: what each costs in time, saves in bytes, and does to the next-token distribution."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from msgspec import Struct

from engine.analysis.reference import measure
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted
from engine.wire.records import SweepRow, Unavailable

ROUNDS = 8


def go_on() -> None:
    """What is called before every step where nobody can cancel; another one raises to end the measurement."""


@dataclass(frozen=True)
class Yardstick:
    """Greedy tokens after a prompt and the uncached logits `[steps, V]` that chose them."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor


def yardstick(
    model: LoadedModel, prompt_ids: tuple[int, ...], num_steps: int, check: Callable[[], None] = go_on
) -> Yardstick:
    """Greedy decoding in an exact cache, judged by one uncached forward of the model's own attention over all of it."""
    if len(prompt_ids) + num_steps > model.max_length:
        raise InputError(
            f"{len(prompt_ids)} prompt tokens and {num_steps} steps exceed the model's context of {model.max_length}: "
            "shorten one of them."
        )
    session = Session(model, CacheSpec(), observe=False)
    seq_id = session.submit(Prompt(token_ids=prompt_ids))
    chosen: list[int] = []
    while len(chosen) < num_steps:
        check()
        session.step()
        if session.is_prefilling:
            continue
        newest = session.logits(seq_id)
        assert newest is not None
        chosen.append(int(newest.argmax()))
        session.force(seq_id, (chosen[-1],))  # on, even past an end of text
    ids = torch.tensor([[*prompt_ids, *chosen[:-1]]], device=model.device)
    logits = model.reference_logits(ids)[len(prompt_ids) - 1 :].float().cpu()
    return Yardstick(prompt_ids, tuple(chosen), logits)


def sweep(
    model: LoadedModel, specs: Mapping[str, CacheSpec], goal: Yardstick, check: Callable[[], None] = go_on
) -> Iterator[SweepRow | Unavailable]:
    """Every mode in turn on the same tokens. Stop iterating to stop: nothing outlives its own row."""
    for name, spec in specs.items():
        check()
        try:
            yield sweep_row(model, name, spec, goal, check)
        except InputError as error:
            yield Unavailable(name, str(error))


def sweep_row(
    model: LoadedModel, name: str, spec: CacheSpec, goal: Yardstick, check: Callable[[], None] = go_on
) -> SweepRow:
    """One mode, fed the yardstick's tokens. The rate is of decode steps alone, nothing observed."""
    spec = fitted(spec, len(goal.prompt_ids) + len(goal.token_ids))
    session = Session(model, spec, observe=False)
    seq_id = session.submit(Prompt(token_ids=goal.prompt_ids))
    session.force(seq_id, goal.token_ids)
    while session.is_prefilling:
        check()
        session.step()
    logits = [newest(session, seq_id)]
    seconds = 0.0
    for _ in range(len(goal.token_ids) - 1):
        check()
        began = time.perf_counter()
        session.step()
        seconds += time.perf_counter() - began
        logits.append(newest(session, seq_id))
    stacked = torch.stack(logits)
    found = measure(name, spec.is_exact, stacked, goal.logits, model.info.dtype)
    targets = torch.tensor(goal.token_ids)
    # the exact model's own greedy tokens: how sure a mode is of them, no perplexity of held-out text
    surprise = torch.nn.functional.cross_entropy(stacked, targets)
    return SweepRow(
        cache=name,
        kv_bytes=session.bytes().stored,
        tok_per_s=round((len(goal.token_ids) - 1) / seconds, 2) if seconds else 0.0,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        perplexity=float(surprise.exp()),
        max_abs_logit_diff=found.max_abs_logit_diff,
        lossless=found.lossless,
    )


def newest(session: Session, seq_id: int) -> torch.Tensor:
    logits = session.logits(seq_id)
    assert logits is not None
    return logits.float().cpu()


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
class Runner:
    """A mode that takes turns with others."""

    name: str
    session: Session
    prefill_ms: float
    round_ms: list[float]

    def run(self, steps: int) -> None:
        """A turn of so many steps."""
        began = time.perf_counter()
        for _ in range(steps):
            self.session.step()
        self.round_ms.append((time.perf_counter() - began) * 1e3 / steps)


def bench(
    model: LoadedModel, specs: Mapping[str, CacheSpec], prompt_ids: tuple[int, ...], num_steps: int
) -> Iterator[BenchRow | Unavailable]:
    """Modes take turns, a few steps each, the order swapped every round, so that what slows the machine slows all."""
    if len(prompt_ids) + num_steps > model.max_length:
        raise InputError(
            f"{len(prompt_ids)} prompt tokens and {num_steps} steps exceed the model's context of {model.max_length}."
        )
    runners: list[Runner] = []
    for name, spec in specs.items():
        try:
            runners.append(runner_of(model, name, spec, prompt_ids, num_steps))
        except InputError as error:
            yield Unavailable(name, str(error))
    rounds = min(ROUNDS, num_steps)
    for number in range(rounds):
        steps = num_steps * (number + 1) // rounds - num_steps * number // rounds
        for runner in list(runners if number % 2 == 0 else reversed(runners)):
            try:
                runner.run(steps)
            except InputError as error:  # full before the others: they go on
                runners.remove(runner)
                yield Unavailable(runner.name, str(error))
    yield from (bench_row(runner, runners[0]) for runner in runners)


def runner_of(model: LoadedModel, name: str, spec: CacheSpec, prompt_ids: tuple[int, ...], num_steps: int) -> Runner:
    session = Session(model, fitted(spec, len(prompt_ids) + num_steps), observe=False)
    seq_id = session.submit(Prompt(token_ids=prompt_ids))
    session.force(seq_id, tuple(prompt_ids[i % len(prompt_ids)] for i in range(num_steps)))
    began = time.perf_counter()
    while session.is_prefilling:
        session.step()
    return Runner(name, session, (time.perf_counter() - began) * 1e3, [])


def bench_row(runner: Runner, base: Runner) -> BenchRow:
    ratios = [theirs / mine for theirs, mine in zip(base.round_ms, runner.round_ms, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    ms = statistics.median(runner.round_ms)
    held = runner.session.bytes()
    return BenchRow(
        cache=runner.name,
        tok_per_s=round(1e3 / ms, 2),
        ms_per_step=round(ms, 3),
        prefill_ms=round(runner.prefill_ms, 1),
        kv_bytes=held.stored,
        reserved_bytes=held.reserved,
        base=base.name,
        ratio=round(statistics.median(ratios), 3),
        spread=round(quartiles[2] - quartiles[0], 3),
    )
