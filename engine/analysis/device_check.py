"""Checks that everything works on a device: every cache mode in every dtype against the forward pass without a cache,
recorded steps around the limits of their buckets, asynchronous measurements, and timings."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from engine.analysis import device_modes
from engine.analysis.device_models import (
    CONFIG,
    WEIGHTS_DTYPE,
    WEIGHTS_LOSS,
    Fault,
    check_encoder,
    check_split,
    check_weights,
    model_on,
    token_ids,
)
from engine.analysis.device_modes import check_mode
from engine.analysis.device_steps import (
    WAITED,
    check_draws,
    check_late,
    check_pages,
    check_recorded,
    check_sharing,
    check_strip,
    check_times,
    check_token,
    check_waits,
)
from engine.analysis.reference import reference
from engine.errors import InputError, first_line
from engine.model.loader import LoadedModel
from engine.model.runners.launch import bucket_of
from engine.spec.model import RUNNERS, RunnerName
from engine.spec.presets import ALL_PRESETS, cache_named

Verdict = Literal["ok", "FAILED", "not here", "not done"]
Check = Callable[[], str]  # returns what is in order; raises `Fault`, or `InputError` where it cannot be made here
Planned = tuple[str, str, Check]  # group, name in it, check

DRIVER = Path("/sys/module/nvidia/version")
DTYPES = ("float32", "bfloat16", "float16")
RECORDED_CACHES = ("static", "growing", "paged")
# Recorded steps with longer contexts, up to the model's longest, are checked in the first dtype only.
EVERYWHERE_EDGE = 1024
JOINED = ("paged+h2o", "h2o+int8", "int8/kivi-4")  # combinations that are no preset


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check, and how long it took."""

    group: str
    name: str
    verdict: Verdict
    words: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """How much is checked: in which `dtypes`, up to which length steps are recorded, and the seconds after which no
    further check is started."""

    dtypes: tuple[str, ...] = DTYPES
    longest: int = CONFIG["max_position_embeddings"]
    caches: tuple[str, ...] = (*ALL_PRESETS, *JOINED)
    page_sizes: tuple[int, ...] = (16, 128)  # for checks of pages read in place
    limit_s: float = 120.0
    compiles: bool = False  # also check compiled steps, the first of which takes a minute each
    kinds: bool = True  # also check other models: an encoder-decoder, quantised weights, one split over GPUs


SHORT = Plan(("float32",), 64, ("growing", "paged", "h2o", "int8", "none"), (16,), kinds=False)


def bucket_edges(longest: int) -> tuple[int, ...]:
    """The lengths of the buckets of recorded steps, up to `longest` tokens."""
    found = [bucket_of(1, None)]
    while found[-1] < longest:
        found.append(bucket_of(found[-1] + 1, None))
    return tuple(edge for edge in found if edge <= longest)


