"""Pictures of the present: reduced to the screen, nothing averaged away, exact under the cursor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.look.magnitudes import HeadStatistics
from engine.look.reductions import pooled
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import (
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from tests.engine.tiny import model_of, prompt_ids


def stepped(architecture: str = "llama", layout: str = "growing", length: int = 40, chunk: int = 128) -> Session:
    session = Session(model_of(architecture), CacheSpec(layout), prefill_chunk=chunk)  # type: ignore[arg-type]
    session.submit(Prompt(token_ids=prompt_ids(length)))
    while session.is_prefilling:
        session.step()
    return session


def wall(session: Session, tokens: int, columns: int = 8, rows: int = 4, previous: int | None = None) -> WallPicture:
    request = WallRequest(0, tokens, previous or 0, "keys", previous is not None, columns, rows)
    piece = session.take_picture(request)
    assert isinstance(piece, WallPicture)
    return piece


def head(
    session: Session, start: int, stop: int, tokens: int = 40, columns: int = 1000, kv_head: int = 1
) -> HeadPicture:
    piece = session.take_picture(HeadRequest(0, tokens, "values", 1, kv_head, start, stop, columns))
    assert isinstance(piece, HeadPicture)
    return piece


def keys_of(session: Session, layer: int) -> torch.Tensor:
    held = session.cache_of(0).rows(layer)
    assert held is not None
    return held.keys[0]


# ---- pooling -----------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    tokens=st.integers(1, 50),
    dims=st.integers(1, 20),
    first=st.integers(0, 30),
    per_column=st.integers(1, 9),
    per_row=st.integers(1, 7),
    seed=st.integers(0, 1000),
)
def test_every_cell_is_the_extremes_of_what_lies_in_it(
    tokens: int, dims: int, first: int, per_column: int, per_row: int, seed: int
) -> None:
    tensor = torch.randn(2, tokens, dims, generator=torch.Generator().manual_seed(seed))
    low, high, column = pooled(tensor, first, per_column, per_row)
    assert column == first // per_column
    positions = np.arange(first, first + tokens) // per_column - column
    rows = np.arange(dims) // per_row
    assert low.shape == (2, positions[-1] + 1, rows[-1] + 1)
    for c in range(low.shape[1]):
        for r in range(low.shape[2]):
            cell = tensor.numpy()[:, positions == c][:, :, rows == r]
            assert np.array_equal(low[:, c, r], cell.min((1, 2)))
            assert np.array_equal(high[:, c, r], cell.max((1, 2)))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_single_outlier_survives_any_reduction(sign: int) -> None:
    tensor = torch.zeros(1, 100_000, 16)
    tensor[0, 77_777, 11] = sign * 50.0
    low, high, _ = pooled(tensor, 0, 1000, 8)
    extreme = high if sign > 0 else low
    assert extreme[0, 77, 1] == sign * 50.0
    assert np.count_nonzero(extreme) == 1


def test_nan_wins_over_everything() -> None:
    tensor = torch.ones(1, 40, 8)
    tensor[0, 13, 3] = math.nan
    low, high, _ = pooled(tensor, 0, 10, 4)
    assert math.isnan(low[0, 1, 0])
    assert math.isnan(high[0, 1, 0])
    assert np.isfinite(low).sum() == low.size - 1


def test_cells_do_not_wander_when_tokens_are_added() -> None:
    """A column covers the same positions whatever was dropped before it and added after it."""
    tensor = torch.randn(1, 64, 4)
    whole = pooled(tensor, 0, 8, 1)[0]
    part, _, column = pooled(tensor[:, 20:50], 20, 8, 1)
    assert column == 2
    assert np.array_equal(part[:, 1:-1], whole[:, 3:6])


# ---- the wall ----------------------------------------------------------------------------------------------------


def test_the_wall_shows_every_layer_and_head() -> None:
    session = stepped()
    piece = wall(session, 40)
    assert piece.low.shape == (2, 2, 8, 4)
    assert (piece.layers, piece.heads) == ((0, 1), (2, 2))
    assert (piece.tokens_per_column, piece.dims_per_row) == (5, 4)
    assert piece.provenance == "live cache"
    expected = keys_of(session, 1)[1, 5:10, 4:8]
    assert piece.low[1, 1, 1, 1] == float(expected.min())
    assert piece.high[1, 1, 1, 1] == float(expected.max())
    assert not piece.low.flags.writeable


@pytest.mark.parametrize("previous", [None, 30])
@pytest.mark.parametrize("size", [(1, 1), (0, 8)])
def test_a_wall_of_no_size_has_no_cells_of_rows_nor_of_what_changed(
    previous: int | None, size: tuple[int, int]
) -> None:
    piece = wall(stepped(), 40, *size, previous)
    assert piece.low.shape == piece.high.shape == (2, 2, 0, 0)


def test_the_wall_of_a_past_step_is_what_it_was() -> None:
    session = stepped(chunk=10)
    past = wall(session, 20)
    earlier = stepped(length=20, chunk=10)
    assert np.array_equal(past.low, wall(earlier, 20).low)


def test_the_change_is_what_the_step_wrote_and_zero_elsewhere() -> None:
    session = stepped(chunk=10)
    piece = wall(session, 40, columns=100, rows=100, previous=30)
    assert np.array_equal(piece.low[0], keys_of(session, 0).numpy() * (np.arange(40) >= 30)[None, :, None])
    assert (piece.low[:, :, :30] == 0).all()


def test_no_cell_claims_what_is_not_held() -> None:
    """Behind a window, and in heads a layer does not have, there is nothing: neither a value nor 'unchanged'."""
    session = stepped("gemma3_text", "dynamic")
    sliding = [n for n, i in enumerate((0, 1, 2, 3)) if session.model.info.geometry.layers[i].kind == "sliding"]
    full = [n for n in range(4) if n not in sliding]
    for previous in (None, 39):  # the columns are single tokens
        piece = wall(session, 40, columns=100, rows=100, previous=previous)
        assert sliding
        assert np.isnan(piece.low[sliding, :, :33]).all()
        assert np.isfinite(piece.low[sliding, :, 33:]).all()
        assert np.isfinite(piece.low[full]).all()
        assert "left the window" in piece.note


def test_latent_layers_name_what_they_cache() -> None:
    session = stepped("deepseek_v3")
    for tensor, label, dims in (("keys", "latent", 16), ("values", "rotary key", 8)):
        piece = session.take_picture(HeadRequest(0, 40, tensor, 1, 0, 0, 40, 100))  # type: ignore[arg-type]
        assert isinstance(piece, HeadPicture)
        assert piece.tensor_label == label
        assert piece.low.shape == (40, dims)


def test_without_k_and_v_the_note_says_why() -> None:
    session = stepped("mamba")
    assert "no K and V" in wall(session, 40).note
    hybrid = stepped("lfm2")
    piece = hybrid.take_picture(HeadRequest(0, 40, "keys", 0, 0, 0, 40, 100))
    assert isinstance(piece, HeadPicture)
    assert (piece.note, piece.state_shape) == ("", (1, 64, 3)), "a layer with a state shows that, under its own shape"
    fresh = Session(model_of("llama"), CacheSpec("none"))
    fresh.submit(Prompt(token_ids=prompt_ids(4)))
    assert wall(fresh, 4).note


# ---- one head, one row -------------------------------------------------------------------------------------------


def test_a_head_in_full_is_exact() -> None:
    session = stepped()
    held = session.cache_of(0).rows(1)
    assert held is not None
    piece = head(session, 0, 40)
    assert np.array_equal(piece.low, held.values[0, 1].numpy())
    assert np.array_equal(piece.low, piece.high)
    assert list(piece.positions) == list(range(40))
    assert piece.query_heads == (2, 3)
    assert piece.counts.sum() == 40 * 16
    assert (piece.num_nan, piece.num_inf) == (0, 0)
    magnitudes = np.sort(np.abs(piece.low).ravel())
    assert piece.limit == magnitudes[int(0.995 * magnitudes.size)]
    assert (piece.lowest, piece.highest) == (piece.low.min(), piece.low.max())


def test_a_part_of_a_head_knows_its_positions() -> None:
    session = stepped()
    piece = head(session, 10, 31, columns=5)
    assert piece.tokens_per_column == 5
    assert list(piece.positions) == [10, 15, 20, 25, 30]
    whole = head(session, 0, 40)
    assert np.array_equal(piece.high[1], whole.high[15:20].max(0))
    assert head(session, 20, 20).low.size == 0
    assert head(session, 39, 10).low.size == 0
    assert head(session, 0, 40, tokens=7).low.shape[0] == 7


def test_bad_values_are_counted_and_leave_the_scale_alone() -> None:
    session = stepped()
    held = session.cache_of(0).rows(1)
    assert held is not None
    with torch.inference_mode():
        held.values[0, 1, 3, :2] = math.nan
        held.values[0, 1, 4, 0] = math.inf
    piece = head(session, 0, 40)
    assert (piece.num_nan, piece.num_inf) == (2, 1)
    assert piece.counts.sum() == 40 * 16 - 3
    assert math.isfinite(piece.limit)
    assert math.isfinite(piece.highest)


def test_one_position_through_all_layers() -> None:
    session = stepped("gemma3_text", "dynamic")
    piece = session.take_picture(RowRequest(0, 40, 37))
    assert isinstance(piece, RowPicture)
    assert piece.layers == (0, 1, 2, 3)
    for layer, keys in zip(piece.layers, piece.keys, strict=True):
        held = session.cache_of(0).rows(layer)
        assert held is not None
        assert np.array_equal(keys, held.keys[0, :, 37 - held.first].numpy())
    old = session.take_picture(RowRequest(0, 40, 3))
    assert isinstance(old, RowPicture)
    assert set(old.layers) < {0, 1, 2, 3}, "the sliding layers have dropped it"
    for position in (40, -1, 10**6):
        none = session.take_picture(RowRequest(0, 40, position))
        assert isinstance(none, RowPicture)
        assert none.layers == ()
        assert none.note


def test_requests_for_what_does_not_exist_are_refused() -> None:
    session = stepped()
    for request in (
        HeadRequest(0, 40, "keys", 2, 0, 0, 40, 100),
        HeadRequest(0, 40, "keys", -1, 0, 0, 40, 100),
        HeadRequest(5, 40, "keys", 0, 0, 0, 40, 100),
        AttentionRequest(0, 0, 9, 100),
    ):
        with pytest.raises(InputError):
            session.take_picture(request)


@pytest.mark.parametrize("layout", ["growing", "static", "dynamic", "paged", "none"])
def test_looking_changes_nothing(layout: str) -> None:
    seen, unseen = stepped(layout=layout), stepped(layout=layout)
    for _ in range(3):
        wall(seen, seen.sequence(0).num_tokens)
        head(seen, 0, 40)
        seen.take_picture(RowRequest(0, 40, 3))
        one, other = seen.step(), unseen.step()
        assert one.sequences[0].sampled == other.sequences[0].sampled
        a, b = seen.logits(0), unseen.logits(0)
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


# ---- histograms --------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30))
def test_a_histogram_of_any_finite_values(values: list[float]) -> None:
    found = HeadStatistics(torch.tensor(values, dtype=torch.float32))
    counts, edges, limit = found.counts, found.edges, found.limit
    assert counts.sum() == len(values)
    assert (counts >= 0).all()
    assert np.isfinite(edges).all()
    assert (np.diff(edges) >= 0).all()
    assert limit > 0
    assert math.isfinite(limit)
