"""The bench: modes take turns in every place, a row says what it rests on, one that cannot be does not stop others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.analysis.bench import (
    MOST,
    MOST_SEQUENCES,
    ROUNDS,
    STARTS,
    BenchPoint,
    Contender,
    TimedModel,
    as_kind,
    bench,
    check_sizes,
    quartile_range,
    rotated,
    synthetic_ids,
)
from engine.errors import InputError
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.wire.commands import Cancel
from engine.wire.events import Failed, StateChanged
from engine.wire.measurements import Bench, Benched, BenchRefused, BenchRow
from tests.engine.cli.conftest import Twin
from tests.engine.loop.driver import Driver
from tests.engine.tiny import model_of, write_config


def specs(*names: str) -> dict[str, CacheSpec]:
    return {name: PRESETS[name].spec for name in names}


def rows_of(*arguments: object, **options: object) -> list[BenchRow | BenchRefused]:
    pieces = bench(model_of("llama"), *arguments, **options)  # type: ignore[arg-type]
    return [piece for piece in pieces if not isinstance(piece, tuple)]


def test_the_bench_compares_modes_that_take_turns() -> None:
    """The base of the ratios is named: it is not the first that was asked for, where that one is refused."""
    refused, first, second = rows_of(specs("kivi-4", "dynamic", "int8"), (30,), 16)
    assert isinstance(refused, BenchRefused)
    assert (refused.cache, refused.context, refused.batch) == ("kivi-4", 30, 1)
    assert "do not divide" in refused.unavailable
    assert isinstance(first, BenchRow)
    assert isinstance(second, BenchRow)
    assert (first.cache, first.ratio, first.ratio_spread) == ("dynamic", 1.0, 0.0)
    assert first.base == second.base == "dynamic"
    assert (first.num_steps, first.num_turns, first.device, first.dtype) == (16, ROUNDS, "cpu", "float32")
    assert first.kv_bytes == (30 + 1 + 16) * 2 * 2 * 2 * 16 * 4, "tokens x layers x K and V x heads x dim x bytes"
    assert second.kv_bytes < first.kv_bytes
    assert 0 < first.overhead_ratio < 1
    assert first.ttft_ms > 0
    assert first.tok_per_s == pytest.approx(1e3 / first.ms_per_step, rel=0.01)


def test_a_mode_is_measured_through_the_runners_that_it_names() -> None:
    """And one that the model cannot be computed by, or that is not used after all, is told and goes."""
    both = dict.fromkeys(("gathered", "in place"), PRESETS["paged"].spec)
    ways = {"gathered": "fused", "in place": "transformers+pages"}
    first, second = rows_of(both, (20,), 4, runners=ways)
    assert isinstance(first, BenchRow)
    assert isinstance(second, BenchRow)
    refused, row = rows_of(
        {**specs("growing"), "none": PRESETS["dynamic"].spec}, (20,), 4, runners={"growing": "graph+pages"}
    )
    assert isinstance(refused, BenchRefused)
    assert refused.unavailable.startswith("It was computed by recorded steps: recorded steps read gathered pages")
    assert isinstance(row, BenchRow)


def test_every_place_has_a_row_for_every_mode_and_one_that_cannot_says_so() -> None:
    rows = rows_of(specs("growing", "paged"), (8, 200, 20), 4, (1, 3))
    assert sorted((row.context, row.batch, row.cache) for row in rows) == [
        (context, batch, cache) for context in (8, 20, 200) for batch in (1, 3) for cache in ("growing", "paged")
    ]
    for row in rows:
        if row.context == 200:
            assert isinstance(row, BenchRefused)
            assert row.unavailable.startswith("200 tokens and 5 steps exceed the model's context of 128")
        else:
            assert isinstance(row, BenchRow)
            assert row.kv_bytes == row.batch * (row.context + 5) * 512, "no prefix is shared"


def test_a_ratio_is_that_of_speeds_turn_by_turn_and_speeds_count_every_sequence() -> None:
    model = as_kind(TimedModel, model_of("llama"))
    prompts = [rotated(synthetic_ids(model, 8), number) for number in range(2)]
    base, mine = (Contender(name, CacheSpec(), model, prompts, BenchPoint(8, 2, 4)) for name in ("dynamic", "paged"))
    for each in (base, mine):
        each.start(lambda: None)
        each.overhead = [0.5, 0.25, 0.75]
    base.step_ms, mine.step_ms = [10.0, 20.0, 40.0], [5.0, 20.0, 10.0]
    row = mine.row(base)
    assert (row.base, row.ratio, row.ratio_spread) == ("dynamic", 2.0, round(quartile_range([2.0, 1.0, 4.0]), 3))
    assert (row.ms_per_step, row.tok_per_s, row.overhead_ratio, row.num_turns) == (10.0, 200.0, 0.5, 3)
    assert row.spread == round(quartile_range([400.0, 100.0, 200.0]), 2)


def test_a_window_goes_beyond_the_context() -> None:
    full, window = rows_of(specs("growing", "sliding"), (120,), 16)
    assert isinstance(full, BenchRefused)
    assert isinstance(window, BenchRow)
    assert window.base == "sliding"


def test_a_room_that_ends_too_soon_is_said_and_the_others_go_on() -> None:
    some = {
        "static": tuned(PRESETS["static"].spec, max_length=20),
        "paged": tuned(PRESETS["paged"].spec, num_pages=4),
        "growing": CacheSpec(),
    }
    rows = {row.cache: row for row in rows_of(some, (16,), 12, (2,))}
    static, paged = rows["static"], rows["paged"]
    assert isinstance(static, BenchRefused)
    assert static.unavailable == "The cache is full after 20 tokens: give it more room."
    assert isinstance(paged, BenchRefused)
    assert paged.unavailable == "The page pool does not hold 2 sequences of 29 tokens: give it more pages."
    assert isinstance(rows["growing"], BenchRow)


def test_the_order_is_swapped_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    start, run = Contender.start, Contender.run

    def starts(self: Contender, check: object) -> None:
        turns.append(f"start {self.name}")
        start(self, check)  # type: ignore[arg-type]

    def runs(self: Contender, num_steps: int, check: object) -> None:
        turns.append(f"{self.name} {num_steps}")
        run(self, num_steps, check)  # type: ignore[arg-type]

    monkeypatch.setattr(Contender, "start", starts)
    monkeypatch.setattr(Contender, "run", runs)
    rows_of(specs("growing", "dynamic"), (8,), 3)
    assert turns[: 2 * STARTS] == [f"start {n}" for n in ("growing", "dynamic", "dynamic", "growing") * 2][:6]
    assert turns[2 * STARTS :] == [f"{n} 1" for n in ("dynamic", "growing", "growing", "dynamic", "dynamic", "growing")]


def test_it_ends_between_two_steps() -> None:
    class Enough(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 30:
            raise Enough

    with pytest.raises(Enough):
        list(bench(model_of("llama"), specs("none", "growing"), (8,), 64, check=check))


def test_what_is_nothing_to_measure_is_refused() -> None:
    for arguments in (({}, (8,), 4), (specs("none"), (), 4), (specs("none"), (0,), 4), (specs("none"), (8,), 0)):
        with pytest.raises(InputError, match=r"nothing to (measure|compare)"):
            rows_of(*arguments)
    for sizes in (((MOST + 1,), 4), ((8,), MOST + 1), ((8,), 4, (MOST_SEQUENCES + 1,))):
        with pytest.raises(InputError, match="is beyond measuring: give at most"):
            rows_of(specs("none"), *sizes)
    (row,) = rows_of(specs("sliding"), (1 << 20,), 4)
    assert isinstance(row, BenchRefused)
    assert row.unavailable.startswith("1,048,576 tokens and 5 steps exceed")
    check_sizes(specs("none"), (MOST, 1), MOST, (MOST_SEQUENCES, 1))
    model, check = as_kind(TimedModel, model_of("llama")), lambda: None
    Contender("growing", CacheSpec(), model, [], BenchPoint(123, 1, 4)).start(check)
    with pytest.raises(InputError, match="124 tokens and 5 steps exceed"):
        Contender("growing", CacheSpec(), model, [], BenchPoint(124, 1, 4)).start(check)
    endless = tuned(PRESETS["sliding"].spec, window=9)
    Contender("sliding", endless, model, [], BenchPoint(128, 1, 500)).start(check)
    with pytest.raises(InputError, match="129 tokens"):
        Contender("sliding", endless, model, [], BenchPoint(129, 1, 1)).start(check)


def test_tokens_that_mean_nothing_and_sequences_that_share_none() -> None:
    ids = synthetic_ids(model_of("llama"), 300)
    assert len(ids) == 300
    assert min(ids) >= 2
    assert max(ids) < 128
    assert rotated((1, 2, 3), 4) == (2, 3, 1)
    assert quartile_range([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert quartile_range([3.0]) == 0.0


# ---- the command line, and the loop ------------------------------------------------------------------------------


def test_bench_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin, source = Twin(capsys), f"shape:{write_config('llama', tmp_path)}"
    common = ("bench", "--model", source, "--steps", "4", "--threads", "1")
    lines = twin.lines(*common, "--contexts", "20,30", "--batch", "1,2", "--caches", "growing,h2o", "--budget", "10")
    assert [(line["cache"], line["context"], line["batch"], line["base"]) for line in lines] == [
        (cache, context, batch, "growing") for context in (20, 30) for batch in (1, 2) for cache in ("growing", "h2o")
    ]
    lines = twin.lines(*common, "--caches", "static:graph,static,paged:fused+pages", "--token-ids", "3,4,5,6")
    assert [(line["cache"], line["context"]) for line in lines] == [
        (name, 4) for name in ("static:graph", "static", "paged:fused+pages")
    ]
    assert "Unknown runner 'fast'" in twin.refused(*common, "--caches", "static:fast")
    status, out, _ = twin.run(*common, "--caches", "growing,sliding", "--window", "9", "--contexts", "126")
    assert status == 1
    assert out.splitlines()[0].startswith("growing                refused at 126 tokens × 1: 126 tokens and 5 steps")
    assert out.splitlines()[1].startswith("sliding                context 126")
    assert "not both" in twin.refused(*common, "--contexts", "20", "--token-ids", "1")
    assert "--batch: '2,x' is no list of counts" in twin.refused(*common, "--batch", "2,x")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    yield driver
    assert driver.loop.close(300)


def test_the_loop_answers_row_by_row(driver: Driver) -> None:
    command = Bench((("growing", CacheSpec()), ("int8", PRESETS["int8"].spec)), (8, 200), 4, (1, 2, 3), id=9)
    driver.send(command)
    driver.wait_for(Benched, 12)
    found = driver.of(Benched)
    assert sorted((one.row.cache, one.row.context, one.row.batch) for one in found) == [
        (cache, context, batch) for cache in ("growing", "int8") for context in (8, 200) for batch in (1, 2, 3)
    ]
    assert [one.is_last for one in found] == [False] * 11 + [True]
    assert {one.reply_to for one in found} == {9}
    assert found[0].request == command
    driver.send(Bench((), (8,), 4, id=10))
    assert "nothing to compare" in driver.wait_for(Failed).message


def test_a_cancel_ends_it_without_a_last_row(driver: Driver) -> None:
    driver.send(Bench(tuple(specs("none", "growing").items()), (8, 16, 24, 32, 64), 60, (1, 8)))
    driver.wait_for(Benched)
    driver.send(Cancel())
    driver.wait(lambda: driver.of(StateChanged) and driver.status.work is None and driver.status.model is not None)
    assert not any(one.is_last for one in driver.of(Benched))
