"""The tutorial's benchmark: decoding with and without a cache, and how both scale with the length of the text."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from msgspec.structs import replace

from engine.analysis.bench import as_kind, bench, synthetic_ids
from engine.model.batch import Batch, Result
from engine.model.loader import LoadedModel
from engine.seeds import published
from engine.seeds.line import FieldValue, SeedLine, checked
from engine.seeds.models import SeedModels
from engine.session.driver import ModeDriver
from engine.spec.presets import PRESETS
from engine.wire.measurements import BenchRow

NO_CACHE, CACHE = "no cache", "KV cache"
SERIES = {"none": NO_CACHE, "dynamic": CACHE}
LENGTHS = (16, 32, 64, 128, 256, 512, 960)
QUICK_LENGTHS = (16, 64)
CURVE_STEPS, QUICK_STEPS = 24, 2


class CountingModel(LoadedModel):
    """A model that counts the tokens of its forward passes."""

    num_fed = 0

    def forward(self, batch: Batch) -> Result:
        self.num_fed += batch.ids.numel()
        return super().forward(batch)


def length_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The time of 64 tokens after 16, as in the tutorial; then the time of a step at growing lengths."""
    model = models.tutorial
    prompt = synthetic_ids(model.loaded, published.TUTORIAL_PROMPT)
    new = published.TUTORIAL_NEW
    yield from count_lines(model.loaded, prompt, new, model.words)
    repeats = 1 if models.setting.is_quick else published.TUTORIAL_REPEATS
    taken: dict[str, list[float]] = {name: [] for name in SERIES}
    for number in range(repeats):
        for name in SERIES if number % 2 == 0 else reversed(SERIES):
            taken[name].append(milliseconds(model.loaded, name, prompt, new))
    ms = {name: statistics.median(values) for name, values in taken.items()}
    for name, words in SERIES.items():
        yield figure(f"{words}: {new} tokens after {len(prompt)}", None, round(ms[name], 1), "ms", model.words)
    yield figure("speed-up", None, round(ms["none"] / ms["dynamic"], 2), "×", model.words)
    yield from curve_lines(models)


def count_lines(model: LoadedModel, prompt: tuple[int, ...], new: int, words: str) -> Iterator[SeedLine]:
    """How many tokens the model processes: by the tutorial's two loops, and as counted."""
    start = len(prompt)
    by_its_loops = {"none": sum(range(start, start + new)), "dynamic": start + new - 1}
    for name, label in SERIES.items():
        counting = as_kind(CountingModel, model)
        decode(counting, name, prompt, new)
        line = figure(f"{label}: tokens through the model", by_its_loops[name], counting.num_fed, "tokens", words)
        yield checked(line)


def curve_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The time of a step over the length of the text. The published claim: without a cache the total is quadratic, so a
    step grows with the length; with a cache it is nearly linear, so a step hardly grows."""
    model, is_quick = models.tutorial, models.setting.is_quick
    lengths, steps = (QUICK_LENGTHS, QUICK_STEPS) if is_quick else (LENGTHS, CURVE_STEPS)
    specs = {name: PRESETS[name].spec for name in SERIES}
    found: dict[str, dict[int, float]] = {name: {} for name in SERIES}
    for row in bench(model.loaded, specs, lengths, steps):
        if isinstance(row, BenchRow):
            found[row.cache][row.context] = row.ms_per_step
            name, note = SERIES[row.cache], f"{row.overhead_ratio:.0%} of it is not the model"
            item = f"{name}: a step after {row.context:,} tokens"
            line = figure(item, None, row.ms_per_step, "ms", model.words)
            yield replace(line, note=note, series=name, at=float(row.context))
    shortest, longest = lengths[0], lengths[-1]
    for name, claim in (("none", "grows with the sequence"), ("dynamic", "stays roughly constant")):
        times = found[name]
        growth = round(times[longest] / times[shortest], 1)
        item = f"{SERIES[name]}: a step, {longest:,} over {shortest:,} tokens"
        yield figure(item, claim, growth, "×", model.words)


def figure(item: str, shown: FieldValue, measured: FieldValue, unit: str, words: str) -> SeedLine:
    """A line of this table."""
    note = "the text prints no figure" if shown is None else ""
    return SeedLine(published.TUTORIAL, "lengths", item, shown, measured, unit, note=note, on=words)


def milliseconds(model: LoadedModel, cache: str, prompt: tuple[int, ...], new: int) -> float:
    """The time of `decode`, until the device has finished."""
    began = time.perf_counter()
    decode(model, cache, prompt, new)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return (time.perf_counter() - began) * 1e3


def decode(model: LoadedModel, cache: str, prompt: tuple[int, ...], new: int) -> None:
    """Generate `new` tokens, the last of which is chosen but not fed."""
    driver = ModeDriver(model, PRESETS[cache].spec, len(prompt))
    chosen = int(driver.feed(prompt).argmax())
    for _ in range(new - 1):
        chosen = int(driver.feed([chosen]).argmax())
