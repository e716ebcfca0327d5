"""Whether everything works on a device: every cache mode in every dtype against the forward without a cache, recorded
steps at the edges of their buckets, what is measured on its way from the device, and the times that are told of it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from engine.analysis.device_models import SHARING_CONFIG, Verdict, model_on, token_ids
from engine.analysis.device_waits import WAITED, WaitsCheck
from engine.analysis.reference import Reference, measure, parity, reference, session_logits
from engine.errors import InputError, first_line
from engine.model.loader import LoadedModel
from engine.model.runners.launch import bucket_of
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_preset
from engine.spec.runners import RUNNERS, RunnerName
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.tuning import fitted
from engine.to_device import Returning

DRIVER = Path("/sys/module/nvidia/version")
DTYPES = ("float32", "bfloat16", "float16")
RECORDED_CACHES = ("static", "growing", "paged")
RUN_STEPS, WALL_SHARE = 40, 0.03
BUSY_SIZE, BUSY_PRODUCTS = 4096, 50  # of square matrices: a card takes a tenth of a second, and reading a number less


@dataclass(frozen=True)
class CheckResult:
    """One thing that was tried, what came of it, and how long it took."""

    group: str
    name: str
    verdict: Verdict
    words: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """How much is tried: `dtypes`, the lengths at which steps are recorded, and seconds after which no more is."""

    dtypes: tuple[str, ...] = DTYPES
    edges: tuple[int, ...] = (64, 96, 128, 192, 256, 512, 1024)
    caches: tuple[str, ...] = tuple(PRESETS)
    page_sizes: tuple[int, ...] = (16, 128)  # of pages that are read in place
    limit_s: float = 120.0
    compiles: bool = False  # the first step of each takes a minute


SHORT = Plan(("float32",), (64,), ("growing", "paged", "h2o", "none"), (16,))


def about(device: torch.device) -> dict[str, str]:
    """What was checked on, for whoever reads the report."""
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
    """Of the driver of NVIDIA's cards, as NVML or the system tells it; "unknown" where neither does."""
    if find_spec("pynvml"):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    return DRIVER.read_text("utf-8").strip() if DRIVER.exists() else "unknown"


def check_device(device: torch.device, plan: Plan) -> Iterator[CheckResult]:
    """Everything of the plan, one result at a time; what the time does not suffice for is told as not done."""
    began = time.perf_counter()
    for dtype in plan.dtypes:
        try:
            model = model_on(device, dtype)
        except (InputError, RuntimeError) as error:
            yield CheckResult(dtype, "the model", "not here", first_line(error))
            continue
        for group, name, check in checks(model, dtype, plan):
            if time.perf_counter() - began > plan.limit_s:
                yield CheckResult(group, name, "not done", f"{plan.limit_s:g} s were over")
            else:
                yield tried(group, name, check)


def tried(group: str, name: str, check: Callable[[], tuple[Verdict, str]]) -> CheckResult:
    """One check; whatever it raises is its failure, and the next one goes on."""
    began = time.perf_counter()
    try:
        verdict, words = check()
    except InputError as error:
        verdict, words = "not here", str(error)
    except Exception as error:  # this is the place where faults are found
        verdict, words = "FAILED", f"{type(error).__name__}: {first_line(error)}"
    return CheckResult(group, name, verdict, words, time.perf_counter() - began)


def checks(model: LoadedModel, dtype: str, plan: Plan) -> Iterator[tuple[str, str, Callable[[], tuple[Verdict, str]]]]:
    """What is tried of a model, each with the group that it belongs to."""
    truth = reference(model, token_ids(21), 8)
    for name in plan.caches:
        yield f"modes · {dtype}", name, CacheCheck(model, name, truth)
    # every shape is compiled: the other dtypes try the smallest pages
    for size in plan.page_sizes if dtype == plan.dtypes[0] else plan.page_sizes[:1]:
        for runner in ("transformers", "fused", "graph", *(("compile",) if plan.compiles else ())):
            yield f"pages · {dtype}", f"{runner}, pages of {size}", PagesCheck(model, runner, size)
    if dtype == plan.dtypes[0] and plan.page_sizes:
        yield f"pages · {dtype}", "layers that share", SharingCheck(model.device, dtype)
    runners: dict[RunnerName, tuple[int, ...]] = {"graph": plan.edges}
    if plan.compiles:
        runners["compile"] = plan.edges[:1]
    for runner, edges in runners.items():
        for edge in edges:
            for cache in RECORDED_CACHES:
                yield f"{runner} · {dtype}", f"{cache} around {edge}", RecordedCheck(model, runner, cache, edge)
    for cache in RECORDED_CACHES:
        yield f"measured · {dtype}", f"read late, {cache}", LateCheck(model, cache)
    yield f"measured · {dtype}", "times", TimesCheck(model)
    if model.device.type == "cuda":
        yield f"measured · {dtype}", "a token", TokenCheck(model.device)
        for cache, by in WAITED:
            yield f"measured · {dtype}", f"waits, {cache} through {RUNNERS[by].label}", WaitsCheck(model, cache, by)


