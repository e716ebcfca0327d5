"""The tokens of a sequence run again in another cache mode, beside the live session and kept between questions.

A question that follows, after one more step or with another budget, then costs few forwards: the present of the last
trial goes on where it stands, and what a prompt leaves before anything is dropped serves every size of a rule. What is
kept is found by its tokens, so nothing here can be out of date.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

import torch

from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.common_prefix import num_common
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.mode import CacheMode
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec

USUAL_TOKEN_S = 0.005
CHUNK = 128  # tokens between two moments at which a question can be given up
ENDLESS = 1 << 30  # tokens of a prompt that goes on: nothing is dropped, nothing that waits for its end is coded

Progress = tuple[int, int]
RowsOfLayers = dict[int, HeldRows]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The newest token's logits `[V]` in a mode that ran from the start; the part of the rows held when it was fed, and
    the bytes of their K and V."""

    logits: torch.Tensor
    kept_ratio: float
    num_bytes: int


@dataclass(eq=False)
class TrialRun:
    """A mode that was fed a sequence, whose first `prompt_end` tokens are its prompt; what the newest of them met."""

    spec: CacheSpec
    prompt_end: int
    driver: Driver
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Start:
    """What a prompt leaves before anything is dropped depends on: how rows are written, and what the rule watches."""

    codec: CodecSpec
    rule: str | None
    num_queries: int | None

    @classmethod
    def of(cls, spec: CacheSpec) -> Start:
        rule = spec.retention
        return cls(spec.codec, rule.name, rule.window) if rule.watches_all else cls(spec.codec, None, None)


