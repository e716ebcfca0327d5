"""Steps on a device: recorded steps around the limits of their buckets, pages read in place, asynchronous measurements,
and timings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from typing import Any, Final

import numpy as np
import pytest
import torch
from msgspec.structs import astuple

from engine.analysis.reference import largest, session_logits
from engine.analysis.tolerance import TOLERANCES
from engine.cache.layers.layer import GrowingLayer
from engine.device import HostNumber, HostTime
from engine.look.candidates import likely_tokens
from engine.look.measures import ROUNDING, NewRows, PackedMeasures, attention_measures
from engine.model.loader import LoadedModel
from engine.model.runners.launch import SMALLEST_BUCKET, Launches, bucket_of
from engine.model.runners.pages import PageReader
from engine.session import sampler
from engine.session.observe import checksums_of
from engine.session.session import Session
from engine.session.stepper import LaunchedAhead
from engine.spec.cache import CacheSpec, cache_preset, fitted
from engine.spec.model import CAPTURES, RunnerName
from engine.spec.sampling import NEWEST_DRAWS, LogitBias, Prompt, SamplingParams
from engine.wire.records import StepRecord
from tests.effort import effort
from tests.engine.card import CARD, card, has_card, moved
from tests.engine.card_streams import Card
from tests.engine.tiny import prompt_ids, tiniest_model
from tests.gpu import faults
from tests.gpu.models import CONFIG, DEVICE, SHARING_CONFIG, VOCABULARY, cases, model_of, new_model, token_ids

CACHES = ("growing", "static", "paged")
DTYPES = ("float32", "bfloat16", "float16")
COMPILED: list[RunnerName] = effort([], ["compile"])
OTHERS = [*product(DTYPES[1:], CACHES)]
RUN_STEPS, WALL_SHARE = 40 if DEVICE.type == "cuda" else 12, 0.03
DRAWN_NUMBERS = 1000
BUSY_SIZE, BUSY_PRODUCTS = 4096, 50  # matrix products that keep a GPU busy for a tenth of a second


def skip_unless_possible(why_not: str) -> None:
    if why_not:
        pytest.skip(why_not)


# ---- recorded steps --------------------------------------------------------------------------------------------------

LONGEST = CONFIG["max_position_embeddings"]
# Steps with longer contexts, up to the model's longest, are tried in the first dtype only.
EVERYWHERE_EDGE = 1024


def bucket_edges() -> list[int]:
    """The lengths of the buckets of recorded steps."""
    found = [bucket_of(1, None)]
    while found[-1] < LONGEST:
        found.append(bucket_of(found[-1] + 1, None))
    return found


SHORTEST = [("graph", "float32", cache, SMALLEST_BUCKET) for cache in CACHES]
RECORDED = [
    (runner, dtype, cache, edge)
    for runner, dtype, edge, cache in product(("graph", *COMPILED), DTYPES, bucket_edges(), CACHES)
    if edge <= (EVERYWHERE_EDGE if dtype != DTYPES[0] else SMALLEST_BUCKET if runner == "compile" else LONGEST)
]


@pytest.mark.parametrize(
    ("runner", "dtype", "cache", "edge"), cases(SHORTEST, [each for each in RECORDED if each not in SHORTEST])
)
def test_recorded_steps_are_those_that_are_not(runner: RunnerName, dtype: str, cache: str, edge: int) -> None:
    check_recorded(model_of(dtype), runner, cache, edge)


def check_recorded(model: LoadedModel, runner: RunnerName, cache: str, edge: int) -> None:
    """Compare recorded steps with the same steps computed without recording, across the limit of a bucket."""
    runners = model.runners
    skip_unless_possible(runners.why_not(runner))
    prompt = token_ids(edge - 3)
    forced = token_ids(min(6, model.max_length - len(prompt)))  # fewer if the context ends at the edge
    spec = fitted(cache_preset(cache).spec, len(prompt) + len(forced))
    found: list[torch.Tensor] = []
    for name in ("fused", runner):
        with runners.chosen_as(name):
            session = Session(model, spec)
            found.append(session_logits(session, prompt, forced))
            assert session.last_step is not None
            work = session.history.tree.at(session.last_step).node.work
            assert name != runner or (work is not None and work.runner == runner), runners.note
            session.close()
    check_logits(found, model.info.dtype)


def check_logits(found: list[torch.Tensor], dtype: str) -> None:
    """Compare two tensors of logits `[n, V]`: they are as close as rounding explains."""
    expected, logits = found
    assert largest(logits, expected) <= TOLERANCES[dtype].logit


def test_buckets_end_where_the_next_ones_begin() -> None:
    edges = bucket_edges()
    assert (edges[0], edges[-1]) == (SMALLEST_BUCKET, LONGEST)
    assert [bucket_of(edge, None) for edge in edges] == edges
    assert [bucket_of(edge + 1, None) for edge in edges[:-1]] == edges[1:]


# ---- pages read in place ---------------------------------------------------------------------------------------------

PAGES = [("float32", runner, 16) for runner in ("transformers", "fused", "graph")]
# Each shape is compiled, so only the first dtype tries a large page.
LARGE = [("float32", runner, 128) for runner in ("transformers", "fused", "graph", *COMPILED)]
PAGES_ON_GPU = [(dtype, runner, 16) for dtype in DTYPES[1:] for runner in ("transformers", "fused", "graph", *COMPILED)]


@pytest.mark.parametrize(("dtype", "runner", "page_size"), cases(PAGES, LARGE + PAGES_ON_GPU))
def test_pages_read_in_place_are_those_that_are_gathered(dtype: str, runner: RunnerName, page_size: int) -> None:
    check_pages(model_of(dtype), runner, page_size)


def test_pages_are_read_in_place_by_layers_that_share_them() -> None:
    """In a model with sliding windows and with layers that read the pages of another layer."""
    check_pages(new_model("float32", SHARING_CONFIG), "transformers", 16)


def check_pages(model: LoadedModel, runner: RunnerName, page_size: int) -> None:
    """Compare pages read in place with gathered ones: the prompts and decode steps of three sequences at once, across
    the end of a page."""
    runners, found = model.runners, list[torch.Tensor]()
    skip_unless_possible(runners.pages.why_not or runners.why_not(runner))
    is_whole = runners.pages.kernel is not None or runner not in ("graph", "compile")
    for name in ("transformers" if runners.why_not("fused") else "fused", f"{runner}+pages"):
        runners.pages.refused = ""
        with runners.chosen_as(name):
            logits, used = logits_of_three(model, page_size)
            found.append(logits)
            names = name.split("+") if is_whole else [runner if "pages" in name else "fused"]
            assert sorted(used.split("+")) == sorted(names), runners.note
    check_logits(found, model.info.dtype)


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


# ---- what is measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "cache"), cases(product(DTYPES[:1], CACHES), OTHERS))
def test_records_that_are_read_late_are_those_that_are_waited_for(dtype: str, cache: str) -> None:
    check_late(model_of(dtype), cache)


def check_late(model: LoadedModel, cache: str) -> None:
    """Of two sequences, with each step launched before the previous tokens are known."""
    at_once, late = (run_session(model, late_steps, cache, 2) for late_steps in (0, 2))
    expected = [at_once.step() for _ in range(RUN_STEPS)]
    found = [late.step(), late.step(), *(each for _ in range(RUN_STEPS - 2) for each in late.step_late())]
    found += late.observer.complete()
    assert not late.observer.ring.note
    for one, other in zip(expected, found, strict=True):
        mine, others = ([(part.sampled, part.candidates) for part in each.sequences] for each in (one, other))
        assert (mine, one.checksums) == (others, other.checksums), f"step {one.step}"


def run_session(model: LoadedModel, late_steps: int | None, cache: str = "growing", count: int = 1) -> Session:
    """A session with `count` sequences whose tokens are sampled; see `Session` for `late_steps`."""
    spec = fitted(cache_preset(cache).spec, 16 + RUN_STEPS)
    session = Session(model, spec, late_steps=late_steps)
    for number in range(count):
        session.submit(
            Prompt(token_ids=token_ids(12 + number), sampling=SamplingParams(0.8, seed=5 + number, draws=NEWEST_DRAWS))
        )
    return session


@pytest.mark.parametrize(("dtype", "cache"), cases(product(DTYPES[:1], CACHES), OTHERS))
def test_what_a_recorded_step_measures_is_what_is_there(dtype: str, cache: str) -> None:
    check_packed_measures(model_of(dtype), cache)


def check_packed_measures(model: LoadedModel, cache: str) -> None:
    """At every capture level and across the limit of a bucket."""
    runners = model.runners
    skip_unless_possible(runners.why_not("graph"))
    prompt, num_steps = token_ids(SMALLEST_BUCKET - 3), 5
    spec = fitted(cache_preset(cache).spec, len(prompt) + num_steps + 1)
    for level in (level for level in CAPTURES if level != "off"):
        session = Session(model, spec, capture=level)
        session.submit(Prompt(token_ids=prompt, has_start=True))
        with runners.chosen_as("graph"):
            while session.is_prefilling:
                session.step()
            for _ in range(num_steps):
                record = session.step()
                assert record.runner.split("+")[0] == "graph", runners.note
                check_record(session, record)
        session.close()


def check_record(session: Session, record: StepRecord) -> None:
    """Compare the record of the newest step, of one sequence, with the session's logits, rows and weights."""
    (part,) = record.sequences
    cache, logits = session.cache_of(part.seq_id), session.logits(part.seq_id)
    assert logits is not None, "it has been stepped"
    rows = cache.all_newest_rows(part.first_position)
    measured = {name: found.cpu().numpy() for name, found in NewRows.of(rows, 1).measure(rows).items()}
    new_rows = NewRows.of(rows, 1).statistics(measured, part.first_position)
    assert record.checksums == checksums_of([part.first_position], [new_rows.checksums])
    likely = likely_tokens(torch.log_softmax(logits.float(), -1)[None])
    expected = likely["candidates.logprobs"][0].tolist()
    pairs = [(sorted((each.logprob for each in part.candidates), reverse=True), expected)]
    pairs.append(([part.entropy or 0.0], [float(likely["candidates.entropy"][0])]))
    if part.rows is not None:
        pairs += zip(map(flat, astuple(part.rows)[1:]), map(flat, astuple(new_rows.stats)[1:]), strict=True)
    weights = session.history.attention_with(part.seq_id, part.num_tokens)
    if part.attention is not None:
        masses = attention_measures(weights, part.num_tokens)["attention"].unbind(-1)
        pairs += zip(map(flat, astuple(part.attention)[1:]), (mass.flatten().tolist() for mass in masses), strict=True)
    for found, other in pairs:
        np.testing.assert_allclose(found, other, rtol=ROUNDING, atol=ROUNDING)


