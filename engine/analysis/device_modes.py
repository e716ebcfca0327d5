"""Checks of cache modes on a device: exact modes against the forward pass without a cache, lossy ones against the same
mode on the CPU, with a text so long that every rule drops rows and every codec codes some."""

from __future__ import annotations

import torch

from engine.analysis.device_models import Fault, words_of
from engine.analysis.reference import Reference, parity, session_logits
from engine.analysis.rounding import largest, numbers_of
from engine.analysis.tolerance import TOLERANCES
from engine.cache.sequence_cache import SequenceCache
from engine.look.source import PARTS, gather_rows, slots_of
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.spec.presets import cache_named
from engine.spec.tuning import fitted
from engine.wire.status import ModelInfo

# PROMPT and STEPS: a group of keys more than the shortest exact residual. SHARE: rules keep half of the rows.
PROMPT, STEPS, SHARE, CHUNK = 44, 6, 0.5, 16
# The least share of kept rows that both devices have in common. In 16 bits, rounding decides between rows of nearly
# equal score (a CPU that read the same prompt in other chunks had at least 0.93 in common).
KEPT_IN_COMMON = 0.75
LOSS_SHARE = 0.25  # difference of logits between devices, as a share of the mode's own effect, that coding may cause


def check_mode(model: LoadedModel, on_cpu: LoadedModel, name: str, truth: Reference) -> str:
    """Check a cache mode on a device. `truth` is the forward pass without a cache there, `on_cpu` the same model on the
    CPU."""
    spec = fitted(cache_named(name), PROMPT + STEPS, SHARE)
    if not spec.is_exact:
        return check_lossy(model, on_cpu, spec, truth)
    with model.runners.chosen_as("fused"):  # gathers pages; reading them in place has checks of its own
        found = parity(model, name, spec, truth, CHUNK)
    if not found.passes:
        wrong = found.wrong_row
        row = f", {wrong.tensor} of layer {wrong.layer} at position {wrong.position}" if wrong else ""
        raise Fault(words_of(found) + row)
    return words_of(found)


def check_lossy(model: LoadedModel, on_cpu: LoadedModel, spec: CacheSpec, truth: Reference) -> str:
    logits, mine = run(model, "fused", spec, truth)
    expected, other = run(on_cpu, "transformers", spec, truth)
    modes = ModeComparison(spec, model.info, mine, other, truth)
    modes.check()
    modes.check_logits(logits, expected)
    evicted, coded = modes.num_evicted, f"{modes.coding_loss:.1%} coded away" if modes.codes else ""
    done = ", ".join(filter(None, (f"{evicted} rows evicted" if evicted else "", coded)))
    return f"as on the CPU: {done}, max |Δlogit| {largest(logits, expected):.1e}"


def run(model: LoadedModel, runner: str, spec: CacheSpec, truth: Reference) -> tuple[torch.Tensor, SequenceCache]:
    """Feed the tokens of a reference to a cache mode; returns the logits `[steps, V]` and the cache."""
    with model.runners.chosen_as(runner):
        session = Session(model, spec, prefill_chunk=CHUNK)
        logits = session_logits(session, truth.prompt_ids, truth.token_ids)
        return logits, session.cache_of(session.sequences[0].seq_id)


