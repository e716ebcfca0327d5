"""What each capture level measures of a step, when the measurements are read, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.look.candidates import Sample, candidate_measures
from engine.look.measures import NewRows, attention_measures
from engine.look.transfer import Packing
from engine.session.forward import COSTS_KEPT, Captured
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.codec import uniform
from engine.spec.model import CAPTURES, CaptureLevel
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pictures import RowPicture, RowRequest
from tests.engine.session.records import assert_same_records
from tests.engine.session.sessions import GROWING, SEEDED, tensors
from tests.engine.tiny import model_of, prompt_ids


def begun(level: CaptureLevel = "rows", late_steps: int | None = None, cache: CacheSpec = GROWING) -> Session:
    session = Session(model_of("llama"), cache, capture=level, late_steps=late_steps)
    session.submit(Prompt(token_ids=prompt_ids(8), sampling=SEEDED))
    return session


@pytest.mark.parametrize("late_steps", [1, 2, 3])
@pytest.mark.parametrize("cache", ["growing", "paged", "h2o", "int8"])
def test_records_that_are_read_late_are_those_that_are_read_at_once(late_steps: int, cache: str) -> None:
    spec = cache_preset(cache).spec
    at_once, late = begun(cache=spec), begun(late_steps=late_steps, cache=spec)
    expected = [at_once.step() for _ in range(9)]
    found = [late.step()]
    for number in range(1, 9):
        found += late.step_late()
        assert len(found) == 1 + max(0, number - late_steps), "records of the newest steps are not waited for"
    assert late.observer.num_open
    found += late.observer.complete()
    assert not late.observer.num_open
    assert_same_records(expected, found)
    nodes = [[entry.node.checksums for entry in session.history.tree] for session in (at_once, late)]
    assert nodes[0] == nodes[1]
    assert all(nodes[0])


def test_a_step_that_fails_loses_no_record_of_the_steps_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session, twin = begun(late_steps=2), begun()
    expected = [twin.step() for _ in range(4)]
    found = [session.step(), *session.step_late(), *session.step_late()]
    with monkeypatch.context() as patch:
        patch.setattr("engine.session.stepper.sample", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.step_late()
    found += session.observer.complete()
    assert [record.step for record in found] == [0, 1, 2]
    found.append(session.step())
    assert_same_records(expected, found)
    mine, others = tensors(session), tensors(twin)
    assert all(torch.equal(mine[key], others[key]) for key in others)


def test_each_level_measures_what_its_name_says_and_all_levels_choose_the_same_tokens() -> None:
    found, twin = {}, begun()
    expected = [twin.step().sequences[0].sampled for _ in range(4)]
    for level in CAPTURES:
        session = begun(level)
        records = [session.step() for _ in range(4)]
        part = records[-1].sequences[0]
        rows = session.history.rows.get((3, 0)) or {}
        found[level] = (
            part.rows is not None,
            bool(part.candidates) and part.entropy is not None and part.surprisal[0] is not None,
            bool(records[-1].checksums),
            part.attention is not None and session.history.attention.get((3, 0)) is not None,
            len(rows) == 2 * len(session.cache_of(0).layers),
        )
        assert [record.sequences[0].sampled for record in records] == expected, level
        if rows:
            newest = session.cache_of(0).all_newest_rows(10)
            assert all(
                torch.equal(rows[2 * layer + part], pair[part]) for layer, pair in newest.items() for part in (0, 1)
            )
        assert [name for name, _ in session.captured.costs_ms] == [level]
    assert found == {
        "off": (False,) * 5,
        "statistics": (True, True, True, False, False),
        "rows": (True, True, True, True, False),
        "everything": (True,) * 5,
    }


def test_the_level_changes_between_two_steps() -> None:
    session = begun("off")
    session.step()
    session.captured.set("statistics", by_layer=False)
    part = session.step().sequences[0]
    assert part.rows is not None
    assert part.surprisal[0] is not None, "the logits before it are kept at every level"
    assert part.attention is None


@pytest.mark.parametrize("num_sequences", [1, 2])
def test_outputs_of_a_recorded_step_are_copied_before_it_is_replayed(num_sequences: int) -> None:
    """The next step overwrites them in place."""
    kept = []
    for runner in ("fused", "graph"):
        session = Session(model_of("llama"), cache_preset("paged").spec)
        for number in range(num_sequences):
            session.submit(Prompt(token_ids=prompt_ids(8 + number), sampling=SEEDED))
        with session.model.runners.chosen_as(runner):
            records = [session.step() for _ in range(6)]
        assert records[-1].runner == runner
        history = session.history
        for step in range(num_sequences, 6):
            for seq_id in range(num_sequences):
                rows, logits = history.attention.get((step, seq_id)), history.logits.get((step, seq_id))
                assert rows is not None
                assert logits is not None
                kept.append((runner, step, seq_id, *rows.values(), logits[0]))
    half = len(kept) // 2
    for one, other in zip(kept[:half], kept[half:], strict=True):
        assert one[1:3] == other[1:3]
        for mine, others in zip(one[3:], other[3:], strict=True):
            assert torch.allclose(mine, others, atol=1e-4), one[:3]


@pytest.mark.parametrize("level", ["statistics", "rows", "everything"])
@pytest.mark.parametrize("cache", ["growing", "paged", "static"])
def test_what_leaves_the_device_does_not_grow_with_the_context(level: CaptureLevel, cache: str) -> None:
    sizes = []
    for length in (4, 40, 100):
        session = Session(model_of("llama"), cache_preset(cache).spec, capture=level)
        session.submit(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams()))
        session.step()
        session.step()
        sizes.append(session.observer.ring.num_bytes)
    assert sizes[0] == sizes[1] == sizes[2] > 0


def test_the_parts_of_a_step_and_the_gap_before_it_make_up_the_time_that_passed() -> None:
    session = begun()
    session.step()
    records = [session.step() for _ in range(20)]
    for record in records:
        times = record.timings
        assert times.gap_ms > 0
        assert times.total_ms + times.gap_ms == pytest.approx(times.wall_ms, rel=1e-6)
    session.stepper.rest()
    times = session.step().timings
    assert times.gap_ms == 0.0, "time between two steps belongs to no step"
    assert times.total_ms == pytest.approx(times.wall_ms, rel=1e-6)


@pytest.mark.parametrize("level", ["statistics", "rows", "everything"])
def test_a_step_sends_at_most_a_tenth_more_than_its_new_rows(level: CaptureLevel) -> None:
    """At the shape of SmolLM2-135M, whose new rows are 46,080 bytes a token in float32."""
    layers, heads, kv_heads, dim, vocabulary = 30, 9, 3, 64, 49152
    rows = {n: (torch.rand(kv_heads, 1, dim), torch.rand(kv_heads, 1, dim)) for n in range(layers)}
    captured = Captured(level)
    found = NewRows.of(rows, 1).measure(rows, with_rows=captured.new_rows)
    found |= candidate_measures([Sample(torch.tensor(3), torch.rand(vocabulary).log_softmax(-1), None)])[0]
    found["surprisal"] = torch.tensor(0.5)
    if captured.attention_rows:
        found |= attention_measures({n: torch.rand(heads, 8192) for n in range(layers)}, 8192)
    new_rows = sum(part.nbytes for pair in rows.values() for part in pair)
    assert new_rows == 46080
    assert Packing.of(found).num_bytes <= 1.1 * new_rows


@pytest.mark.parametrize("with_rows", [False, True])
def test_a_batch_is_measured_as_its_sequences_one_by_one(with_rows: bool) -> None:
    rows_of = [{n: (torch.randn(2, 1, 8), torch.randn(2, 1, 4)) for n in range(3)} for _ in range(4)]
    rows_of[2][1][0][1, 0, 3] = torch.nan
    new_rows = NewRows.of(rows_of[0], 1)
    samples = [
        Sample(torch.tensor(n), raw := torch.randn(9000).log_softmax(-1), raw.exp() if n == 1 else None)
        for n in range(4)
    ]
    together = new_rows.measure_all(rows_of, with_rows=with_rows)
    for rows, sampled, found, candidates in zip(rows_of, samples, together, candidate_measures(samples), strict=True):
        torch.testing.assert_close(found, NewRows.of(rows, 1).measure(rows, with_rows=with_rows), equal_nan=True)
        torch.testing.assert_close(candidates, candidate_measures([sampled])[0])
        assert candidates["candidates.ids"].tolist() == sampled.logprobs.topk(20).indices.tolist()


@pytest.mark.parametrize(
    ("cache", "shown"),
    [
        ("growing", set()),
        ("dynamic", set()),
        ("paged", {"copies_ms"}),
        ("int8", {"dequantise_ms"}),
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_layers_are_timed_where_that_is_asked_for(cache: str, shown: set[str], architecture: str) -> None:
    """Through the fused decoder and through transformers; no timing hook stays behind."""
    session = Session(model_of(architecture), cache_preset(cache).spec, capture="off")
    session.submit(Prompt(token_ids=prompt_ids(20), sampling=SEEDED))
    session.step()
    session.captured.set("off", by_layer=True)
    times = session.step().timings
    layers = times.layers
    assert layers is not None
    assert layers.layers == tuple(range(len(session.cache_of(0).layers)))
    assert all(ms > 0 for ms in (*layers.attention_ms, *layers.cache_ms))
    assert {name for name in ("dequantise_ms", "copies_ms") if sum(getattr(layers, name))} == shown
    assert sum(layers.attention_ms) + layers.in_cache_ms < times.forward_ms
    assert layers.products_ms > 0
    session.captured.set("off", by_layer=False)
    assert session.step().timings.layers is None
    assert not any("update" in vars(layer) for layer in session.cache_of(0).model_cache.layers)


@pytest.mark.parametrize("spec", [GROWING, CacheSpec("growing", codec=uniform("kivi-4", 8, 8))])
def test_a_row_comes_with_what_was_written_before_it_was_coded(spec: CacheSpec) -> None:
    exact, session = begun(), begun("everything", cache=spec)
    for _ in range(4):
        exact.step()
        session.step()
    session.captured.set("rows", by_layer=False)
    session.step()
    truth = exact.cache_of(0).rows(0)
    assert truth is not None
    for position, is_coded in ((3, spec != GROWING), (9, False)):  # of the prompt, and of a step that is not coded yet
        piece = session.take_picture(RowRequest(0, 12, position))
        assert isinstance(piece, RowPicture)
        assert np.array_equal(piece.written_keys[0], truth.keys[0, :, position].numpy()), "layer 0 has no codes"
        assert np.array_equal(piece.written_keys[0], piece.keys[0]) == (not is_coded)
        assert len(piece.written_values) == len(piece.values)
    last = session.take_picture(RowRequest(0, 12, 11))
    assert isinstance(last, RowPicture)
    assert last.written_keys == (), "that step was captured at another level"


def test_what_looking_costs_is_the_median_of_the_newest_steps_at_each_level() -> None:
    captured = Captured()
    for cost in (900.0, 5.0, 1.0, 3.0):
        captured.note_cost("rows", cost)
    captured.note_cost("off", 7.0)
    assert captured.costs_ms == (("off", 7.0), ("rows", 4.0))
    for number in range(COSTS_KEPT):
        captured.note_cost("rows", float(number))
    assert captured.costs_ms[1] == ("rows", (COSTS_KEPT - 1) / 2)
