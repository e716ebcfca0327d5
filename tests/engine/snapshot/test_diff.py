"""Two snapshots apart: norms by layer and head, the first token that departs, rounding told from a fault."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.analysis.reference import row_errors as row_errors_of_torch
from engine.analysis.tolerance import TOLERANCES, tolerance_between
from engine.errors import InputError
from engine.session.session import Session
from engine.snapshot import diff
from engine.snapshot.diff import SnapshotDifference, difference, row_errors
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import PRESETS, tuned
from tests.engine.snapshot.sessions import begun, kept, small
from tests.engine.snapshot.test_read import sparse


def compared(one: Path, other: Path) -> SnapshotDifference:
    with SnapshotFile(one) as a, SnapshotFile(other) as b:
        *progress, found = difference(a, b)
    assert [done for done, _ in progress] == list(range(1, len(progress) + 1))  # type: ignore[misc]
    assert isinstance(found, SnapshotDifference)
    return found


def nudged(session: Session, part: str, head: int, row: int, channel: int, by: float) -> None:
    held = session.cache_of(0).rows(1)
    assert held is not None
    with torch.inference_mode():
        getattr(held, part)[0, head, row, channel] += by


def test_equal_to_the_last_bit_and_one_number_off(tmp_path: Path) -> None:
    a = kept(begun(small("growing")), tmp_path / "a.safetensors")
    found = compared(a, kept(begun(small("paged")), tmp_path / "b.safetensors"))
    assert (found.verdict, found.first_token, found.largest_logit) == ("equal", None, 0.0)
    session = begun(small("growing"))
    nudged(session, "values", head=1, row=17, channel=4, by=2.0)
    found = compared(a, kept(session, tmp_path / "c.safetensors"))
    assert (found.verdict, found.first_token) == ("different", 17)
    off = [head for head in found.heads if head.largest]
    assert [(h.layer, h.tensor, h.kv_head, h.first_departing) for h in off] == [(1, "values", 1, 17)]
    assert off[0].norm == pytest.approx(2.0)
    assert off[0].largest == pytest.approx(2.0)
    held = session.cache_of(0).rows(1)
    assert held is not None
    expected = held.values[0, 1].clone()
    expected[17, 4] -= 2.0
    assert off[0].relative == pytest.approx(2.0 / float(expected.norm()), rel=1e-5)
    errors = row_errors_of_torch(held.values[0, 1][None], expected[None])
    assert off[0].row_error == pytest.approx(float(errors.max()), rel=1e-4)


def test_rounding_is_told_from_a_fault(tmp_path: Path) -> None:
    a = kept(begun(small("growing")), tmp_path / "a.safetensors")
    session = begun(small("growing"))
    nudged(session, "keys", head=0, row=5, channel=2, by=1e-6)
    found = compared(a, kept(session, tmp_path / "b.safetensors"))
    assert (found.verdict, found.first_token) == ("within rounding", None)
    assert sum(head.largest > 0 for head in found.heads) == 1


def test_row_errors_are_those_of_the_engine() -> None:
    generator = torch.Generator().manual_seed(3)
    expected = torch.randn(1, 40, 16, generator=generator) * torch.logspace(-3, 2, 16)
    rows = expected + torch.randn(1, 40, 16, generator=generator) * 1e-3
    size = expected[0].double().square().mean(0).sqrt().numpy()
    units = np.maximum(size, np.sort(size)[(len(size) - 1) // 2]).clip(1e-6)
    mine = row_errors(rows[0].numpy(), expected[0].numpy(), units)
    assert np.allclose(mine, row_errors_of_torch(rows, expected)[0].numpy(), rtol=1e-4)
    for bad in (np.nan, np.inf):
        one = expected[0].numpy().copy()
        one[3, 5] = bad
        assert row_errors(one, one, units).tolist() == [0.0] * 40, "the same on both sides is no difference"
        assert not row_errors(one, expected[0].numpy(), units)[3] < 1


def test_rows_are_compared_where_both_hold_them(tmp_path: Path) -> None:
    """One of them evicted: what is left agrees until the first eviction told on later rows."""
    thinned = kept(begun(tuned(PRESETS["knorm"].spec, budget=12)), tmp_path / "a.safetensors")
    whole = kept(begun(small("growing")), tmp_path / "b.safetensors")
    found = compared(thinned, whole)
    assert found.verdict == "different"
    assert all((head.num_rows, head.num_missing) == (12, 18) for head in found.heads)
    first_layer = [head for head in found.heads if head.layer == 0]
    assert found.first_other_id is not None
    assert all(h.first_departing is None or h.first_departing >= found.first_other_id for h in first_layer)


def test_token_ids_that_differ_and_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = begun(small("growing"), steps=0), begun(small("growing"), steps=0)
    one.force(0, (5, 9))
    other.force(0, (5, 11))
    for session in (one, other):
        session.step()
        session.step()
    nudged(other, "keys", head=1, row=3, channel=0, by=float("nan"))
    found = compared(kept(one, tmp_path / "a.safetensors"), kept(other, tmp_path / "b.safetensors"))
    assert found.first_other_id == 22
    assert found.first_token == 3
    strange = next(h for h in found.heads if (h.layer, h.tensor, h.kv_head) == (1, "keys", 1))
    assert (strange.largest, strange.first_departing) == (float("inf"), 3)
    same = compared(tmp_path / "b.safetensors", tmp_path / "b.safetensors")
    assert same.verdict == "equal", "a NaN on both sides is no difference"
    monkeypatch.setattr(diff, "ROWS_AT_ONCE", 5)
    again = compared(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (again.first_other_id, again.first_token) == (22, 3), "in however many pieces"
    assert [(h.largest, h.first_departing) for h in again.heads] == [
        (h.largest, h.first_departing) for h in found.heads
    ]


@pytest.mark.parametrize(
    ("one", "other", "rounds_more"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float16", "bfloat16"),
        ("float16", "float32", "float16"),
        ("an unknown one", "float16", "float16"),
        ("an unknown one", "float64", "float32"),
    ],
)
def test_of_two_dtypes_the_one_that_rounds_more_sets_the_measure(one: str, other: str, rounds_more: str) -> None:
    assert tolerance_between(one, other) == tolerance_between(other, one)
    assert tolerance_between(one, other).logit == TOLERANCES[rounds_more].logit


def test_other_models_cannot_be_compared(tmp_path: Path) -> None:
    a = kept(begun(small("growing")), tmp_path / "a.safetensors")
    b = kept(begun(small("growing"), architecture="gpt2"), tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="4 of 16 in the other"):
        compared(a, b)


def test_files_of_any_size_stream_through(tmp_path: Path) -> None:
    """A gigabyte of K and V each: what is held at once does not grow with it."""
    peaks = []
    for number, num_tokens in enumerate((20_000, 60_000)):
        path = tmp_path / f"{number}.safetensors"
        sparse(path, num_tokens)
        tracemalloc.start()
        assert compared(path, path).verdict == "equal"
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 40_000 * 8 * 6, "positions of one head, and not its rows"