class ModeComparison:
    """Compares the caches of one lossy mode on two devices: `mine`, and `other` of the CPU; `truth` is exact."""

    def __init__(
        self, spec: CacheSpec, info: ModelInfo, mine: SequenceCache, other: SequenceCache, truth: Reference
    ) -> None:
        self._mine, self._other, self._truth = mine, other, truth
        self._tolerance = TOLERANCES[info.dtype]
        self.drops, self.codes = not spec.retention.keeps_all, not spec.codec.is_exact or spec.quantizer is not None
        # whether both devices must keep the same rows, because rounding cannot change the order of scores
        self._must_keep_same_rows = not self.drops or spec.retention.is_by_position or info.dtype == "float32"
        self._layers = [layer.index for layer in info.geometry.attention_layers]
        self.num_evicted = sum(self._num_evicted(layer) for layer in self._layers)
        first = self._layers[0]
        self.coding_loss = max(self._relative_error(first, part, mine, truth.cache) for part in PARTS)

    def check(self) -> None:
        """Raise `Fault` for what is wrong with the rows."""
        if self.drops and not self.num_evicted:
            raise Fault("no row was evicted")
        if self.codes and not self.coding_loss > self._tolerance.first_row:
            raise Fault("no row was coded")
        for layer in self._layers:
            self._check_kept(layer)
        # If the first layer may have kept other rows, later layers compute other numbers.
        for layer in self._layers if self._must_keep_same_rows else self._layers[:1]:
            self._check_numbers(layer)

    def _check_kept(self, layer: int) -> None:
        mine, other = (self._kept(layer, each)[1] for each in (self._mine, self._other))
        if mine.shape != other.shape:
            raise Fault(f"layer {layer}: {mine.shape[1]} rows are left and {other.shape[1]} on the CPU")
        if self._must_keep_same_rows and not torch.equal(mine, other):
            raise Fault(f"layer {layer}: other rows are left than on the CPU")
        in_common = float((mine[:, :, None] == other[:, None]).any(2).float().mean())
        if layer == self._layers[0] and in_common < KEPT_IN_COMMON:
            raise Fault(f"layer {layer}: {in_common:.0%} of the rows that are left are those of the CPU")

    def _check_numbers(self, layer: int) -> None:
        for part in PARTS:
            apart, most = self._relative_error(layer, part, self._mine, self._other), self._allowed_error(layer)
            if not apart <= most:
                raise Fault(f"layer {layer}: {part} are {apart:.1e} off those of the CPU, more than {most:.1e}")

    def _allowed_error(self, layer: int) -> float:
        """The largest relative error between two devices that rounding explains.

        A code changes where a number lies within rounding of the boundary between two codes. The share of such numbers
        is rounding divided by the step, and each changes by a step, so that the mean square is the product of rounding
        and step. The step is √12 times the error that coding causes.
        """
        rounding = self._tolerance.of_row(layer)
        return rounding + (2 * (rounding * self.coding_loss) ** 0.5 if self.codes else 0.0)

    def check_logits(self, logits: torch.Tensor, expected: torch.Tensor) -> None:
        """Raise `Fault` if logits `[steps, V]` are off those of the CPU."""
        loss = largest(expected, self._truth.logits)
        allowed = self._tolerance.logit
        if not self._must_keep_same_rows or self.codes:
            allowed += loss * (LOSS_SHARE if self._must_keep_same_rows else 1.0)
        apart = largest(logits, expected)
        if not apart <= allowed:
            raise Fault(f"max |Δlogit| {apart:.1e} to the CPU, more than {allowed:.1e}")

    def _num_evicted(self, layer: int) -> int:
        rows = self._mine.rows(layer)
        return 0 if rows is None else self._mine.num_tokens - rows.keys.shape[2]

    def _kept(self, layer: int, cache: SequenceCache, part: Part = "keys") -> tuple[torch.Tensor, torch.Tensor]:
        """The kept rows of a layer, K or V `[H_kv, S, D]`, and their positions `[H_kv, S]`."""
        rows = cache.rows(layer)
        assert rows is not None, "a layer of attention holds rows"
        numbers, positions = numbers_of(rows, part)
        return numbers.cpu(), positions.cpu()

    def _relative_error(self, layer: int, part: Part, one: SequenceCache, other: SequenceCache) -> float:
        """The norm of the difference between the rows that both hold, relative to the norm of the rows."""
        (rows, here), (expected, there) = (self._kept(layer, each, part) for each in (one, other))
        slots, both = slots_of(there, here)
        expected = gather_rows(expected, slots)
        return float((rows - expected)[both].norm() / expected[both].norm())
