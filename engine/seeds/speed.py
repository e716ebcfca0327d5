"""The speed table of the Hugging Face document: 200 tokens without a cache, with a dynamic and with a static one."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from transformers.generation.configuration_utils import CompileConfig

from engine.analysis.bench import bench
from engine.model.loader import LoadedModel
from engine.seeds import published
from engine.seeds.line import SeedLine, Sheet
from engine.seeds.models import SeedModels, SeedSetting, in_turns, seconds_of, with_native_attention
from engine.spec.cache import PRESETS
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
    model, setting = models.smollm2.loaded, models.setting
    count, sheet = setting.num_tokens, Sheet(published.HUGGING_FACE, "speed", models.smollm2.words)
    taken = in_turns(OPTIONS, setting.repeats, lambda name: generate(model, count, **OPTIONS[name]))
    seconds = {name: statistics.median(took for took, _ in runs) for name, runs in taken.items()}
    refusal = why_not_compiled(model, setting.is_quick)
    if not refusal:
        try:
            seconds[FIRST], seconds[COMPILED] = compiled(model, count)
        except Exception as error:  # a compiler can fail in many ways
            refusal = f"it could not be compiled ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    yield from run_lines(sheet, seconds, refusal, count)
    yield from text_lines(sheet, {name: runs[-1][1] for name, runs in taken.items()})
    yield from ratio_lines(sheet, seconds, refusal)
    is_gpu = model.device.type == "cuda"
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 2) if is_gpu else None
    note = "of a whole notebook, on a T4" + ("" if is_gpu else "; not measured here: there is no GPU in use")
    yield sheet.figure("torch.cuda.max_memory_allocated()", published.PEAK_GIB, peak, "GiB", note)
    yield from engine_lines(sheet, model, setting)


def run_lines(sheet: Sheet, seconds: Mapping[str, float], refusal: str, num_tokens: int) -> Iterator[SeedLine]:
    """Each run of the document, by its cache and hardware."""
    for run in published.RUNS:
        took = seconds.get(COMPILED if run.note == "compiled" else run.cache)
        note = f"{run.seconds:g} s there" + (f" ({run.note})" if run.note else "")
        note += f"; not measured here: {refusal}" if took is None else f", {took:.2f} s here for {num_tokens} tokens"
        rate = None if took is None else round(num_tokens / took, 1)
        yield sheet.figure(f"{run.cache} · {run.hardware}", run.tok_per_s, rate, "tokens/s", note)


def ratio_lines(sheet: Sheet, seconds: Mapping[str, float], refusal: str) -> Iterator[SeedLine]:
    """The speed-up by a cache on each machine of the document, which can be compared between machines."""
    for machine in ("L4", "T4", "A100"):
        rates = {run.cache: run.tok_per_s for run in published.RUNS if run.hardware == machine}
        static = "static" if machine == "T4" else COMPILED
        for over, under, key in (("dynamic", "none", "dynamic"), (static, "dynamic", "static")):
            slow, fast = seconds.get(under), seconds.get(over)
            gain = round(slow / fast, 2) if slow and fast else None
            note = "" if gain is not None else f"not measured here: {refusal}"
            shown = round(rates[key] / rates[under], 2)
            yield sheet.figure(f"{over} over {under} · {machine}", shown, gain, "×", note)


def text_lines(sheet: Sheet, texts: Mapping[str, list[int]]) -> Iterator[SeedLine]:
    """Whether all caches generate the same text; in the document the static one, in bfloat16, generated another."""
    for name, was_same in (("none", True), ("static", False)):
        note = "" if was_same else "in bfloat16 it told another text from the second new token on: rounding can do that"
        is_same = texts[name] == texts["dynamic"]
        agrees = is_same if was_same else None
        yield sheet.figure(f"{name} gives the tokens of dynamic", was_same, is_same, "", note, agrees=agrees)


def engine_lines(sheet: Sheet, model: LoadedModel, setting: SeedSetting) -> Iterator[SeedLine]:
    """The same measurements with this program's engine, whose modes take turns."""
    specs, ways = {name: PRESETS[name].spec for name in OWN_CACHES}, {COMPILED: "compile"}
    refusal = why_not_compiled(model, setting.is_quick)
    if not refusal:
        specs[COMPILED] = specs["static"]
    prompt = published.PROMPT_IDS
    for row in bench(model, specs, (len(prompt),), setting.num_tokens, prompt_ids=prompt, runners=ways):
        if isinstance(row, BenchRefused) and row.cache == COMPILED:
            refusal = row.unavailable
        if isinstance(row, BenchRow):
            note = f"{row.ratio:g} × {row.base}; {row.overhead_ratio:.0%} of a step is overhead"
            yield sheet.figure(f"{row.cache} · this engine", None, round(row.tok_per_s, 1), "tokens/s", note)
    if refusal:
        note = f"not measured here: {refusal}"
        yield sheet.figure(f"{COMPILED} · this engine", None, None, "tokens/s", note)


def generate(model: LoadedModel, num_tokens: int, **options: Any) -> tuple[float, list[int]]:
    """Seconds of transformers' greedy `generate`, called as in the document, and the new tokens."""
    ids = torch.tensor([published.PROMPT_IDS], device=model.device)
    fixed = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": num_tokens}
    with with_native_attention(model) as module:
        took, found = seconds_of(
            model, lambda: module.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **options)
        )
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
