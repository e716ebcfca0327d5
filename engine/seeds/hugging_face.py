"""The tables of the Hugging Face document: tensors, how caches grow and how logits become a token; and the speed of 200
tokens without a cache, with a dynamic and with a static one."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from msgspec.structs import replace
from transformers.generation.configuration_utils import CompileConfig

from engine.analysis.bench import bench
from engine.model.loader import LoadedModel
from engine.seeds import published
from engine.seeds.models import SeedModels, SeedSetting, in_turns, seconds_of, with_native_attention
from engine.seeds.published import SeedLine, Sheet
from engine.session.driver import Driver
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import PARTS
from engine.wire.measurements import BenchRefused, BenchRow

# ---- tensors ---------------------------------------------------------------------------------------------------------

NUM_STEPS = len(published.NEXT_IDS)
NUM_PROMPT = len(published.PROMPT_IDS)
LATER_LAYER = 20
OTHER_WEIGHTS = "random weights: the numbers are others, the shapes are not"


@dataclass(frozen=True)
class TensorSheet(Sheet):
    """A table of tensors. `is_real`: they are those of the document's own weights."""

    is_real: bool = False

    def shape(self, item: str, shown: list[int], tensor: torch.Tensor) -> SeedLine:
        """A line for a shape, which must be the same for any weights."""
        return self.must(item, str(shown), str(list(tensor.shape)))

    def numbers(
        self, item: str, shown: tuple[float, ...], measured: tuple[float, ...], rtol: float = 0.02, atol: float = 0.05
    ) -> SeedLine:
        """A line for numbers that depend on the weights: compared only with the real weights, and within bfloat16
        precision."""
        if not self.is_real:
            return self.figure(item, shown, measured, note=OTHER_WEIGHTS)
        expected, found = (torch.tensor(numbers, dtype=torch.float64) for numbers in (shown, measured))
        close = torch.allclose(found, expected, rtol=rtol, atol=atol)
        return self.figure(item, shown, measured, note="compared to what bfloat16 keeps", agrees=close)

    def tokens(self, name: str, token_ids: list[int]) -> SeedLine:
        return self.numbers(f"{name}: the tokens it chose", published.NEXT_IDS, tuple(token_ids))


def shape_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The input and the cache after each of five steps. Without a cache the input grows by one token each step and is
    computed completely; with a dynamic one one token is computed, and the cache grows by a row; a static one has its
    full size from the first step on: numbers first, then zeros."""
    model = models.smollm2
    sheet = TensorSheet(published.HUGGING_FACE, "shapes", model.words, model.is_real)
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    for step in range(1, NUM_STEPS + 1):
        chosen = model.loaded.reference_logits(ids, positions=[ids.shape[1] - 1]).argmax(-1)
        ids = torch.cat([ids, chosen[None]], dim=-1)
        yield sheet.shape(f"no cache: input_ids after step {step}", [1, NUM_PROMPT + step], ids)
    yield sheet.tokens("no cache", ids[0, -NUM_STEPS:].tolist())
    driver, taken = Driver.in_mode(model.loaded, CacheSpec("dynamic"), NUM_PROMPT), list[int]()
    for step, keys in greedy_steps(driver, taken):
        yield sheet.shape(f"dynamic: next input_ids, step {step}", [1, 1], torch.tensor([taken[-1:]]))
        yield sheet.shape(f"dynamic: keys of layer 0, step {step}", [1, 3, NUM_PROMPT + step - 1, 64], keys)
        if step == 1:
            yield from layers_lines(sheet, driver.cache.model_cache.layers)
    yield sheet.tokens("dynamic", taken)
    driver = Driver.in_mode(model.loaded, CacheSpec("static", max_length=published.STATIC_LENGTH), NUM_PROMPT)
    taken = []
    for step, keys in greedy_steps(driver, taken):
        yield sheet.shape(f"static: keys of layer 0, step {step}", [1, 3, published.STATIC_LENGTH, 64], keys)
    keys = driver.cache.model_cache.layers[0].keys[0].float()
    column = tuple(round(float(number), 4) for number in keys[0, : len(published.STATIC_COLUMN), 0])
    yield sheet.numbers("static: keys[0][0][0][:20, 0]", published.STATIC_COLUMN, column)
    rows, held = keys.abs().amax(dim=(0, 2)).nonzero().flatten(), NUM_PROMPT + NUM_STEPS - 1
    yield sheet.must("static: rows that hold a token", held, len(rows))
    yield sheet.must("static: the last row that holds one", held - 1, int(rows[-1]))
    empty = int((keys == 0).all(dim=-1).all(dim=0).sum())
    yield sheet.must("static: rows of zeros behind", published.STATIC_LENGTH - held, empty)
    yield sheet.tokens("static", taken)


def greedy_steps(driver: Driver, chosen: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Greedy steps from 1 on: yields each with the keys of layer 0 after it, and appends its token to `chosen`."""
    computed: Sequence[int] = published.PROMPT_IDS
    for step in range(1, NUM_STEPS + 1):
        chosen.append(int(driver.compute(computed).argmax()))
        computed = chosen[-1:]
        yield step, driver.cache.model_cache.layers[0].keys


