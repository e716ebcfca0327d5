"""Measures the speed of cache modes against each other: decode speed, time to the first token, and the overhead of a
step.

Modes take turns of a few steps each, in an order that is reversed every round, so that whatever slows the machine down
affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import cycle, islice
from typing import TypeVar

import torch
from msgspec.structs import replace

from engine.errors import Check, InputError, Progress, never_cancel
from engine.model.batch import Batch, Result
from engine.model.loader import LoadedModel
from engine.predict.capacity import is_endless
from engine.session.session import Session
from engine.spec.cache import CacheSpec, fitted
from engine.spec.model import runner_words
from engine.spec.sampling import Prompt
from engine.wire.measurements import BenchRefused, BenchRow

STARTS = 3  # measurements of the time to the first token
ROUNDS = 8  # decode turns of each mode
WARM_UP = 1  # decode steps that are not measured
MOST, MOST_SEQUENCES = 1 << 20, 1 << 10

M = TypeVar("M", bound=LoadedModel)
TOO_LARGE = (InputError, MemoryError, torch.OutOfMemoryError)


class TimedModel(LoadedModel):
    """A model that adds up in `forward_s` the time of its forward passes, until the device has finished them."""

    forward_s = 0.0

    def forward(self, batch: Batch) -> Result:
        began = time.perf_counter()
        result = super().forward(batch)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.forward_s += time.perf_counter() - began
        return result


def as_kind(kind: type[M], model: LoadedModel) -> M:
    """The same loaded model as an instance of a subclass."""
    return kind(**{field.name: getattr(model, field.name) for field in fields(model)})


@dataclass(frozen=True)
class BenchPoint:
    """One configuration in which modes are compared: `batch` sequences that start with `context` tokens each and grow
    by `num_steps`."""

    context: int
    batch: int
    num_steps: int

    @property
    def num_tokens(self) -> int:
        """Tokens of each sequence at the end."""
        return self.context + WARM_UP + self.num_steps


@dataclass(eq=False)
class Contender:
    """A cache mode that takes turns with others at one point, and its measurements: the time to the first token of each
    start; and of each turn the time per step and the share of it that was not spent in the model's forward pass."""

    name: str
    spec: CacheSpec
    model: TimedModel
    prompts: list[tuple[int, ...]]
    point: BenchPoint
    runner: str = ""  # names joined by +; empty: whichever the model chooses
    session: Session | None = None
    ttft_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)

    def take_turn(self, num_steps: int, check: Check) -> None:
        """Start again if `num_steps` is 0, else take a turn of that many steps, with the given runner. Raises
        `InputError` if the model cannot use that runner."""
        runners = self.model.runners
        for name in self.runner.split("+") if self.runner else ():
            why = runners.pages.why_not if name == "pages" else runners.why_not(name)  # type: ignore[arg-type]
            if why:
                raise InputError(f"This model cannot have {runner_words(name)}: {why}.")
        with runners.chosen_as(self.runner):
            self.run(num_steps, check) if num_steps else self.start(check)

    def start(self, check: Check) -> None:
        """Read the prompts in a new session until every sequence has its first token, and record the time."""
        self.session = None  # frees its memory before the new session allocates
        self._check_context()
        session = Session(self.model, sized(self.spec, self.point), capture="off")
        began = time.perf_counter()
        for ids in self.prompts:
            seq_id = session.submit(Prompt(token_ids=ids, has_start=True))
            session.force(seq_id, tuple(islice(cycle(ids), self.point.num_steps + WARM_UP + 1)))
        while session.is_prefilling:
            self._check_together(session.step(check).phase == "prefill")
        self.ttft_ms.append((time.perf_counter() - began) * 1e3)
        self.session = session

    def run(self, num_steps: int, check: Check) -> None:
        """Take a turn of `num_steps` decode steps and record it. The first turn begins with a warm-up step."""
        assert self.session is not None
        if not self.step_ms:
            self.session.step()
        seconds, self.model.forward_s = 0.0, 0.0
        for _ in range(num_steps):
            check()
            self._check_room(self.session)
            began = time.perf_counter()
            record = self.session.step()
            seconds += time.perf_counter() - began
            self._check_runner(record.runner)
            self._check_together(len(record.sequences) == self.point.batch)
        self.step_ms.append(seconds * 1e3 / num_steps)
        self.overhead.append(max(0.0, 1 - self.model.forward_s / seconds))

    def _check_runner(self, used: str) -> None:
        if self.runner and not set(self.runner.split("+")) <= set(used.split("+")):
            note = self.model.runners.note
            raise InputError(f"It was computed by {runner_words(used)}{f': {note}' if note else ''}.")

    def _check_context(self) -> None:
        limit, point = self.model.max_length, self.point
        is_over = point.num_tokens > limit and not is_endless(self.spec, self.model.info)
        if is_over or point.context > limit:
            raise InputError(
                f"{point.context:,} tokens and {point.num_steps + WARM_UP:,} steps exceed the model's "
                f"context of {limit:,}: shorten one of them."
            )

    def _check_room(self, session: Session) -> None:
        if not session.has_work:
            held = max(sequence.num_tokens for sequence in session.sequences)
            raise InputError(f"The cache is full after {held:,} tokens: give it more room.")

    def _check_together(self, is_together: bool) -> None:
        """Raise `InputError` if some sequences waited while others decoded, because the pool is too small: such times
        would be wrong."""
        if not is_together:
            raise InputError(
                f"The page pool does not hold {self.point.batch} sequences of {self.point.num_tokens:,} tokens: "
                "give it more pages."
            )

    def row(self, base: Contender) -> BenchRow:
        """Summarise the measurements; `ratio` is the speed relative to `base`, turn by turn."""
        assert self.session is not None
        speeds = [1e3 * self.point.batch / ms for ms in self.step_ms]
        ratios = [theirs / own for theirs, own in zip(base.step_ms, self.step_ms, strict=True)]
        held, info = self.session.bytes(), self.model.info
        return BenchRow(
            cache=self.name,
            context=self.point.context,
            batch=self.point.batch,
            tok_per_s=round(1e3 * self.point.batch / statistics.median(self.step_ms), 2),
            spread=round(quartile_range(speeds), 2),
            ms_per_step=round(statistics.median(self.step_ms), 3),
            ttft_ms=round(statistics.median(self.ttft_ms), 1),
            kv_bytes=held.stored,
            reserved_bytes=held.reserved,
            overhead_ratio=round(statistics.median(self.overhead), 3),
            base=base.name,
            ratio=round(statistics.median(ratios), 3),
            ratio_spread=round(quartile_range(ratios), 3),
            num_steps=self.point.num_steps,
            num_turns=len(self.step_ms),
            device=info.device,
            dtype=info.dtype,
        )


