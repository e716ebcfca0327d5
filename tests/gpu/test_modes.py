"""Cache modes on a device: exact modes against the forward pass without a cache, lossy ones against the same mode on
the CPU, with a text so long that every rule drops rows and every codec codes some."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch

from engine.analysis.reference import Parity, Reference, largest, parity, reference, session_logits
from engine.analysis.tolerance import TOLERANCES
from engine.cache.layers.layer import GrowingLayer
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.look.source import Rows, gather_rows, slots_of
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import ALL_PRESETS, CacheSpec, cache_named, fitted
from engine.spec.codec import PARTS, Part
from engine.wire.status import ModelInfo
from tests.effort import effort
from tests.gpu import faults
from tests.gpu.models import CONFIG, cases, model_of, new_model, token_ids

# PROMPT and STEPS: a group of keys more than the shortest exact residual. SHARE: rules keep half of the rows.
PROMPT, STEPS, SHARE, CHUNK = 44, 6, 0.5, 16
# The least share of kept rows that both devices have in common. In 16 bits, rounding decides between rows of nearly
# equal score (a CPU that read the same prompt in other chunks had at least 0.93 in common).
KEPT_IN_COMMON = 0.75
LOSS_SHARE = 0.25  # difference of logits between devices, as a share of the mode's own effect, that coding may cause

EVERYWHERE = [("float32", name) for name in ("growing", "paged", "h2o", "int8", "kivi-4", "none")]
JOINED = ("paged+h2o", "h2o+int8", "int8/kivi-4")  # combinations that are no preset
COMPILED = [name for name in ALL_PRESETS if cache_named(name).row.is_compiled]
MODES = [name for name in (*ALL_PRESETS, *JOINED) if name not in COMPILED] + effort([], COMPILED)
ON_GPU = [each for each in product(("float32", "bfloat16", "float16"), MODES) if each not in EVERYWHERE]


@cache
def truth_of(dtype: str) -> Reference:
    """The forward pass without a cache."""
    ids = token_ids(PROMPT + STEPS)
    return reference(model_of(dtype), ids[:PROMPT], 0, forced=ids[PROMPT:])


@pytest.mark.parametrize(("dtype", "name"), cases(EVERYWHERE, ON_GPU))
def test_a_mode_is_exact_or_as_lossy_as_on_the_cpu(dtype: str, name: str) -> None:
    try:
        check_mode(model_of(dtype), model_of(dtype, "cpu"), name, truth_of(dtype))
    except InputError as refused:
        assert (dtype, name) not in EVERYWHERE
        pytest.skip(str(refused))


def check_mode(model: LoadedModel, on_cpu: LoadedModel, name: str, truth: Reference) -> None:
    spec = fitted(cache_named(name), PROMPT + STEPS, SHARE)
    if spec.is_exact:
        with model.runners.chosen_as("fused"):  # gathers pages; reading them in place has tests of its own
            check_parity(parity(model, name, spec, truth, CHUNK))
        return
    logits, mine = run(model, "fused", spec, truth)
    expected, other = run(on_cpu, "transformers", spec, truth)
    modes = ModeComparison(spec, model.info, mine, other, truth)
    modes.check()
    modes.check_logits(logits, expected)


def check_parity(found: Parity) -> None:
    assert found.passes, f"max |Δlogit| {found.max_abs_logit_diff:.1e}, row {found.wrong_row}"


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
        self._drops, self._codes = not spec.retention.keeps_all, not spec.codec.is_exact or spec.quantizer is not None
        # whether both devices must keep the same rows, because rounding cannot change the order of scores
        self._must_keep_same_rows = not self._drops or spec.retention.is_by_position or info.dtype == "float32"
        self._layers = [layer.index for layer in info.geometry.attention_layers]
        self._coding_loss = max(self._relative_error(self._layers[0], part, mine, truth.cache) for part in PARTS)

    def check(self) -> None:
        """Compare the rows."""
        if self._drops:
            assert sum(map(self._num_evicted, self._layers)), "no row was evicted"
        if self._codes:
            assert self._coding_loss > self._tolerance.first_row, "no row was coded"
        for layer in self._layers:
            self._check_kept(layer)
        # If the first layer may have kept other rows, later layers compute other numbers.
        for layer in self._layers if self._must_keep_same_rows else self._layers[:1]:
            for part in PARTS:
                apart, most = self._relative_error(layer, part, self._mine, self._other), self._allowed_error(layer)
                assert apart <= most, f"layer {layer}: {part} are {apart:.1e} off those of the CPU"

    def _check_kept(self, layer: int) -> None:
        mine, other = (self._kept(layer, each)[1] for each in (self._mine, self._other))
        assert mine.shape == other.shape, f"layer {layer}: as many rows are left as on the CPU"
        if self._must_keep_same_rows:
            assert torch.equal(mine, other), f"layer {layer}: other rows are left than on the CPU"
        in_common = float((mine[:, :, None] == other[:, None]).any(2).float().mean())
        assert layer != self._layers[0] or in_common >= KEPT_IN_COMMON

    def _allowed_error(self, layer: int) -> float:
        """The largest relative error between two devices that rounding explains.

        A code changes where a number lies within rounding of the boundary between two codes. The share of such numbers
        is rounding divided by the step, and each changes by a step, so that the mean square is the product of rounding
        and step. The step is √12 times the error that coding causes.
        """
        rounding = self._tolerance.of_row(layer)
        return rounding + (2 * (rounding * self._coding_loss) ** 0.5 if self._codes else 0.0)

    def check_logits(self, logits: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare logits `[steps, V]` with those of the CPU."""
        loss = largest(expected, self._truth.logits)
        allowed = self._tolerance.logit
        if not self._must_keep_same_rows or self._codes:
            allowed += loss * (LOSS_SHARE if self._must_keep_same_rows else 1.0)
        assert largest(logits, expected) <= allowed

    def _num_evicted(self, layer: int) -> int:
        rows = self._mine.rows(layer)
        return 0 if rows is None else self._mine.num_tokens - rows.keys.shape[2]

    def _kept(self, layer: int, cache: SequenceCache, part: Part = "keys") -> tuple[torch.Tensor, torch.Tensor]:
        """The kept rows of a layer, K or V `[H_kv, S, D]`, and their positions `[H_kv, S]`."""
        rows = Rows.of(cache.rows(layer), part)
        assert rows is not None, "a layer of attention holds rows"
        return rows.numbers.float().cpu(), rows.places.cpu()

    def _relative_error(self, layer: int, part: Part, one: SequenceCache, other: SequenceCache) -> float:
        """The norm of the difference between the rows that both hold, relative to the norm of the rows."""
        (rows, here), (expected, there) = (self._kept(layer, each, part) for each in (one, other))
        slots, both = slots_of(there, here)
        expected = gather_rows(expected, slots)
        return float((rows - expected)[both].norm() / expected[both].norm())


# ---- these tests can fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("h2o", "no row was evicted"), ("kivi-4", "no row was coded")])
def test_a_mode_is_tried_where_it_loses_something(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.test_modes.SHARE", None)  # 50 tokens in the room of its preset
    with pytest.raises(AssertionError, match=words):
        check_mode(model_of("float32"), model_of("float32", "cpu"), name, truth_of("float32"))


@pytest.mark.parametrize(
    ("name", "words"), [("tova", "other rows are left than on the CPU"), ("int8", "layer 0: keys are")]
)
def test_a_mode_that_does_something_else_than_on_the_cpu_is_a_fault(name: str, words: str) -> None:
    other = new_model("float32", {**CONFIG, "initializer_range": 0.06}, "cpu")
    with pytest.raises(AssertionError, match=words):
        check_mode(model_of("float32"), other, name, truth_of("float32"))


def test_an_exact_mode_that_reads_other_rows_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = truth_of("float32")
    monkeypatch.setattr(GrowingLayer, "append", faults.of_other_values)
    with pytest.raises(AssertionError):
        check_mode(model_of("float32"), model_of("float32", "cpu"), "growing", truth)