@dataclass(frozen=True, eq=False)
class CacheCheck:
    """A cache mode against the forward without a cache: judged where it is lossless, else finite logits are enough."""

    model: LoadedModel
    name: str
    truth: Reference

    def __call__(self) -> tuple[Verdict, str]:
        with self.model.runners.chosen_as("fused"):  # pages are gathered: reading them in place is tried by itself
            found = parity(self.model, self.name, cache_preset(self.name).spec, self.truth, prefill_chunk=8)
        is_sound = found.passes and found.max_abs_logit_diff < float("inf")
        judged = f"within {found.tolerance:g}" if found.lossless else "lossy, measured"
        return "ok" if is_sound else "FAILED", f"max |Δlogit| {found.max_abs_logit_diff:.1e}, {judged}"


@dataclass(frozen=True, eq=False)
class RecordedCheck:
    """Recorded steps against the same steps computed one by one, from before the edge of a bucket to behind it."""

    model: LoadedModel
    runner: RunnerName
    cache: str
    edge: int

    def __call__(self) -> tuple[Verdict, str]:
        runners = self.model.runners
        if why := runners.why_not(self.runner):
            return "not here", why
        prompt, forced = token_ids(self.edge - 3), token_ids(6)
        spec = fitted(cache_preset(self.cache).spec, len(prompt) + len(forced))
        found: list[torch.Tensor] = []
        for name in ("fused", self.runner):
            with runners.chosen_as(name):
                session = Session(self.model, spec)
                found.append(session_logits(session, prompt, forced))
                if name == self.runner and runners.used != self.runner:
                    return "FAILED", runners.note or f"{RUNNERS[self.runner].label} were not used: {runners.used}"
                session.close()
        result = measure(self.cache, True, found[1], found[0], self.model.info.dtype)
        buckets = sorted({bucket_of(self.edge + n, None) for n in (-1, 0, 1)})
        words = f"max |Δlogit| {result.max_abs_logit_diff:.1e}, buckets {' and '.join(map(str, buckets))}"
        return "FAILED" if result.is_beyond else "ok", words


@dataclass(frozen=True, eq=False)
class PagesCheck:
    """Pages read where they lie against gathered ones: prompts, and the tokens of three sequences at once, over the
    edge of a page."""

    model: LoadedModel
    runner: str
    page_size: int

    def __call__(self) -> tuple[Verdict, str]:
        runners, found = self.model.runners, list[torch.Tensor]()
        if why := runners.pages.why_not or runners.why_not(self.runner):  # type: ignore[arg-type]
            return "not here", why
        is_whole = runners.pages.kernel is not None or self.runner not in ("graph", "compile")
        for name in ("transformers" if runners.why_not("fused") else "fused", f"{self.runner}+pages"):
            runners.pages.refused = ""
            with runners.chosen_as(name):
                logits, used = self.logits()
                found.append(logits)
                names = name.split("+") if is_whole else [self.runner if "pages" in name else "fused"]
                if sorted(used.split("+")) != sorted(names):
                    return "FAILED", runners.note or f"{name} was not used: {used}"
        result = measure("paged", True, found[1], found[0], self.model.info.dtype)
        words = f"max |Δlogit| {result.max_abs_logit_diff:.1e}" + ("" if is_whole else ", gathered: there is no kernel")
        return "FAILED" if result.is_beyond else "ok", words

    def logits(self) -> tuple[torch.Tensor, str]:
        """Logits `[n, V]` of three sequences behind their prompts and of four steps together, and what computed the
        last."""
        session = Session(self.model, CacheSpec("paged", page_size=self.page_size))
        for length in (2 * self.page_size - 2, 2 * self.page_size - 7, self.page_size + 1):  # one shape
            session.force(session.submit(Prompt(token_ids=token_ids(length), has_start=True)), token_ids(8))
        found, used = list[torch.Tensor](), ""
        while session.is_prefilling:
            session.step()
        for _ in range(5):
            logits = [session.logits(seq_id) for seq_id in session.live.ids]
            found += [each.float().cpu() for each in logits if each is not None]
            used = session.step().runner
        session.close()
        return torch.stack(found), used


