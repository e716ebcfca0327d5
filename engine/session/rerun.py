"""What-if runs: the tokens of a sequence run again in another cache mode, in scratch caches beside the live session.

The scratch caches are kept between questions, so that the next question costs few forwards: the same mode one step
later continues the last trial, and the state that a prompt leaves before anything is evicted serves every budget of a
rule. They are looked up by their tokens, so that they cannot be out of date.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

import torch

from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.errors import Progress
from engine.history.state import num_common
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec

USUAL_TOKEN_S = 0.005  # seconds: assumed for a token until one was timed
CHUNK = 128  # tokens between two points at which a question can be cancelled
ENDLESS = 1 << 30  # tokens: the length of a prompt that never ends, so that nothing is evicted or quantised at its end

RowsByLayer = dict[int, HeldRows]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a what-if run gives: the newest token's logits `[V]`, and the ratio of rows held and the bytes of their K
    and V just before that token was computed."""

    logits: torch.Tensor
    kept_ratio: float
    num_bytes: int


@dataclass(eq=False)
class TrialRun:
    """A what-if run of one cache mode. The first `prompt_end` tokens are the prompt; `outcome` is that of the newest
    token."""

    spec: CacheSpec
    prompt_end: int
    driver: Driver
    outcome: Outcome | None = None


@dataclass(frozen=True)
class PromptKey:
    """The key of a prompt's state before anything is evicted. It depends only on the codec and on the attention that
    the eviction rule reads, not on the budget."""

    codec: CodecSpec
    rule: str | None
    num_queries: int | None

    @classmethod
    def of(cls, spec: CacheSpec) -> PromptKey:
        rule = spec.retention
        return cls(spec.codec, rule.name, rule.window) if rule.needs_weights else cls(spec.codec, None, None)


