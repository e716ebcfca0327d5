"""The tutorial's benchmark: decoding with and without a cache, and how both scale with the length of the text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from engine.analysis.bench import as_kind, bench, synthetic_ids
from engine.model.loader import LoadedModel
from engine.seeds import published
from engine.seeds.line import SeedLine, Sheet
from engine.seeds.models import CountingModel, SeedModels, in_turns, seconds_of
from engine.session.driver import ModeDriver
from engine.spec.cache import PRESETS
from engine.wire.measurements import BenchRow

SERIES = {"none": "no cache", "dynamic": "KV cache"}
LENGTHS = (16, 32, 64, 128, 256, 512, 960)
QUICK_LENGTHS = (16, 64)
CURVE_STEPS, QUICK_STEPS = 24, 2
UNPRINTED = "the text prints no figure"


def length_lines(models: SeedModels) -> Iterator[SeedLine]:
    """How many tokens the model processes, by the tutorial's two loops and as counted; the time of 64 tokens after 16,
    as in the tutorial; then the time of a step at growing lengths."""
    model, is_quick, new = models.tutorial.loaded, models.setting.is_quick, published.TUTORIAL_NEW
    sheet = Sheet(published.TUTORIAL, "lengths", models.tutorial.words)
    prompt = synthetic_ids(model, published.TUTORIAL_PROMPT)
    start = len(prompt)
    by_its_loops = {"none": sum(range(start, start + new)), "dynamic": start + new - 1}
    for name, label in SERIES.items():
        counting = as_kind(CountingModel, model)
        decode(counting, name, prompt, new)
        yield sheet.must(f"{label}: tokens through the model", by_its_loops[name], counting.num_computed, "tokens")
    taken = in_turns(
        SERIES,
        1 if is_quick else published.TUTORIAL_REPEATS,
        lambda name: seconds_of(model, partial(decode, model, name, prompt, new))[0],
    )
    ms = {name: statistics.median(seconds) * 1e3 for name, seconds in taken.items()}
    for name, words in SERIES.items():
        yield sheet.figure(f"{words}: {new} tokens after {start}", None, round(ms[name], 1), "ms", UNPRINTED)
    yield sheet.figure("speed-up", None, round(ms["none"] / ms["dynamic"], 2), "×", UNPRINTED)
    yield from curve_lines(sheet, model, is_quick)


def curve_lines(sheet: Sheet, model: LoadedModel, is_quick: bool) -> Iterator[SeedLine]:
    """The time of a step over the length of the text. The published claim: without a cache the total is quadratic, so a
    step grows with the length; with a cache it is nearly linear, so a step hardly grows."""
    lengths, steps = (QUICK_LENGTHS, QUICK_STEPS) if is_quick else (LENGTHS, CURVE_STEPS)
    found: dict[str, dict[int, float]] = {name: {} for name in SERIES}
    for row in bench(model, {name: PRESETS[name].spec for name in SERIES}, lengths, steps):
        if isinstance(row, BenchRow):
            found[row.cache][row.context] = row.ms_per_step
            name, note = SERIES[row.cache], f"{row.overhead_ratio:.0%} of it is not the model"
            item = f"{name}: a step after {row.context:,} tokens"
            yield sheet.figure(item, None, row.ms_per_step, "ms", note, series=name, at=float(row.context))
    shortest, longest = lengths[0], lengths[-1]
    for name, claim in (("none", "grows with the sequence"), ("dynamic", "stays roughly constant")):
        growth = round(found[name][longest] / found[name][shortest], 1)
        yield sheet.figure(f"{SERIES[name]}: a step, {longest:,} over {shortest:,} tokens", claim, growth, "×")


def decode(model: LoadedModel, cache: str, prompt: tuple[int, ...], new: int) -> None:
    """Generate `new` tokens, the last of which is chosen but not computed."""
    driver = ModeDriver(model, PRESETS[cache].spec, len(prompt))
    chosen = int(driver.compute(prompt).argmax())
    for _ in range(new - 1):
        chosen = int(driver.compute([chosen]).argmax())
