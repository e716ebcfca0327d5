"""The tokens of a sequence run again in another cache mode, beside the live session and kept between questions.

A question that follows, after one more step or with another budget, then costs few forwards: the present of the last
trial goes on where it stands, and what a prompt leaves before anything is dropped serves every size of a rule. What is
kept is found by its tokens, so nothing here can be out of date.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field

import torch

from engine.cache.compressed.cache import CompressedCache
from engine.cache.compressed.rotary import key_rotation_of
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.model.loader import LoadedModel
from engine.session.driver import CHUNK
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec

USUAL_TOKEN_S = 0.005

Progress = tuple[int, int]
Rows = dict[int, HeldRows]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The newest token's logits `[V]` in a mode that ran from the start; the part of the rows held when it was fed, and
    the bytes of their K and V."""

    logits: torch.Tensor
    kept_ratio: float
    num_bytes: int


@dataclass(eq=False)
class Fed:
    """A scratch cache with the tokens it was fed, and what the newest of them met."""

    cache: SequenceCache
    token_ids: list[int] = field(default_factory=list)
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
        self._exact: Fed | None = None
        self._prompt: tuple[Start, Fed] | None = None
        self._trial: tuple[CacheSpec, int, Fed] | None = None

    @property
    def num_bytes(self) -> int:
        """What the scratch caches take, in storage."""
        fed = [self._exact, self._prompt and self._prompt[1], self._trial and self._trial[2]]
        return sum(layer.reserved for one in fed if one for layer in one.cache.all_bytes())

    # ---- exact rows ----------------------------------------------------------------------------------------------

    def exact_rows(self, token_ids: list[int]) -> Generator[Progress, None, Rows]:
        """K and V of the tokens as a cache that keeps all rows would hold them, as views."""
        fed = self._exact or self._new_exact()
        shared = num_shared(fed.token_ids, token_ids)
        if shared < min(len(fed.token_ids), len(token_ids)):  # somebody may still look at the rows behind it
            fed, known = self._new_exact(), self._rows_of(fed)
            fill(fed.cache, known, 0, shared)
            fed.cache.commit(shared)
            fed.token_ids = token_ids[:shared]
        self._exact = fed
        for done in range(shared, len(token_ids), self._chunk):
            yield done, len(token_ids)
            self._feed(fed, token_ids[done : done + self._chunk], len(token_ids))
        count = len(token_ids)
        return {i: HeldRows(r.keys[:, :, :count], r.values[:, :, :count], 0) for i, r in self._rows_of(fed).items()}

    def _new_exact(self) -> Fed:
        return Fed(SequenceCache(CacheSpec(), self._model.model.config, self._model.max_length))

    def _rows_of(self, fed: Fed) -> Rows:
        layers = self._model.info.geometry.attention_layers
        return {layer.index: rows for layer in layers if (rows := fed.cache.rows(layer.index)) is not None}

    # ---- another mode from the start -----------------------------------------------------------------------------

    def seconds(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> float:
        """About how long `run` would take: as many times what the last token took as there are tokens to feed."""
        return self._token_s * self._num_missing(spec, token_ids, prompt_end, has_rows)

    def _num_missing(self, spec: CacheSpec, token_ids: list[int], prompt_end: int, has_rows: bool) -> int:
        trial = self._found(spec, token_ids, prompt_end)
        if trial is not None:
            return len(token_ids) - len(trial.token_ids)
        before = prompt_end - 1
        if copies_rows(spec) and has_rows:
            known = before
        elif self._prompt is not None and self._prompt[0] == Start.of(spec):
            known = num_shared(self._prompt[1].token_ids, token_ids[:before])
            known = known if known == len(self._prompt[1].token_ids) else 0
        else:
            known = 0
        return len(token_ids) - known

    def run(
        self, spec: CacheSpec, token_ids: list[int], prompt_end: int, rows: Rows | None
    ) -> Generator[Progress, None, Outcome]:
        """Feed the tokens to a cache of `spec` as a session would, the first `prompt_end` of them as its prompt.

        `rows` are the exact rows of these tokens, where they are known: a mode that writes rows exactly and has not to
        watch the prompt starts from a copy of them.
        """
        total = len(token_ids)
        trial = self._found(spec, token_ids, prompt_end)
        if trial is None:
            self._trial = None  # its room goes before another one is taken
            cache = self._new_cache(spec)
            if copies_rows(spec) and rows is not None:
                fill(cache, rows, 0, prompt_end - 1)
                cache.commit(prompt_end - 1)
            else:
                left = yield from self._prompt_of(spec, token_ids[: prompt_end - 1], total)
                cache.copy_layers(left)
                cache.commit(prompt_end - 1)
            trial = Fed(cache, token_ids[: prompt_end - 1])
            self._trial = spec, prompt_end, trial
        for done in range(len(trial.token_ids), total):
            yield done, total
            if done == total - 1:
                kept_ratio, num_bytes = held_by(trial.cache)
            logits = self._feed(trial, [token_ids[done]], prompt_end)
            if done == total - 1:
                trial.outcome = Outcome(logits, kept_ratio, num_bytes)
        assert trial.outcome is not None
        return trial.outcome

    def _found(self, spec: CacheSpec, token_ids: list[int], prompt_end: int) -> Fed | None:
        """The last trial, where it is the same one some tokens ago."""
        if self._trial is None or self._trial[:2] != (spec, prompt_end):
            return None
        fed = self._trial[2]
        if num_shared(fed.token_ids, token_ids) < len(fed.token_ids):
            return None
        return fed if len(fed.token_ids) < len(token_ids) or fed.outcome is not None else None

    def _prompt_of(self, spec: CacheSpec, token_ids: list[int], total: int) -> Generator[Progress, None, SequenceCache]:
        """A cache that was fed a prompt but its last token: nothing is dropped yet, nothing that waits is coded."""
        start = Start.of(spec)
        fed = self._prompt[1] if self._prompt is not None and self._prompt[0] == start else None
        if fed is None or num_shared(fed.token_ids, token_ids) < len(fed.token_ids):
            fed = Fed(self._new_cache(spec))
            self._prompt = start, fed
        for done in range(len(fed.token_ids), len(token_ids), self._chunk):
            yield done, total
            self._feed(fed, token_ids[done : done + self._chunk], len(token_ids) + 1)
        return fed.cache

    def _new_cache(self, spec: CacheSpec) -> CompressedCache:
        model = self._model.model
        rotation = key_rotation_of(model) if spec.retention.rerotate else None
        return CompressedCache(spec, model.config, self._model.max_length, 0, rotation)

    @torch.inference_mode()
    def _feed(self, fed: Fed, token_ids: list[int], num_prompt_tokens: int) -> torch.Tensor:
        """One forward and what a cache does after it; the newest logits `[V]`."""
        cache, stop = fed.cache, len(fed.token_ids) + len(token_ids)
        began = time.perf_counter()
        try:
            cache.begin(len(token_ids))
            probe = cache.probe(False)
            ids = torch.tensor([token_ids], device=self._model.device)
            logits = self._model.forward(ids, cache.live, probe)[0, -1].float()
            cache.compress(stop, num_prompt_tokens, probe)
        except BaseException:
            self.forget()  # a cache may hold part of these tokens
            raise
        cache.commit(stop)
        cache.forget_journal()
        fed.token_ids += token_ids
        if len(token_ids) == 1:
            self._token_s = time.perf_counter() - began
        return logits


def copies_rows(spec: CacheSpec) -> bool:
    """Whether a prompt leaves exact rows and nothing else."""
    return spec.codec.is_exact and not spec.retention.watches_all


def fill(cache: SequenceCache, rows: Rows, start: int, stop: int) -> None:
    """Write rows `start … stop` of exact ones."""
    if start == stop:
        return
    for index, held in rows.items():
        cache.live.update(held.keys[:, :, start:stop], held.values[:, :, start:stop], index)


def held_by(cache: SequenceCache) -> tuple[float, int]:
    """The part of its rows that a cache holds, and the bytes of their K and V."""
    return cache.kept_ratio, cache.stored_bytes


def num_shared(one: list[int], other: list[int]) -> int:
    """How many tokens two lists begin with in common."""
    if one == other[: len(one)]:
        return len(one)
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))