def layers_lines(sheet: TensorSheet, layers: list[Any]) -> Iterator[SeedLine]:
    """The number of layers, and that all have the same shape."""
    is_whole, shape = len(layers) > LATER_LAYER, [1, 3, NUM_PROMPT, 64]
    line = sheet.must("dynamic: len(past_key_values)", 30, len(layers))
    yield line if is_whole else replace(line, agrees=None, must_agree=False, note="the short form has no more")
    yield sheet.shape("dynamic: values of layer 0, step 1", shape, layers[0].values)
    for name in PARTS if is_whole else ():
        tensor = getattr(layers[LATER_LAYER], name)
        yield sheet.shape(f"dynamic: {name} of layer {LATER_LAYER}, step 1", shape, tensor)


def logit_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Logits, softmax, argmax: the next token computed by hand."""
    model = models.smollm2
    sheet = TensorSheet(published.HUGGING_FACE, "logits", model.words, model.is_real)
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    logits = model.loaded.reference_logits(ids)[None].float()  # [1, T, V]
    last = logits[0, -1]
    probabilities, by_hand = last.softmax(-1), softmax_by_hand(last)
    yield sheet.shape("next_logits.shape", [1, NUM_PROMPT, 49152], logits)
    yield sheet.numbers("the last row: first and last three logits", published.LAST_LOGITS, ends(last))
    item = "torch.softmax of it: first and last three"
    yield sheet.numbers(item, published.PROBABILITIES, ends(probabilities, 16), rtol=0.25, atol=0.0)
    yield sheet.figure("exp(x − max) / Σ exp(x − max): its sum", None, round(float(by_hand.sum()), 6))
    difference = float((by_hand - probabilities).abs().max())
    yield sheet.figure("by hand against torch.softmax: largest difference", None, difference)
    same = int(by_hand.argmax()) == int(last.argmax())
    yield sheet.must("the argmax of logits is that of probabilities", True, same)
    yield sheet.numbers("next_token_id", published.NEXT_IDS[:1], (int(last.argmax()),))


def softmax_by_hand(logits: torch.Tensor) -> torch.Tensor:
    """Probabilities `[V]` from logits `[V]`, following the definition."""
    powers = (logits - logits.max()).exp()
    return powers / powers.sum()


def ends(numbers: torch.Tensor, digits: int = 4) -> tuple[float, ...]:
    """The first and the last three numbers, as tensors are printed."""
    return tuple(round(number, digits) for number in (*numbers[:3].tolist(), *numbers[-3:].tolist()))


# ---- speed -----------------------------------------------------------------------------------------------------------

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
