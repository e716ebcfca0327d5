"""The tutorial's tables: the memory of a cache, by its formula and, where not too large, in real tensors, and an error
in its text; and decoding with and without a cache, and how both scale with the length of the text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from msgspec.structs import replace
from transformers import LlamaConfig

from engine.analysis.bench import as_kind, bench, synthetic_ids
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import CacheGeometry
from engine.model.loader import LoadedModel
from engine.predict.bytes import BudgetSpec, budget_of, tutorial_geometries
from engine.seeds import published
from engine.seeds.models import CountingModel, SeedModels, in_turns, seconds_of
from engine.seeds.published import SeedLine, Sheet
from engine.session.driver import Driver
from engine.spec.cache import PRESETS, CacheSpec
from engine.wire.measurements import BenchRow

# ---- memory ----------------------------------------------------------------------------------------------------------

MEMORY_LENGTHS = (512, 2048, 8192)
LARGEST, QUICK_LARGEST = 400e6, 30e6  # limits of bytes that are allocated in tensors
SLIP = "a slip of the text: its table is of 16-bit numbers, where its own formula gives 537 MB"
BY_THE_CHAPTER = "by the chapter's formula"  # the chapter has the code of its table, and does not print what it gives
SLIP_MODEL, SLIP_TOKENS = "LLaMA-7B", 1024
BY_FORMULA, IN_TENSORS = (
    Sheet(published.TUTORIAL, "memory", on) for on in ("by formula", "tensors of a dynamic cache")
)


def kv_cache_memory_mb(layers: int, heads: int, head_dim: int, tokens: int, bytes_each: int) -> float:
    """The tutorial's formula for one sequence, in decimal megabytes."""
    return 2 * layers * heads * tokens * head_dim * bytes_each / 1e6


def memory_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Nine sizes in float16, by the tutorial's formula and as a cache here holds them; then the sentence that
    contradicts the table."""
    largest = QUICK_LARGEST if models.setting.is_quick else LARGEST
    for name, geometry in tutorial_geometries().items():
        for tokens in MEMORY_LENGTHS:
            num_bytes = predicted(geometry, tokens, "float16")
            sheet, note = BY_FORMULA, "by this program's formula, not allocated in tensors"
            if num_bytes <= largest:
                num_bytes, sheet, note = held_bytes(geometry, tokens), IN_TENSORS, ""
            shown = round(kv_cache_memory_mb(*sizes(geometry), tokens, 2), 1)
            item = f"{name}, {tokens:,} tokens, float16"
            yield sheet.must(item, shown, round(num_bytes / 1e6, 1), "MB", note, heading=BY_THE_CHAPTER)
    geometry = tutorial_geometries()[SLIP_MODEL]
    for dtype, bytes_each in (("float16", 2), ("float32", 4)):
        megabytes = predicted(geometry, SLIP_TOKENS, dtype) / 1e6
        assert abs(megabytes - kv_cache_memory_mb(*sizes(geometry), SLIP_TOKENS, bytes_each)) < 1e-6
        item = f"the text: a 7B model at {SLIP_TOKENS:,} tokens, {dtype}"
        note = SLIP if dtype == "float16" else "the text's range holds for 32-bit numbers alone"
        line = BY_FORMULA.figure(item, published.SLIP_GB, round(megabytes, 1), "MB", note)
        yield replace(line, agrees=1000 <= megabytes <= 2000)


def predicted(geometry: CacheGeometry, tokens: int, dtype: str) -> int:
    return budget_of(geometry, BudgetSpec(context=tokens, dtype=dtype)).total_bytes


def sizes(geometry: CacheGeometry) -> tuple[int, int, int]:
    layer = geometry.layers[0]
    return len(geometry.layers), layer.num_kv_heads, layer.key_dim


def held_bytes(geometry: CacheGeometry, tokens: int) -> int:
    """Bytes of the tensors of a dynamic cache with that many rows of zeros."""
    layers, heads, head_dim = sizes(geometry)
    config = LlamaConfig(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads, hidden_size=heads * head_dim
    )
    cache = SequenceCache(CacheSpec("dynamic"), config, tokens)
    rows = torch.zeros(1, heads, tokens, head_dim, dtype=torch.float16)
    for layer in range(layers):
        cache.model_cache.update(rows, rows, layer)
    return cache.stored_bytes


# ---- with a cache and without ----------------------------------------------------------------------------------------

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
    driver = Driver.in_mode(model, PRESETS[cache].spec, len(prompt))
    chosen = int(driver.compute(prompt).argmax())
    for _ in range(new - 1):
        chosen = int(driver.compute([chosen]).argmax())