class Reruns:
    """At most three scratch caches: exact rows, a prompt as a kind of mode leaves it, and the last trial."""

    def __init__(self, model: LoadedModel, chunk: int = CHUNK) -> None:
        self._model, self._chunk = model, chunk
        self._token_s = USUAL_TOKEN_S
        self.forget()

    def forget(self) -> None:
        """Give the room of all scratch caches back."""
        self._exact: Driver | None = None
        self._prompt: tuple[Start, Driver] | None = None
        self._trial: TrialRun | None = None

    @property
    def num_bytes(self) -> int:
        """What the scratch caches take, in storage."""
        drivers = [self._exact, self._prompt and self._prompt[1], self._trial and self._trial.driver]
        return sum(layer.reserved for driver in drivers if driver for layer in driver.cache.all_bytes())

    # ---- exact rows ----------------------------------------------------------------------------------------------

    def exact_rows(self, token_ids: list[int]) -> Generator[Progress, None, RowsOfLayers]:
        """K and V of the tokens as a cache that keeps all rows would hold them, as views."""
        driver = self._exact or self._new_driver(CacheSpec(), ENDLESS)
        shared = num_common(driver.token_ids, token_ids)
        if shared < min(len(driver.token_ids), len(token_ids)):  # somebody may still look at the rows behind it
            known = self._rows_of(driver)
            driver = self._new_driver(CacheSpec(), ENDLESS, token_ids[:shared])
            fill(driver.cache, known, 0, shared)
            driver.cache.commit(shared)
        self._exact = driver
        yield from self._feed_chunks(driver, token_ids, len(token_ids))
        count = len(token_ids)
        return {i: HeldRows(r.keys[:, :, :count], r.values[:, :, :count], 0) for i, r in self._rows_of(driver).items()}

    def _rows_of(self, driver: Driver) -> RowsOfLayers:
        layers = self._model.info.geometry.attention_layers
        return {layer.index: rows for layer in layers if (rows := driver.cache.rows(layer.index)) is not None}

    # ---- another mode from the start -----------------------------------------------------------------------------

    def seconds(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> float:
        """About how long `run` would take: as many times what the last token took as there are tokens to feed."""
        return self._token_s * self._num_missing(spec, token_ids, prompt_end, has_rows)

    def _num_missing(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> int:
        trial = self._found(spec, token_ids, prompt_end)
        if trial is not None:
            return len(token_ids) - len(trial.driver.token_ids)
        before = prompt_end - 1
        if copies_rows(spec) and has_rows:
            known = before
        elif self._prompt is not None and self._prompt[0] == Start.of(spec):
            known = num_common(self._prompt[1].token_ids, token_ids[:before])
            known = known if known == len(self._prompt[1].token_ids) else 0
        else:
            known = 0
        return len(token_ids) - known

    def run(
        self, spec: CacheSpec, token_ids: list[int], prompt_end: int, rows: RowsOfLayers | None
    ) -> Generator[Progress, None, Outcome]:
        """Feed the tokens to a cache of `spec` as a session would, the first `prompt_end` of them as its prompt.

        `rows` are the exact rows of these tokens, where they are known: a mode that writes rows exactly and has not to
        watch the prompt starts from a copy of them.
        """
        total, before = len(token_ids), prompt_end - 1
        trial = self._found(spec, token_ids, prompt_end)
        if trial is None:
            self._trial = None  # its room goes before another one is taken
            driver = self._new_driver(spec, prompt_end, token_ids[:before])
            if copies_rows(spec) and rows is not None:
                fill(driver.cache, rows, 0, before)
            else:
                driver.cache.copy_layers((yield from self.prompt_of(spec, token_ids[:before], total)).cache)
            driver.cache.commit(before)
            self._trial = trial = TrialRun(spec, prompt_end, driver)
        driver = trial.driver
        for done in range(len(driver.token_ids), total):
            yield done, total
            kept_ratio, num_bytes = held_by(driver.cache)
            logits = self._feed(driver, [token_ids[done]])
            if done == total - 1:
                trial.outcome = Outcome(logits.float(), kept_ratio, num_bytes)
        assert trial.outcome is not None
        return trial.outcome

    def _found(self, spec: CacheSpec, token_ids: list[int], prompt_end: int) -> TrialRun | None:
        """The last trial, where it is the same one some tokens ago."""
        trial = self._trial
        if trial is None or (trial.spec, trial.prompt_end) != (spec, prompt_end):
            return None
        fed = trial.driver.token_ids
        if num_common(fed, token_ids) < len(fed):
            return None
        return trial if len(fed) < len(token_ids) or trial.outcome is not None else None

    def prompt_of(
        self, spec: CacheSpec, token_ids: list[int], total: int | None = None
    ) -> Generator[Progress, None, Driver]:
        """A mode that was fed the tokens of a prompt that goes on: nothing is dropped yet, nothing that waits is coded,
        and its rule has watched them. `total` is the number of tokens that progress is told of."""
        start = Start.of(spec)
        driver = self._prompt[1] if self._prompt is not None and self._prompt[0] == start else None
        if driver is None or num_common(driver.token_ids, token_ids) < len(driver.token_ids):
            driver = self._new_driver(spec, ENDLESS)
            self._prompt = start, driver
        yield from self._feed_chunks(driver, token_ids, total or len(token_ids))
        return driver

    def _new_driver(self, spec: CacheSpec, prompt_end: int, token_ids: list[int] | None = None) -> Driver:
        return Driver(self._model, CacheMode(self._model, spec).new_cache(0, prompt_end), prompt_end, token_ids or ())

    def _feed_chunks(self, driver: Driver, token_ids: list[int], total: int) -> Generator[Progress, None, None]:
        for done in range(len(driver.token_ids), len(token_ids), self._chunk):
            yield done, total
            self._feed(driver, token_ids[done : done + self._chunk])

    def _feed(self, driver: Driver, token_ids: list[int]) -> torch.Tensor:
        """One forward; the newest logits `[V]`."""
        began = time.perf_counter()
        try:
            logits = driver.feed(token_ids)
        except BaseException:
            self.forget()  # a cache may hold part of these tokens
            raise
        driver.cache.forget_journal()
        if len(token_ids) == 1:
            self._token_s = time.perf_counter() - began
        return logits


def copies_rows(spec: CacheSpec) -> bool:
    """Whether a prompt leaves exact rows and nothing else."""
    return spec.codec.is_exact and not spec.retention.watches_all


def fill(cache: SequenceCache, rows: RowsOfLayers, start: int, stop: int) -> None:
    """Write rows `start … stop` of exact ones."""
    if start == stop:
        return
    for index, held in rows.items():
        cache.live.update(held.keys[:, :, start:stop], held.values[:, :, start:stop], index)


def held_by(cache: SequenceCache) -> tuple[float, int]:
    """The part of its rows that a cache holds, and the bytes of their K and V."""
    return cache.kept_ratio, cache.stored_bytes