def about(device: torch.device) -> dict[str, str]:
    """The versions, the device and the driver, for the head of the report."""
    told = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told["card"] = f"{properties.name}, {properties.total_memory >> 20:,} MiB"
        told["compute capability"] = f"{properties.major}.{properties.minor}"
        told["driver"] = driver_version()
        told["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return told


def driver_version() -> str:
    """The version of NVIDIA's driver from NVML or from /sys; "unknown" if neither has it."""
    if find_spec("pynvml"):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    return DRIVER.read_text("utf-8").strip() if DRIVER.exists() else "unknown"


def check_device(device: torch.device, plan: Plan) -> Iterator[CheckResult]:
    """Run all checks of the plan and yield their results one at a time; those for which no time is left are "not
    done"."""
    began = time.perf_counter()
    for group, name, check in planned(device, plan):
        if time.perf_counter() - began > plan.limit_s:
            yield CheckResult(group, name, "not done", f"{plan.limit_s:g} s were over")
        else:
            yield run_check(group, name, check)


def planned(device: torch.device, plan: Plan) -> Iterator[Planned]:
    """All checks of the plan. The longest recorded steps come last, because they take the most time and find the
    least."""
    first: LoadedModel | None = None
    for dtype in plan.dtypes:
        try:
            model = model_on(device, dtype)
        except (InputError, RuntimeError) as error:
            yield dtype, "the model", partial(refuse, first_line(error))
            continue
        first = first or model
        yield from checks(model, dtype, plan)
    if first is not None:
        yield from recorded(first, [edge for edge in bucket_edges(plan.longest) if edge > EVERYWHERE_EDGE], ("graph",))


def is_quick(cache: str) -> bool:
    """Whether a cache mode needs no compilation."""
    return not cache_named(cache).row.is_compiled


def refuse(why: str) -> str:
    raise InputError(why)


def run_check(group: str, name: str, check: Check) -> CheckResult:
    """Run one check. An exception becomes the result FAILED, so that the next check can run."""
    began = time.perf_counter()
    verdict: Verdict = "ok"
    try:
        words = check()
    except InputError as error:
        verdict, words = "not here", str(error)
    except Fault as fault:
        verdict, words = "FAILED", str(fault)
    except Exception as error:  # finding faults is the purpose
        verdict, words = "FAILED", f"{type(error).__name__}: {first_line(error)}"
    return CheckResult(group, name, verdict, words, time.perf_counter() - began)


def checks(model: LoadedModel, dtype: str, plan: Plan) -> Iterator[Planned]:
    """All checks of one model in one dtype."""
    ids = token_ids(device_modes.PROMPT + device_modes.STEPS)
    truth = reference(model, ids[: device_modes.PROMPT], 0, forced=ids[device_modes.PROMPT :])
    on_cpu = model if model.device.type == "cpu" else model_on("cpu", dtype)
    for name in plan.caches if plan.compiles else filter(is_quick, plan.caches):
        yield f"modes · {dtype}", name, partial(check_mode, model, on_cpu, name, truth)
    # Each shape is compiled, so only the first dtype checks all page sizes; the others check the smallest.
    for size in plan.page_sizes if dtype == plan.dtypes[0] else plan.page_sizes[:1]:
        for runner in ("transformers", "fused", "graph", *(("compile",) if plan.compiles else ())):
            yield f"pages · {dtype}", f"{runner}, pages of {size}", partial(check_pages, model, runner, size)
    if dtype == plan.dtypes[0] and plan.page_sizes:
        yield f"pages · {dtype}", "layers that share", partial(check_sharing, model.device, dtype)
    edges = bucket_edges(min(plan.longest, EVERYWHERE_EDGE))
    yield from recorded(model, edges, ("graph",))
    if plan.compiles:
        yield from recorded(model, edges[:1], ("compile",))
    for cache in RECORDED_CACHES:
        yield f"measured · {dtype}", f"read late, {cache}", partial(check_late, model, cache)
        yield f"measured · {dtype}", f"within a recorded step, {cache}", partial(check_strip, model, cache)
    yield f"measured · {dtype}", "times", partial(check_times, model)
    yield f"measured · {dtype}", "drawn tokens", partial(check_draws, model.device)
    if model.device.type == "cuda":
        yield f"measured · {dtype}", "a token", partial(check_token, model.device)
        for cache, by in WAITED:
            yield (
                f"measured · {dtype}",
                f"waits, {cache} through {RUNNERS[by].label}",
                partial(check_waits, model, cache, by),
            )
    if plan.kinds:
        yield f"models · {dtype}", "encoder-decoder", partial(check_encoder, model.device, dtype)
        yield f"models · {dtype}", "over several GPUs", partial(check_split, model)
        if dtype == WEIGHTS_DTYPE:
            for weights in WEIGHTS_LOSS:
                yield f"models · {dtype}", f"{weights} weights", partial(check_weights, model.device, dtype, weights)


def recorded(model: LoadedModel, edges: Sequence[int], runners: tuple[RunnerName, ...]) -> Iterator[Planned]:
    """Checks of recorded steps around the limits of buckets."""
    for runner, edge, cache in product(runners, edges, RECORDED_CACHES):
        yield (
            f"{runner} · {model.info.dtype}",
            f"{cache} around {edge}",
            partial(check_recorded, model, runner, cache, edge),
        )


def report(device: torch.device, results: list[CheckResult], seconds: float) -> str:
    """The results as text that can be copied: the environment, a line for each group, and each failure."""
    lines = ["KV Loupe, checked on a device", *(f"  {name}: {value}" for name, value in about(device).items()), ""]
    for group in dict.fromkeys(result.group for result in results):
        mine = [result for result in results if result.group == group]
        counts = Counter(each.verdict for each in mine)
        lines.append(f"  {group:<22} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        lines += [f"    {each.verdict}: {each.name}: {each.words}" for each in mine if each.verdict != "ok"]
        lines += [f"    {each.name}: {each.words}" for each in mine if each.verdict == "ok" and "measured" in group]
    failed, undone = (sum(each.verdict == verdict for each in results) for verdict in ("FAILED", "not done"))
    end = f"{failed} of {len(results)} checks failed" if failed else "everything that was tried is in order"
    missing = f"INCOMPLETE: {undone} of {len(results)} checks were not done for want of time; " if undone else ""
    lines.append(f"\n  {missing}{end}; {seconds:.0f} s")
    return "\n".join(lines)


def exit_code(results: list[CheckResult]) -> int:
    """1 if a check failed, 3 if none failed but some were not done, else 0."""
    verdicts = {result.verdict for result in results}
    return 1 if "FAILED" in verdicts else 3 if "not done" in verdicts else 0


def as_json(result: CheckResult) -> dict[str, Any]:
    return {"event": "check", **asdict(result), "seconds": round(result.seconds, 3)}
