"""Cache modes against each other in time: decode speed, time to the first token, and how much of a step is overhead.

Modes take turns, a few steps each, the order swapped every round, so that what slows the machine slows all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import cycle, islice
from typing import Any, TypeVar

import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.predict.capacity import is_endless
from engine.session.driver import never_cancel
from engine.session.forward import vocabulary
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.runners import runner_words
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted
from engine.wire.measurements import BenchRefused, BenchRow

STARTS = 3  # how often the time to the first token is taken
ROUNDS = 8  # turns of each mode in decoding
WARM_UP = 1  # decode steps that count for nothing
MOST, MOST_SEQUENCES = 1 << 20, 1 << 10

M = TypeVar("M", bound=LoadedModel)
Progress = tuple[int, int]
TooLarge = (InputError, MemoryError, torch.OutOfMemoryError)


class TimedModel(LoadedModel):
    """A model that adds up how long its forwards take, `forward_s`, until the device has finished them."""

    forward_s = 0.0

    def forward(self, *arguments: Any, **options: Any) -> torch.Tensor:
        began = time.perf_counter()
        logits = super().forward(*arguments, **options)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.forward_s += time.perf_counter() - began
        return logits


def as_kind(kind: type[M], model: LoadedModel) -> M:
    """The same model as one of another kind."""
    return kind(**{field.name: getattr(model, field.name) for field in fields(model)})


@dataclass(frozen=True)
class BenchPoint:
    """Where modes are compared: `batch` sequences that begin with `context` tokens each and grow by `num_steps`."""

    context: int
    batch: int
    num_steps: int

    @property
    def num_tokens(self) -> int:
        """Tokens of each sequence in the end."""
        return self.context + WARM_UP + self.num_steps


@dataclass(eq=False)
class Contender:
    """A mode that takes turns with others in one place. What it measured: the time to the first token at each start;
    of each turn the time of a step, and the part of it that was not spent in the model's forward."""

    name: str
    spec: CacheSpec
    model: TimedModel
    prompts: list[tuple[int, ...]]
    place: BenchPoint
    way: str = ""  # runners joined by +; whatever is chosen where it is empty
    session: Session | None = None
    ttft_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)

    def turn(self, num_steps: int, check: Callable[[], None]) -> None:
        """Begin anew, or, with a number of steps, a turn of so many, in its way; refused where the model cannot have
        that."""
        runners = self.model.runners
        for name in self.way.split("+") if self.way else ():
            why = runners.pages.why_not if name == "pages" else runners.why_not(name)  # type: ignore[arg-type]
            if why:
                raise InputError(f"This model cannot have {runner_words(name)}: {why}.")
        with runners.chosen_as(self.way):
            self.run(num_steps, check) if num_steps else self.start(check)

    def start(self, check: Callable[[], None]) -> None:
        """Read the prompts anew, until every sequence has its first token."""
        self.session = None  # its memory is free before it is asked for again
        self._check_context()
        session = Session(self.model, sized(self.spec, self.place), capture="off")
        began = time.perf_counter()
        for ids in self.prompts:
            seq_id = session.submit(Prompt(token_ids=ids, has_start=True))
            session.force(seq_id, tuple(islice(cycle(ids), self.place.num_steps + WARM_UP + 1)))
        while session.is_prefilling:
            self._check_together(session.step(check).phase == "prefill")
        self.ttft_ms.append((time.perf_counter() - began) * 1e3)
        self.session = session

    def run(self, num_steps: int, check: Callable[[], None]) -> None:
        """A turn of so many decode steps; the first one of all is a warm-up and counts for nothing."""
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
            self._check_way(record.runner)
            self._check_together(len(record.sequences) == self.place.batch)
        self.step_ms.append(seconds * 1e3 / num_steps)
        self.overhead.append(max(0.0, 1 - self.model.forward_s / seconds))

    def _check_way(self, used: str) -> None:
        if self.way and not set(self.way.split("+")) <= set(used.split("+")):
            note = self.model.runners.note
            raise InputError(f"It was computed by {runner_words(used)}{f': {note}' if note else ''}.")

    def _check_context(self) -> None:
        limit, place = self.model.max_length, self.place
        is_over = place.num_tokens > limit and not is_endless(self.spec, self.model.info)
        if is_over or place.context > limit:
            raise InputError(
                f"{place.context:,} tokens and {place.num_steps + WARM_UP:,} steps exceed the model's "
                f"context of {limit:,}: shorten one of them."
            )

    def _check_room(self, session: Session) -> None:
        if not session.has_work:
            held = max(sequence.num_tokens for sequence in session.sequences)
            raise InputError(f"The cache is full after {held:,} tokens: give it more room.")

    def _check_together(self, is_together: bool) -> None:
        """In a pool that is too small some sequences wait while others decode: that is no time of theirs."""
        if not is_together:
            raise InputError(
                f"The page pool does not hold {self.place.batch} sequences of {self.place.num_tokens:,} tokens: "
                "give it more pages."
            )

    def row(self, base: Contender) -> BenchRow:
        """What it measured; `ratio` is its speed over that of `base`, turn by turn."""
        assert self.session is not None
        speeds = [1e3 * self.place.batch / ms for ms in self.step_ms]
        ratios = [theirs / own for theirs, own in zip(base.step_ms, self.step_ms, strict=True)]
        held, info = self.session.bytes(), self.model.info
        return BenchRow(
            cache=self.name,
            context=self.place.context,
            batch=self.place.batch,
            tok_per_s=round(1e3 * self.place.batch / statistics.median(self.step_ms), 2),
            spread=round(quartile_range(speeds), 2),
            ms_per_step=round(statistics.median(self.step_ms), 3),
            ttft_ms=round(statistics.median(self.ttft_ms), 1),
            kv_bytes=held.stored,
            reserved_bytes=held.reserved,
            overhead_ratio=round(statistics.median(self.overhead), 3),
            base=base.name,
            ratio=round(statistics.median(ratios), 3),
            ratio_spread=round(quartile_range(ratios), 3),
            num_steps=self.place.num_steps,
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
    check: Callable[[], None] = never_cancel,
    ways: Mapping[str, str] | None = None,
) -> Iterator[Progress | BenchRow | BenchRefused]:
    """A row for every mode, context and batch, and how far it is in between. `check` is called before every step, and
    raises to end it. A prompt, whose length is the context then, takes the place of tokens that mean nothing.
    `ways` are the runners of those modes, by their names, that are not computed as is chosen."""
    check_sizes(specs, contexts, num_steps, batches)
    timed = as_kind(TimedModel, model)
    places = [BenchPoint(context, batch, num_steps) for context in contexts for batch in batches]
    turns = len(specs) * (STARTS + min(ROUNDS, num_steps))
    for number, place in enumerate(places):
        ids = prompt_ids or synthetic_ids(model, min(place.context, model.max_length))  # a longer one is refused
        prompts = [rotated(ids, number) for number in range(place.batch)]
        contenders = [Contender(n, spec, timed, prompts, place, (ways or {}).get(n, "")) for n, spec in specs.items()]
        for piece in compare(contenders, place, check):
            yield piece if not isinstance(piece, int) else (number * turns + piece, len(places) * turns)