def flat(array: Any) -> list[float]:
    found: list[float] = array.ravel().tolist()
    return found


@pytest.mark.parametrize("dtype", cases([("float32",)], [("bfloat16",), ("float16",)]))
def test_the_parts_of_a_step_add_up_to_the_time_that_passes(dtype: str) -> None:
    check_times(model_of(dtype))


def check_times(model: LoadedModel) -> None:
    """Forward pass, sampling, observing and the gap between steps, against the clock of the host."""
    session = run_session(model, None)
    session.step()
    records = [record for _ in range(RUN_STEPS) for record in session.step_late()] + session.observer.complete()
    times = [record.timings for record in islice(records, 3, None)]
    parts, wall = sum(one.total_ms + one.gap_ms for one in times), sum(one.wall_ms for one in times)
    assert parts == pytest.approx(wall, rel=WALL_SHARE)


def test_the_random_numbers_of_a_seed_are_the_same_bits() -> None:
    check_draws()


def check_draws() -> None:
    """When a device computes them together and when they are computed one by one; and they give the same draws as on a
    CPU."""
    here, seed = torch.device("cpu"), 2**63 - 1
    made = sampler.numbers(seed, DRAWN_NUMBERS, DEVICE).tolist()
    # one by one: where CI is set, pytest takes minutes to explain how two long lists differ, as with a planted fault
    assert all(each % 2**64 == sampler.number(seed, index) for index, each in enumerate(made))
    found, expected = (sampler.exponentials(seed, 7, VOCABULARY, each).cpu() for each in (DEVICE, here))
    assert torch.allclose(found, expected, rtol=1e-5)


