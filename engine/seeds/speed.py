"""The speed table of the Hugging Face document: 200 tokens without a cache, with a dynamic and with a static one."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from msgspec.structs import replace
from transformers.generation.configuration_utils import CompileConfig

from engine.analysis.bench import bench
from engine.model.loader import LoadedModel
from engine.seeds import published
from engine.seeds.line import FieldValue, SeedLine
from engine.seeds.models import SeedModel, SeedModels, with_native_attention
from engine.spec.presets import PRESETS
from engine.wire.measurements import BenchRefused, BenchRow

COMPILED = "static, compiled"
FIRST = "static, first run"
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {"use_cache": False},
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
}
OWN_CACHES = ("none", "dynamic", "static", "growing")


def speed_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Every published run beside transformers' own `generate` here, in alternating turns; then this program's
    engine."""
    model, setting = models.smollm2, models.setting
    seconds: dict[str, float | None] = {}
    texts: dict[str, list[int]] = {}
    taken: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for number in range(setting.repeats):
        for name in OPTIONS if number % 2 == 0 else reversed(OPTIONS):
            took, texts[name] = generate(model.loaded, setting.num_tokens, **OPTIONS[name])
            taken[name].append(took)
    seconds.update({name: statistics.median(values) for name, values in taken.items()})
    refusal = why_not_compiled(model.loaded, setting.is_quick)
    if not refusal:
        try:
            seconds[FIRST], seconds[COMPILED] = compiled(model.loaded, setting.num_tokens)
        except Exception as error:  # a compiler can fail in many ways
            refusal = f"it could not be compiled ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    yield from run_lines(seconds, refusal, setting.num_tokens, model.words)
    yield from text_lines(texts, model.words)
    yield from ratio_lines(seconds, refusal, model.words)
    yield peak_line(model)
    yield from engine_lines(models)


def run_lines(seconds: dict[str, float | None], refusal: str, num_tokens: int, words: str) -> Iterator[SeedLine]:
    """Each run of the document, by its cache and hardware."""
    for run in published.RUNS:
        is_compiled = run.note == "compiled"
        name = COMPILED if is_compiled else run.cache
        took = seconds.get(name)
        note = f"{run.seconds:g} s there" + (f" ({run.note})" if run.note else "")
        if took is None:
            note += f"; not measured here: {refusal}"
        else:
            note += f", {took:.2f} s here for {num_tokens} tokens"
        rate = None if took is None else round(num_tokens / took, 1)
        yield figure(f"{run.cache} · {run.hardware}", run.tok_per_s, rate, "tokens/s", note, words)


def ratio_lines(seconds: dict[str, float | None], refusal: str, words: str) -> Iterator[SeedLine]:
    """The speed-up by a cache on each machine of the document, which can be compared between machines."""
    by_machine: dict[str, dict[str, int]] = {}
    for run in published.RUNS:
        if run.hardware in ("L4", "T4", "A100"):
            by_machine.setdefault(run.hardware, {})[run.cache] = run.tok_per_s
    for machine, rates in by_machine.items():
        static = "static" if machine == "T4" else COMPILED
        for over, under, label in (("dynamic", "none", "dynamic"), (static, "dynamic", static)):
            slow, fast = seconds.get(under), seconds.get(over)
            key = "static" if over != "dynamic" else "dynamic"
            gain = round(slow / fast, 2) if slow and fast else None
            note = "" if gain is not None else f"not measured here: {refusal}"
            shown = round(rates[key] / rates[under], 2)
            yield figure(f"{label} over {under} · {machine}", shown, gain, "×", note, words)


def text_lines(texts: dict[str, list[int]], words: str) -> Iterator[SeedLine]:
    """Whether all caches generate the same text; in the document the static one, in bfloat16, generated another."""
    for name, was_same in (("none", True), ("static", False)):
        note = "" if was_same else "in bfloat16 it told another text from the second new token on: rounding can do that"
        is_same = texts[name] == texts["dynamic"]
        line = figure(f"{name} gives the tokens of dynamic", was_same, is_same, "", note, words)
        yield replace(line, agrees=is_same if was_same else None)


def peak_line(model: SeedModel) -> SeedLine:
    """The most memory that torch has allocated on a GPU so far."""
    is_gpu = model.loaded.device.type == "cuda"
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 2) if is_gpu else None
    note = "of a whole notebook, on a T4" + ("" if is_gpu else "; not measured here: there is no GPU in use")
    return figure("torch.cuda.max_memory_allocated()", published.PEAK_GIB, peak, "GiB", note, model.words)


def engine_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The same measurements with this program's engine, whose modes take turns."""
    model = models.smollm2
    specs, ways = {name: PRESETS[name].spec for name in OWN_CACHES}, {COMPILED: "compile"}
    refusal = why_not_compiled(model.loaded, models.setting.is_quick)
    if not refusal:
        specs[COMPILED] = specs["static"]
    context, count = len(published.PROMPT_IDS), models.setting.num_tokens
    for row in bench(model.loaded, specs, (context,), count, prompt_ids=published.PROMPT_IDS, runners=ways):
        if isinstance(row, BenchRefused) and row.cache == COMPILED:
            refusal = row.unavailable
        if isinstance(row, BenchRow):
            note = f"{row.ratio:g} × {row.base}; {row.overhead_ratio:.0%} of a step is overhead"
            yield figure(f"{row.cache} · this engine", None, round(row.tok_per_s, 1), "tokens/s", note, model.words)
    if refusal:
        note = f"not measured here: {refusal}"
        yield figure(f"{COMPILED} · this engine", None, None, "tokens/s", note, model.words)


def figure(item: str, shown: FieldValue, measured: FieldValue, unit: str, note: str, on: str) -> SeedLine:
    return SeedLine(published.HUGGING_FACE, "speed", item, shown, measured, unit, note=note, on=on)


def generate(model: LoadedModel, num_tokens: int, **options: Any) -> tuple[float, list[int]]:
    """Seconds of transformers' greedy `generate`, called as in the document, and the new tokens."""
    ids = torch.tensor([published.PROMPT_IDS], device=model.device)
    fixed = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": num_tokens}
    with with_native_attention(model) as module:
        began = time.perf_counter()
        found = module.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **options)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        took = time.perf_counter() - began
    return took, found[0, ids.shape[1] :].tolist()


def compiled(model: LoadedModel, num_tokens: int) -> tuple[float, float]:
    """Seconds of the first generation, which compiles, and of the next one."""
    how = CompileConfig()
    how._compile_all_devices = True  # `generate` compiles on a CPU only on request
    options = {"cache_implementation": "static", "compile_config": how}
    try:
        first, _ = generate(model, num_tokens, **options)
        return first, generate(model, num_tokens, **options)[0]
    finally:
        torch.compiler.reset()


def why_not_compiled(model: LoadedModel, is_quick: bool) -> str:
    """Why the static cache is not measured compiled; empty if it is."""
    if is_quick:
        return "the short form compiles nothing"
    if model.device.type == "cuda":
        return "" if find_spec("triton") is not None else "there is no triton to compile with"
    names = (os.environ.get("CXX", ""), "g++", "clang++", "cl")
    has_compiler = any(name and shutil.which(name) for name in names)
    return "" if has_compiler else "there is no C++ compiler here (CXX, g++ or clang++)"
