"""Checks of steps on a device: recorded steps around the limits of their buckets, pages read in place, asynchronous
measurements, and timings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import astuple

from engine.analysis.device_models import SHARING_CONFIG, VOCABULARY, Fault, model_on, token_ids
from engine.analysis.reference import session_logits
from engine.analysis.rounding import largest
from engine.analysis.tolerance import TOLERANCES
from engine.errors import InputError
from engine.look.candidates import likely_tokens
from engine.look.new_rows import NewRows
from engine.look.probe import attention_measures
from engine.look.strip import ROUNDING
from engine.model.loader import LoadedModel
from engine.model.runners.launch import SMALLEST_BUCKET, bucket_of
from engine.session import sampler
from engine.session.observe import Observation, checksums_of
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.capture import CAPTURES
from engine.spec.model import RUNNERS, RunnerName
from engine.spec.presets import cache_preset
from engine.spec.sampling import NEWEST_DRAWS, LogitBias, Prompt, SamplingParams
from engine.spec.tuning import fitted
from engine.to_device import HostNumber
from engine.wire.records import StepRecord

RUN_STEPS, WALL_SHARE = 40, 0.03
DRAWN_NUMBERS = 1000
BUSY_SIZE, BUSY_PRODUCTS = 4096, 50  # matrix products that keep a GPU busy for a tenth of a second


def check_recorded(model: LoadedModel, runner: RunnerName, cache: str, edge: int) -> str:
    """Check recorded steps against the same steps computed without recording, across the limit of a bucket."""
    runners = model.runners
    if why := runners.why_not(runner):
        raise InputError(why)
    prompt = token_ids(edge - 3)
    forced = token_ids(min(6, model.max_length - len(prompt)))  # fewer if the context ends at the edge
    longest = len(prompt) + len(forced)
    spec = fitted(cache_preset(cache).spec, longest)
    found: list[torch.Tensor] = []
    for name in ("fused", runner):
        with runners.chosen_as(name):
            session = Session(model, spec)
            found.append(session_logits(session, prompt, forced))
            used = runner_of_newest(session)
            if name == runner and used != runner:
                raise Fault(runners.note or f"{RUNNERS[runner].label} were not used: {used}")
            session.close()
    buckets = sorted({bucket_of(min(edge + n, longest), None) for n in (-1, 0, 1)})
    return check_logits(found, model.info.dtype, f", buckets {' and '.join(map(str, buckets))}")


def check_logits(found: list[torch.Tensor], dtype: str, where: str) -> str:
    """Raise `Fault` if two tensors of logits `[n, V]` are further apart than rounding explains."""
    expected, logits = found
    apart = largest(logits, expected)
    words = f"max |Δlogit| {apart:.1e}{where}"
    if not apart <= TOLERANCES[dtype].logit:
        raise Fault(words)
    return words


def check_pages(model: LoadedModel, runner: str, page_size: int) -> str:
    """Check pages read in place against gathered ones: the prompts and decode steps of three sequences at once, across
    the end of a page."""
    runners, found = model.runners, list[torch.Tensor]()
    if why := runners.pages.why_not or runners.why_not(runner):  # type: ignore[arg-type]
        raise InputError(why)
    is_whole = runners.pages.kernel is not None or runner not in ("graph", "compile")
    for name in ("transformers" if runners.why_not("fused") else "fused", f"{runner}+pages"):
        runners.pages.refused = ""
        with runners.chosen_as(name):
            logits, used = logits_of_three(model, page_size)
            found.append(logits)
            names = name.split("+") if is_whole else [runner if "pages" in name else "fused"]
            if sorted(used.split("+")) != sorted(names):
                raise Fault(runners.note or f"{name} was not used: {used}")
    return check_logits(found, model.info.dtype, "" if is_whole else ", gathered: there is no kernel")


def logits_of_three(model: LoadedModel, page_size: int) -> tuple[torch.Tensor, str]:
    """Logits `[n, V]` of three sequences after their prompts and in four decode steps as a batch, and the runner of the
    last step."""
    session = Session(model, CacheSpec("paged", page_size=page_size))
    for length in (2 * page_size - 2, 2 * page_size - 7, page_size + 1):  # a single shape
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


def check_sharing(device: torch.device, dtype: str) -> str:
    """As `check_pages`, for a model with sliding windows and with layers that read the pages of another layer."""
    return check_pages(model_on(device, dtype, SHARING_CONFIG), "transformers", 16)


def check_late(model: LoadedModel, cache: str) -> str:
    """Check that steps of two sequences whose records are read late, with each step launched before the previous tokens
    are known, have the same measurements as steps that are waited for."""
    at_once, late = (run_session(model, late_steps, cache, 2) for late_steps in (0, 2))
    expected = [at_once.step() for _ in range(RUN_STEPS)]
    found = [late.step(), late.step(), *(each for _ in range(RUN_STEPS - 2) for each in late.step_late())]
    found += late.observer.complete()
    if late.ring.note:
        raise Fault(late.ring.note)
    for one, other in zip(expected, found, strict=True):
        mine, others = ([(part.sampled, part.candidates) for part in each.sequences] for each in (one, other))
        if (mine, one.checksums) != (others, other.checksums):
            raise Fault(f"step {one.step} measured something else when it was read late")
    return f"{RUN_STEPS} steps, {late.ring.num_bytes:,} bytes a step"


def check_strip(model: LoadedModel, cache: str) -> str:
    """Check that what recorded steps measure inside themselves, at every capture level and across the limit of a
    bucket, agrees with their logits, rows and attention weights."""
    runners = model.runners
    if why := runners.why_not("graph"):
        raise InputError(why)
    prompt, num_steps = token_ids(SMALLEST_BUCKET - 3), 5
    spec = fitted(cache_preset(cache).spec, len(prompt) + num_steps + 1)
    levels = [level for level in CAPTURES if level != "off"]
    for level in levels:
        session = Session(model, spec, capture=level)
        session.submit(Prompt(token_ids=prompt, has_start=True))
        with runners.chosen_as("graph"):
            while session.is_prefilling:
                session.step()
            for _ in range(num_steps):
                record = session.step()
                if record.runner.split("+")[0] != "graph":
                    raise Fault(runners.note or f"no recorded step, but {record.runner}")
                if wrong := fault_of_strip(session, record):
                    raise Fault(f"{level}, with {record.sequences[0].num_tokens} tokens: {wrong}")
        session.close()
    return f"{', '.join(levels)}: {num_steps} steps each"


def runner_of_newest(session: Session) -> str:
    """The name of what computed the newest step."""
    work = None if session.last_step is None else session.history.tree.at(session.last_step).node.work
    return "" if work is None else work.runner


def fault_of_strip(session: Session, record: StepRecord) -> str:
    """What in the record of the newest step, of one sequence, disagrees with the session's logits, rows and weights;
    empty if nothing does."""
    (part,) = record.sequences
    cache, logits = session.cache_of(part.seq_id), session.logits(part.seq_id)
    assert logits is not None, "it has been stepped"
    rows = cache.all_newest_rows(part.first_position)
    measured = {name: found.cpu().numpy() for name, found in NewRows.of(rows, 1).measure(rows).items()}
    new_rows = NewRows.of(rows, 1).statistics(measured, part.first_position)
    if record.checksums != checksums_of([part.first_position], [Observation(checksums=new_rows.checksums)]):
        return "the new rows have other checksums"
    likely = likely_tokens(torch.log_softmax(logits.float(), -1)[None])
    expected = likely["candidates.logprobs"][0].tolist()
    pairs = [(sorted((each.logprob for each in part.candidates), reverse=True), expected)]
    pairs.append(([part.entropy or 0.0], [float(likely["candidates.numbers"][0, 0])]))
    if part.rows is not None:
        pairs += zip(map(flat, astuple(part.rows)[1:]), map(flat, astuple(new_rows.stats)[1:]), strict=True)
    weights = session.history.attention_with(part.seq_id, part.num_tokens)
    if part.attention is not None:
        masses = attention_measures(weights, part.num_tokens)["attention"].unbind(-1)
        pairs += zip(map(flat, astuple(part.attention)[1:]), (mass.flatten().tolist() for mass in masses), strict=True)
    for found, other in pairs:
        if not np.allclose(found, other, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
            return f"{max(abs(a - b) for a, b in zip(found, other, strict=True)):.1e} off what is there"
    return ""


def flat(array: Any) -> list[float]:
    found: list[float] = array.ravel().tolist()
    return found


def check_times(model: LoadedModel) -> str:
    """Check that the times of forward pass, sampling, observing and the gap between steps add up to the time that the
    host measures."""
    session = run_session(model, None)
    session.step()
    records = [record for _ in range(RUN_STEPS) for record in session.step_late()] + session.observer.complete()
    times = [record.timings for record in islice(records, 3, None)]
    parts, wall = sum(one.total_ms + one.gap_ms for one in times), sum(one.wall_ms for one in times)
    share = abs(parts - wall) / wall
    words = f"{parts / len(times):.3f} ms in parts, {wall / len(times):.3f} ms passed, {share:.1%} apart"
    if not share <= WALL_SHARE:
        raise Fault(words)
    return words


def check_token(device: torch.device) -> str:
    """Check that a token can be read while the device computes what was launched after it."""
    token, rows = torch.ones((), dtype=torch.long, device=device), torch.eye(BUSY_SIZE, device=device)
    made = rows @ rows  # whatever the first product initialises is waited for here
    torch.cuda.synchronize(device)
    returning = HostNumber(token)
    for _ in range(BUSY_PRODUCTS):
        made = made @ rows
    read, is_busy = int(returning), not torch.cuda.current_stream(device).query()
    if read != 1 or not is_busy:
        raise Fault(f"{read} of 1 was read{'' if is_busy else ', and the next forward was waited for'}")
    return "read while the next forward is computed"


def check_draws(device: torch.device) -> str:
    """Check that the random numbers of a seed are the same bits when a device computes them together as when they are
    computed one by one, and that they give the same draws as on a CPU."""
    here, seed = torch.device("cpu"), 2**63 - 1
    made = [each % 2**64 for each in sampler.numbers(seed, DRAWN_NUMBERS, device).tolist()]
    if made != [sampler.number(seed, index) for index in range(DRAWN_NUMBERS)]:
        raise Fault("other numbers than those of the rule")
    found, expected = (sampler.exponentials(seed, 7, VOCABULARY, each).cpu() for each in (device, here))
    if not torch.allclose(found, expected, rtol=1e-5):
        raise Fault("other exponential numbers than on the CPU")
    return f"{DRAWN_NUMBERS} numbers of a seed are those of the rule"


def run_session(model: LoadedModel, late_steps: int | None, cache: str = "growing", count: int = 1) -> Session:
    """A session with `count` sequences whose tokens are sampled; see `Session` for `late_steps`."""
    spec = fitted(cache_preset(cache).spec, 16 + RUN_STEPS)
    session = Session(model, spec, late_steps=late_steps)
    for number in range(count):
        session.submit(
            Prompt(token_ids=token_ids(12 + number), sampling=SamplingParams(0.8, seed=5 + number, draws=NEWEST_DRAWS))
        )
    return session


WAITED: Final[tuple[tuple[str, RunnerName], ...]] = (
    ("growing", "auto"), ("paged", "auto"), ("paged", "transformers"), ("h2o", "auto"),
)  # fmt: skip
LENGTHS = (40, 44)  # no step of the run is the first of a bucket, which is verified and therefore waited for
WARM_UPS, STEPS = 6, 10


def check_waits(model: LoadedModel, cache: str, runner: RunnerName) -> str:
    """Check that decode steps of two sequences, one with biased logits, contain no operation that makes the host wait
    for the device. The chosen token is copied asynchronously and waited for by its event."""
    session = Session(model, fitted(cache_preset(cache).spec, sum(LENGTHS), share=0.5))
    steered = SamplingParams(0.8, seed=1, top_p=0.9, bias=LogitBias(((5, 1.0),), (6, 7)), draws=NEWEST_DRAWS)
    for length, sampling in zip(LENGTHS, (SamplingParams(), steered), strict=True):
        session.submit(Prompt(token_ids=token_ids(length), sampling=sampling))
    with model.runners.chosen_as("" if runner == "auto" else runner):
        while session.is_prefilling:
            session.step()
        for _ in range(WARM_UPS):
            session.step_late()
        with no_waits():
            for _ in range(STEPS):
                session.step_late()
    session.observer.complete()
    session.close()
    return f"{STEPS} steps without one"


@contextmanager
def no_waits() -> Iterator[None]:
    """Within this context torch raises `RuntimeError` if the host would wait for a GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