# ---- nothing waits for the device; where there is none, for one that is simulated ------------------------------------


@contextmanager
def device_that_runs_beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A GPU, or a simulated one with small work for it."""
    if DEVICE.type == "cuda":
        yield DEVICE
        return
    if not has_card():
        pytest.skip("this torch keeps its devices elsewhere")
    for name, value in (
        ("BUSY_SIZE", 4),
        ("LENGTHS", (6, 9)),
        ("WARM_UPS", 2),
        ("STEPS", 2),
        ("token_ids", prompt_ids),
    ):
        monkeypatch.setitem(globals(), name, value)
    with card(monkeypatch, Card()):
        yield CARD


def test_a_token_can_be_read_while_the_next_forward_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with device_that_runs_beside(monkeypatch) as device:
        check_token(device, HostNumber)
        with pytest.raises(AssertionError, match="waited for"):
            check_token(device, lambda token: token)


def check_token(device: torch.device, returned: Any) -> None:
    token, rows = torch.ones((), dtype=torch.long, device=device), torch.eye(BUSY_SIZE, device=device)
    made = rows @ rows  # whatever the first product initialises is waited for here
    torch.cuda.synchronize(device)
    returning = returned(token)
    for _ in range(BUSY_PRODUCTS):
        made = made @ rows
    read, is_busy = int(returning), not torch.cuda.current_stream(device).query()
    assert read == 1
    assert is_busy, "the next forward was waited for"


WAITED: Final[tuple[tuple[str, RunnerName], ...]] = (
    ("growing", "auto"), ("paged", "auto"), ("paged", "transformers"), ("h2o", "auto"),
)  # fmt: skip
LENGTHS = (40, 44)  # no step of the run is the first of a bucket, which is verified and therefore waited for
WARM_UPS, STEPS = 6, 10


ALL_WAITED = [(dtype, *each) for dtype, each in product(DTYPES, WAITED)]


@pytest.mark.parametrize(("dtype", "cache", "runner"), cases(ALL_WAITED[2:4], ALL_WAITED[:2] + ALL_WAITED[4:]))
def test_a_decode_step_never_waits(dtype: str, cache: str, runner: RunnerName, monkeypatch: pytest.MonkeyPatch) -> None:
    with device_that_runs_beside(monkeypatch) as device:
        model = moved(tiniest_model(), "auto") if device == CARD and DEVICE != CARD else model_of(dtype)
        check_waits(model, cache, runner)
        monkeypatch.setattr(sampler, "drawn", lambda probs, *_: probs.argmax() + int(probs[0] * 0))
        with pytest.raises(RuntimeError, match="called a synchronizing operation"):
            check_waits(model, cache, runner)


def check_waits(model: LoadedModel, cache: str, runner: RunnerName) -> None:
    """Decode steps of two sequences, one with biased logits, contain no operation that makes the host wait for the
    device. The chosen token is copied asynchronously and waited for by its event."""
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


@contextmanager
def no_waits() -> Iterator[None]:
    """Within this context torch raises `RuntimeError` if the host would wait for a GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# ---- these tests can fail --------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Any, str, Any, Any]] = {
    "recorded steps": (
        Launches,
        "run",
        faults.changed(Launches.run, faults.of_other_logits),
        lambda: check_recorded(new_model("float32"), "graph", "growing", SMALLEST_BUCKET),
    ),
    "recorded steps in bfloat16": (
        GrowingLayer,
        "append",
        faults.of_other_values,
        lambda: check_recorded(new_model("bfloat16"), "graph", "growing", SMALLEST_BUCKET),
    ),
    "pages": (
        PageReader,
        "read",
        faults.changed(PageReader.read, lambda read: 1.1 * read),
        lambda: check_pages(new_model("float32"), "fused", 16),
    ),
    "read late": (LaunchedAhead, "of", faults.of_other_tokens, lambda: check_late(new_model("float32"), "growing")),
    "drawn": (sampler, "numbers", faults.changed(sampler.numbers, lambda numbers: numbers ^ 1), check_draws),
    "within": (
        PackedMeasures,
        "clone",
        faults.changed(PackedMeasures.clone, faults.of_other_bytes),
        lambda: check_packed_measures(new_model("float32"), "growing"),
    ),
    "times": (
        HostTime,
        "ms_since",
        faults.changed(HostTime.ms_since, lambda ms: 1.1 * ms),
        lambda: check_times(new_model("float32")),
    ),
}


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the faults are those of the CPU")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *fault, check = FAULTS[name]
    monkeypatch.setattr(*fault)
    with pytest.raises(AssertionError):
        check()