class Reruns:
    """Runs tokens in other cache modes. Keeps at most three scratch caches: one with exact rows, one with a prompt
    before anything is evicted, and the last trial."""

    def __init__(self, model: LoadedModel, chunk: int = CHUNK) -> None:
        self._model, self._chunk = model, chunk
        self._token_s = USUAL_TOKEN_S
        self.forget()

    def forget(self) -> None:
        """Free all scratch caches."""
        self._exact: Driver | None = None
        self._prompt: tuple[PromptKey, Driver] | None = None
        self._trial: TrialRun | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes reserved by the scratch caches."""
        drivers = [self._exact, self._prompt and self._prompt[1], self._trial and self._trial.driver]
        return sum(layer.reserved for driver in drivers if driver for layer in driver.cache.all_bytes())

    # ---- exact rows ----------------------------------------------------------------------------------------------

    def exact_rows(self, token_ids: list[int]) -> Generator[Progress, None, RowsByLayer]:
        """Compute K and V of the tokens as a cache that keeps all rows exactly holds them: views, by layer."""
        driver = self._exact or Driver.in_mode(self._model, CacheSpec(), ENDLESS)
        shared = num_common(driver.token_ids, token_ids)
        if shared < min(len(driver.token_ids), len(token_ids)):  # a copy: views of the old rows may still be in use
            known = self._rows_of(driver)
            driver = Driver.in_mode(self._model, CacheSpec(), ENDLESS, token_ids[:shared])
            fill(driver.cache, known, 0, shared)
            driver.cache.commit(shared)
        self._exact = driver
        yield from self._compute_chunks(driver, token_ids, len(token_ids))
        count = len(token_ids)
        return {i: HeldRows(r.keys[:, :, :count], r.values[:, :, :count], 0) for i, r in self._rows_of(driver).items()}

    def _rows_of(self, driver: Driver) -> RowsByLayer:
        layers = self._model.info.geometry.attention_layers
        return {layer.index: rows for layer in layers if (rows := driver.cache.rows(layer.index)) is not None}

    # ---- another mode from the start -----------------------------------------------------------------------------

    def seconds(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> float:
        """An estimate of the seconds that `run` takes: the number of tokens to compute times what the last one took."""
        return self._token_s * self._num_missing(spec, token_ids, prompt_end, has_rows)

    def _num_missing(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> int:
        trial = self._found(spec, token_ids, prompt_end)
        if trial is not None:
            return len(token_ids) - len(trial.driver.token_ids)
        before = prompt_end - 1
        if copies_rows(spec) and has_rows:
            known = before
        elif self._prompt is not None and self._prompt[0] == PromptKey.of(spec):
            known = num_common(self._prompt[1].token_ids, token_ids[:before])
            known = known if known == len(self._prompt[1].token_ids) else 0
        else:
            known = 0
        return len(token_ids) - known

    def run(
        self, spec: CacheSpec, token_ids: list[int], prompt_end: int, rows: RowsByLayer | None
    ) -> Generator[Progress, None, Outcome]:
        """Compute the tokens into a cache of `spec` as a session would, the first `prompt_end` of them as its prompt.
        Yields the tokens done and their total before each forward; returns the outcome.

        `rows` are the exact rows of these tokens if they are known: a mode with exact rows whose rule does not watch
        the prompt starts from a copy of them.
        """
        total, before = len(token_ids), prompt_end - 1
        trial = self._found(spec, token_ids, prompt_end)
        if trial is None:
            self._trial = None  # free the old one before the new one takes memory
            driver = Driver.in_mode(self._model, spec, prompt_end, token_ids[:before])
            if copies_rows(spec) and rows is not None:
                fill(driver.cache, rows, 0, before)
            else:
                driver.cache.copy_layers((yield from self.prompt_of(spec, token_ids[:before], total)).cache)
            driver.cache.commit(before)
            self._trial = trial = TrialRun(spec, prompt_end, driver)
        driver = trial.driver
        for done in range(len(driver.token_ids), total):
            yield done, total
            kept_ratio, num_bytes = driver.cache.kept_ratio, driver.cache.stored_bytes
            logits = self._compute(driver, [token_ids[done]])
            if done == total - 1:
                trial.outcome = Outcome(logits.float(), kept_ratio, num_bytes)
        assert trial.outcome is not None
        return trial.outcome

    def _found(self, spec: CacheSpec, token_ids: list[int], prompt_end: int) -> TrialRun | None:
        """The last trial, if it is of the same mode and prompt and was given a beginning of these tokens; else None."""
        trial = self._trial
        if trial is None or (trial.spec, trial.prompt_end) != (spec, prompt_end):
            return None
        computed = trial.driver.token_ids
        if num_common(computed, token_ids) < len(computed):
            return None
        return trial if len(computed) < len(token_ids) or trial.outcome is not None else None

    def prompt_of(
        self, spec: CacheSpec, token_ids: list[int], total: int | None = None
    ) -> Generator[Progress, None, Driver]:
        """A driver that was given the tokens as an unfinished prompt: its rule has watched them, and nothing is evicted
        or quantised at the prompt's end yet. Yields progress; `total` is the total that it names."""
        start = PromptKey.of(spec)
        driver = self._prompt[1] if self._prompt is not None and self._prompt[0] == start else None
        if driver is None or num_common(driver.token_ids, token_ids) < len(driver.token_ids):
            driver = Driver.in_mode(self._model, spec, ENDLESS)
            self._prompt = start, driver
        yield from self._compute_chunks(driver, token_ids, total or len(token_ids))
        return driver

    def _compute_chunks(self, driver: Driver, token_ids: list[int], total: int) -> Generator[Progress, None, None]:
        for done in range(len(driver.token_ids), len(token_ids), self._chunk):
            yield done, total
            self._compute(driver, token_ids[done : done + self._chunk])

    def _compute(self, driver: Driver, token_ids: list[int]) -> torch.Tensor:
        """Compute tokens in one forward and time it; returns the newest logits `[V]`. On failure all scratch caches are
        freed."""
        began = time.perf_counter()
        try:
            logits = driver.compute(token_ids)
        except BaseException:
            self.forget()  # a cache may hold part of these tokens
            raise
        driver.cache.forget_past()
        if len(token_ids) == 1:
            self._token_s = time.perf_counter() - began
        return logits


def copies_rows(spec: CacheSpec) -> bool:
    """Whether the state after a prompt is exact rows only, so that it can be copied from exact rows."""
    return spec.codec.is_exact and not spec.retention.watches_all


def fill(cache: SequenceCache, rows: RowsByLayer, start: int, stop: int) -> None:
    """Write the exact rows `start … stop` into every layer of the cache."""
    if start == stop:
        return
    for index, held in rows.items():
        cache.model_cache.update(held.keys[:, :, start:stop], held.values[:, :, start:stop], index)