def bench(
    model: LoadedModel,
    specs: Mapping[str, CacheSpec],
    contexts: tuple[int, ...],
    num_steps: int,
    batches: tuple[int, ...] = (1,),
    prompt_ids: tuple[int, ...] | None = None,
    check: Check = never_cancel,
    runners: Mapping[str, str] | None = None,
) -> Iterator[Progress | BenchRow | BenchRefused]:
    """Yield a row for every mode, context and batch, and progress (turns done, of all turns) in between.

    `check` is called before every step and raises to cancel. `prompt_ids`, whose length is then the context, replace
    the synthetic tokens. `runners` are those of the modes, by name, that shall not use the model's own choice.
    """
    check_sizes(specs, contexts, num_steps, batches)
    timed = as_kind(TimedModel, model)
    points = [BenchPoint(context, batch, num_steps) for context in contexts for batch in batches]
    turns = len(specs) * (STARTS + min(ROUNDS, num_steps))
    for number, point in enumerate(points):
        # a context longer than the model's is refused by each mode
        ids = prompt_ids or synthetic_ids(model, min(point.context, model.max_length))
        prompts = [rotated(ids, number) for number in range(point.batch)]
        runner_of = runners or {}
        contenders = [Contender(n, spec, timed, prompts, point, runner_of.get(n, "")) for n, spec in specs.items()]
        for piece in compare(contenders, point, check):
            yield piece if not isinstance(piece, int) else (number * turns + piece, len(points) * turns)


def compare(contenders: list[Contender], point: BenchPoint, check: Check) -> Iterator[int | BenchRow | BenchRefused]:
    """Let the modes take turns at one point. Yields the number of turns taken, each mode that has to stop, and at the
    end a row for each of the others."""
    rounds = min(ROUNDS, point.num_steps)
    left, done = list(contenders), 0
    for number in range(STARTS + rounds):
        turn = number - STARTS
        steps = point.num_steps * (turn + 1) // rounds - point.num_steps * turn // rounds
        for each in left if number % 2 == 0 else left[::-1]:
            try:
                each.take_turn(0 if turn < 0 else steps, check)
            except TOO_LARGE as error:
                each.session, left = None, [other for other in left if other is not each]
                yield BenchRefused(each.name, point.context, point.batch, reason_of(error))
            done += 1
            yield done
    yield from (each.row(left[0]) for each in left)


def reason_of(error: Exception) -> str:
    """The reason in words why a mode cannot run."""
    return str(error) if isinstance(error, InputError) else "There is not enough memory for it: take a shorter context."


def sized(spec: CacheSpec, point: BenchPoint) -> CacheSpec:
    """The spec with just the room that the point needs, if the layout reserves room at once and no size is given."""
    if not spec.is_paged or spec.num_pages is not None:
        return fitted(spec, point.num_tokens)
    pages_each = -(-point.num_tokens // spec.page_size)
    return replace(spec, num_pages=point.batch * (pages_each + 1))  # the null page, and one spare page per sequence


def check_sizes(
    specs: Mapping[str, CacheSpec], contexts: tuple[int, ...], num_steps: int, batches: tuple[int, ...]
) -> None:
    """Raise `InputError` if there is nothing to measure, or if a size is out of range."""
    if not specs:
        raise InputError("No caches are named, so there is nothing to compare: name some.")
    sizes = (("tokens", contexts, MOST), ("sequences", batches, MOST_SEQUENCES), ("steps", (num_steps,), MOST))
    for what, numbers, most in sizes:
        if not numbers or min(numbers) < 1:
            raise InputError(f"{min(numbers, default=0):,} {what} is nothing to measure: give 1 or more.")
        if max(numbers) > most:
            raise InputError(f"{max(numbers):,} {what} is beyond measuring: give at most {most:,}.")


def synthetic_ids(model: LoadedModel, count: int) -> tuple[int, ...]:
    """Reproducible token ids spread over the vocabulary; their meaning does not influence time and bytes."""
    vocab = model.vocab_size
    return tuple(2 + i * 7919 % max(1, vocab - 2) for i in range(count)) if vocab > 2 else (0,) * count


def rotated(ids: tuple[int, ...], by: int) -> tuple[int, ...]:
    """The same tokens, beginning at index `by`, so that sequences of a batch do not share a prefix."""
    by %= len(ids)
    return ids[by:] + ids[:by]


def quartile_range(values: list[float]) -> float:
    """The interquartile range of the values; 0 for a single one."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