def compare(
    contenders: list[Contender], place: BenchPoint, check: Callable[[], None]
) -> Iterator[int | BenchRow | BenchRefused]:
    """Let the modes take turns in one place. Yields how many turns were taken, every mode that cannot go on, and in the
    end a row for each of the others."""
    rounds = min(ROUNDS, place.num_steps)
    left, done = list(contenders), 0
    for number in range(STARTS + rounds):
        turn = number - STARTS
        steps = place.num_steps * (turn + 1) // rounds - place.num_steps * turn // rounds
        for each in left if number % 2 == 0 else left[::-1]:
            try:
                each.turn(0 if turn < 0 else steps, check)
            except TooLarge as error:
                each.session, left = None, [other for other in left if other is not each]
                yield BenchRefused(each.name, place.context, place.batch, reason_of(error))
            done += 1
            yield done
    yield from (each.row(left[0]) for each in left)


def reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else "There is not enough memory for it: take a shorter context."


def sized(spec: CacheSpec, place: BenchPoint) -> CacheSpec:
    """The spec with room for just what it will hold, where it reserves at once and nobody said how much."""
    if not spec.is_paged or spec.num_pages is not None:
        return fitted(spec, place.num_tokens)
    pages_each = -(-place.num_tokens // spec.page_size)
    return replace(spec, num_pages=place.batch * (pages_each + 1))  # the null page, and one spare for each that runs


def check_sizes(
    specs: Mapping[str, CacheSpec], contexts: tuple[int, ...], num_steps: int, batches: tuple[int, ...]
) -> None:
    """Refuse what cannot be measured anywhere."""
    if not specs:
        raise InputError("No caches are named, so there is nothing to compare: name some.")
    sizes = (("tokens", contexts, MOST), ("sequences", batches, MOST_SEQUENCES), ("steps", (num_steps,), MOST))
    for what, numbers, most in sizes:
        if not numbers or min(numbers) < 1:
            raise InputError(f"{min(numbers, default=0):,} {what} is nothing to measure: give 1 or more.")
        if max(numbers) > most:
            raise InputError(f"{max(numbers):,} {what} is beyond measuring: give at most {most:,}.")


def synthetic_ids(model: LoadedModel, count: int) -> tuple[int, ...]:
    """Tokens spread over the vocabulary, the same every time: what they say does not matter to time and bytes."""
    vocab = vocabulary(model)
    return tuple(2 + i * 7919 % max(1, vocab - 2) for i in range(count)) if vocab > 2 else (0,) * count


def rotated(ids: tuple[int, ...], by: int) -> tuple[int, ...]:
    """The same tokens from another one on: sequences of a batch must not share a prefix."""
    by %= len(ids)
    return ids[by:] + ids[:by]


def quartile_range(values: list[float]) -> float:
    """How far the values lie apart: the difference of their quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