@dataclass(frozen=True, eq=False)
class SharingCheck:
    """The same of a model with windows, and with layers that read the pages of another one."""

    device: torch.device
    dtype: str

    def __call__(self) -> tuple[Verdict, str]:
        return PagesCheck(model_on(self.device, self.dtype, SHARING_CONFIG), "transformers", 16)()


@dataclass(frozen=True, eq=False)
class LateCheck:
    """What is measured of a run of two sequences that is read late, with every step launched before its tokens are
    known, is what is measured of the same run that is waited for."""

    model: LoadedModel
    cache: str

    def __call__(self) -> tuple[Verdict, str]:
        at_once, late = (run_session(self.model, late_steps, self.cache, 2) for late_steps in (0, 2))
        expected = [at_once.step() for _ in range(RUN_STEPS)]
        found = [late.step(), late.step(), *(each for _ in range(RUN_STEPS - 2) for each in late.step_late())]
        found += late.finish_records()
        if late.ring.note:
            return "FAILED", late.ring.note
        for one, other in zip(expected, found, strict=True):
            mine, others = ([(part.sampled, part.candidates) for part in each.sequences] for each in (one, other))
            if (mine, one.checksums) != (others, other.checksums):
                return "FAILED", f"step {one.step} measured something else when it was read late"
        return "ok", f"{RUN_STEPS} steps, {late.ring.num_bytes:,} bytes a step"


@dataclass(frozen=True, eq=False)
class TimesCheck:
    """Forward, sampling, looking and what lies between two steps make up the time that the host sees pass."""

    model: LoadedModel

    def __call__(self) -> tuple[Verdict, str]:
        session = run_session(self.model, None)
        session.step()
        records = [record for _ in range(RUN_STEPS) for record in session.step_late()] + session.finish_records()
        times = [record.timings for record in islice(records, 3, None)]
        parts, wall = sum(one.total_ms + one.gap_ms for one in times), sum(one.wall_ms for one in times)
        share = abs(parts - wall) / wall
        words = f"{parts / len(times):.3f} ms in parts, {wall / len(times):.3f} ms passed, {share:.1%} apart"
        return "ok" if share <= WALL_SHARE else "FAILED", words


@dataclass(frozen=True, eq=False)
class TokenCheck:
    """A token is read while the device computes what it was asked for behind it."""

    device: torch.device

    def __call__(self) -> tuple[Verdict, str]:
        token, rows = torch.ones((), dtype=torch.long, device=self.device), torch.eye(BUSY_SIZE, device=self.device)
        made = rows @ rows  # what is made with the first product is waited for here
        torch.cuda.synchronize(self.device)
        returning = Returning(token)
        for _ in range(BUSY_PRODUCTS):
            made = made @ rows
        read, is_busy = int(returning), not torch.cuda.current_stream(self.device).query()
        if read != 1 or not is_busy:
            return "FAILED", f"{read} of 1 was read{'' if is_busy else ', and the next forward was waited for'}"
        return "ok", "read while the next forward is computed"


def run_session(model: LoadedModel, late_steps: int | None, cache: str = "growing", count: int = 1) -> Session:
    spec = fitted(cache_preset(cache).spec, 16 + RUN_STEPS)
    session = Session(model, spec, late_steps=late_steps)
    for number in range(count):
        session.submit(Prompt(token_ids=token_ids(12 + number), sampling=SamplingParams(0.8, seed=5 + number)))
    return session


def report(device: torch.device, results: list[CheckResult], seconds: float) -> str:
    """All of it as text to paste: what it ran on, a line for each group, and each failure by itself."""
    lines = ["KV Loupe, checked on a device", *(f"  {name}: {value}" for name, value in about(device).items()), ""]
    for group in dict.fromkeys(result.group for result in results):
        mine = [result for result in results if result.group == group]
        counts = Counter(each.verdict for each in mine)
        lines.append(f"  {group:<22} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        lines += [f"    {each.verdict}: {each.name}: {each.words}" for each in mine if each.verdict != "ok"]
        lines += [f"    {each.name}: {each.words}" for each in mine if each.verdict == "ok" and "measured" in group]
    failed = sum(result.verdict == "FAILED" for result in results)
    undone = sum(result.verdict == "not done" for result in results)
    end = "everything that could be tried is in order" if not failed else f"{failed} of {len(results)} checks failed"
    lines.append(f"\n  {end}{f'; {undone} were not done' if undone else ''}; {seconds:.0f} s")
    return "\n".join(lines)


def as_json(result: CheckResult) -> dict[str, Any]:
    return {
        "event": "check", "group": result.group, "name": result.name, "verdict": result.verdict,
        "words": result.words, "seconds": round(result.seconds, 3),
    }  # fmt: skip
