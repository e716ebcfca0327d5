"""Pictures of a comparison: the difference of both sides, where both have rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.analysis.comparison import Comparison, LiveRun, attention_difference
from engine.look.pictures import attention_picture
from engine.look.source import subtracted
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import uniform
from engine.spec.edit import parse_edit
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from tests.engine.analysis.comparison.comparisons import KIVI, compared, comparison_of
from tests.engine.analysis.live import started
from tests.engine.look.walls import assert_same
from tests.engine.tiny import model_of, prompt_ids


def test_the_difference_is_that_of_both_pictures() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, KIVI)
    compared(comparison)
    head = HeadRequest(seq_id, 45, "keys", 1, 0, 0, 45, 100)
    a, b, difference = (comparison.picture(head, side) for side in ("a", "b", "difference"))
    assert isinstance(a, HeadPicture)
    assert isinstance(b, HeadPicture)
    assert isinstance(difference, HeadPicture)
    assert difference.provenance == "difference"
    np.testing.assert_array_equal(difference.low, a.low - b.low)
    assert np.abs(difference.low).max() > 0
    wall = comparison.picture(WallRequest(seq_id, 45, 44, "values", False, 9, 4), "difference")
    assert isinstance(wall, WallPicture)
    mine, theirs = (run.source(45).rows(1, "values") for run in (comparison.a, comparison.b))
    assert mine is not None
    assert theirs is not None
    exact = (mine.numbers - theirs.numbers).float()  # extremes of the difference, not a difference of extremes
    assert wall.high[1, 0, 0, 0] == pytest.approx(
        float(exact[0, : wall.tokens_per_column, : wall.dims_per_row].max()), abs=0
    )
    row = comparison.picture(RowRequest(seq_id, 45, 20), "difference")
    assert isinstance(row, RowPicture)
    np.testing.assert_array_equal(row.values[1][0], exact[0, 20].numpy())
    attention = comparison.picture(AttentionRequest(seq_id, session.last_step or 0, 1, 10), "difference")
    assert isinstance(attention, AttentionPicture)
    weights = [run.attention(45)[1] for run in (comparison.a, comparison.b)]
    gap = (weights[0] - weights[1])[0]
    assert abs(attention.weights[0]).max() == pytest.approx(float(gap.abs().max()), abs=1e-7)
    assert attention.weights.min() < 0 < attention.weights.max()


@pytest.mark.parametrize("against", ["kivi", "int8", "h2o"])
def test_whatever_was_shown_before_a_difference_is_as_a_new_comparison_shows_it(against: str) -> None:
    chance, (session, seq_id) = random.Random(against), started(CacheSpec("growing"))
    comparison = comparison_of(session, seq_id, KIVI if against == "kivi" else PRESETS[against].spec)
    compared(comparison)
    for number in range(30):
        count = session.sequence(seq_id).num_tokens
        tokens = chance.choice([count, count - 1, chance.randint(1, count)])
        tensor = chance.choice(["keys", "keys", "values"])
        request = WallRequest(seq_id, tokens, tokens - 1, tensor, False, chance.choice([9, 9, 200]), 4)
        piece, expected = (
            each.picture(request, "difference")
            for each in (comparison, Comparison(comparison.a, comparison.b, session.text_of))
        )
        assert isinstance(piece, WallPicture)
        assert isinstance(expected, WallPicture)
        assert_same(piece, expected)
        if number % 10 == 5:
            session.step()
            compared(comparison)
        if number == 12:
            make_edit(session, parse_edit("zero pos=20 layer=1", seq_id, count))
        if number == 22:  # other tokens, for both sides
            session.go_to(session.last_step - 3)
            session.force(seq_id, prompt_ids(20, seed=1))
            for _ in range(3):
                session.step()
            compared(comparison)


def test_a_difference_after_a_side_lost_its_rows_is_as_a_new_comparison_shows_it() -> None:
    session, seq_id = started(CacheSpec("growing"))
    comparison = comparison_of(session, seq_id, KIVI)
    compared(comparison)
    request = WallRequest(seq_id, 45, 45, "keys", False, 100, 4)
    comparison.picture(request, "difference")
    session.live.preempt(session.live.get(seq_id), session.history.path.newest)
    session.step()
    assert session.sequence(seq_id).num_tokens == 16
    piece, expected = (
        each.picture(request, "difference")
        for each in (comparison, Comparison(comparison.a, comparison.b, session.text_of))
    )
    assert isinstance(piece, WallPicture)
    assert isinstance(expected, WallPicture)
    assert_same(piece, expected)


def test_a_difference_follows_a_side_that_goes_on_alone() -> None:
    """Rows of an earlier step, as they are stored now, are other rows when their group is coded."""
    mine, theirs = started(CacheSpec("growing")), started(CacheSpec("growing"))
    theirs[0].set_cache(KIVI)
    a, b = LiveRun(*mine, "A"), LiveRun(*theirs, "B")
    comparison, limits = Comparison(a, b, mine[0].text_of), set()
    for _ in range(3):
        request = WallRequest(mine[1], 44, 44, "values", False, 9, 4)
        piece, expected = (
            each.picture(request, "difference") for each in (comparison, Comparison(a, b, mine[0].text_of))
        )
        assert isinstance(piece, WallPicture)
        assert isinstance(expected, WallPicture)
        assert_same(piece, expected)
        limits.add(str(piece.magnitudes))
        for _ in range(8):
            theirs[0].step()
    assert len(limits) > 1


def test_what_is_held_now_is_shown_beside_an_earlier_step_as_a_new_comparison_shows_it() -> None:
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    a, b = LiveRun(session, seq_id, "now"), LiveRun(session, seq_id, "then", until=44)
    comparison = Comparison(a, b, session.text_of, compares_with_now=True)
    for tokens in (44, 43, 40, 44, 12, 43):
        for side in ("a", "difference"):
            request = WallRequest(seq_id, tokens, tokens - 1, "keys", False, 11, 4)
            anew = Comparison(a, b, session.text_of, compares_with_now=True)
            piece, expected = (each.picture(request, side) for each in (comparison, anew))  # type: ignore[arg-type]
            assert isinstance(piece, WallPicture)
            assert isinstance(expected, WallPicture)
            assert_same(piece, expected)


def test_a_difference_of_an_earlier_step_is_made_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.look.magnitudes.BLOCK", 4)
    session, seq_id = started(CacheSpec("growing"))
    comparison, sizes = comparison_of(session, seq_id, CacheSpec(codec=uniform("int8"))), []
    compared(comparison)

    def spied(a, b):  # type: ignore[no-untyped-def]
        sizes.append(a.numbers.shape[1])
        return subtracted(a, b)

    monkeypatch.setattr("engine.look.source.subtracted", spied)
    for tokens in (45, 44):
        sizes.clear()
        comparison.picture(WallRequest(seq_id, tokens, tokens, "keys", False, 9, 4), "difference")
    assert 0 < max(sizes) <= 5, "a column"


def test_attention_to_a_row_that_a_side_has_dropped_has_no_difference() -> None:
    geometry = started()[0].model.info.geometry
    heads = geometry.layers[1].num_heads
    one = torch.full((heads, 6), 0.125)
    two = one.clone()
    two[:, 5] = 0.5
    two[0, 1:4] = torch.nan  # one head has dropped three rows; no head has the first of the longer side
    request = AttentionRequest(0, 5, 1, 100)
    query = attention_difference(one, two[:, 1:], 5, geometry.layers[1])
    piece = attention_picture(request, query, geometry)
    assert piece.absent is not None
    np.testing.assert_array_equal(piece.absent[0], [1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(piece.absent[1], [1, 0, 0, 0, 0, 0])
    assert np.isnan(piece.weights[0, :4]).all()
    np.testing.assert_array_equal(piece.weights[1, 1:], [0, 0, 0, 0, -0.375])
    pooled = attention_picture(replace(request, max_columns=3), query, geometry)
    np.testing.assert_array_equal(pooled.absent[0], [2, 2, 0])  # type: ignore[index]
    np.testing.assert_array_equal(pooled.weights[1], [0, 0, -0.375])
    same = attention_difference(one, one, 5, geometry.layers[1])
    assert attention_picture(request, same, geometry).absent is None


@pytest.mark.parametrize(("name", "against"), [("bart", "fp8"), ("t5", "dynamic")])
def test_attention_to_the_source_has_no_columns_for_tokens_of_the_decoder(name: str, against: str) -> None:
    session = Session(model_of(name), CacheSpec())
    seq_id = session.submit(Prompt(token_ids=prompt_ids(7, 3)))
    for _ in range(6):
        session.step()
    comparison = comparison_of(session, seq_id, PRESETS[against].spec)
    compared(comparison)
    count, layers = session.sequence(seq_id).num_tokens, session.model.info.geometry.attention_layers
    for layer in layers:
        piece = comparison.picture(AttentionRequest(seq_id, session.last_step or 0, layer.index, 100), "difference")
        assert isinstance(piece, AttentionPicture)
        assert piece.positions.tolist() == list(range(7) if layer.kind == "cross" else range(7, 13))
        mine, theirs = (
            run.attention(count)[layer.index][:, : len(piece.positions)] for run in (comparison.a, comparison.b)
        )
        np.testing.assert_array_equal(piece.weights, mine - theirs)
    assert {layer.kind for layer in layers} == {"full", "cross"}


def test_a_side_that_is_behind_is_compared_as_both_stood_with_its_tokens() -> None:
    session, seq_id = started(KIVI)
    comparison = comparison_of(session, seq_id, CacheSpec())
    compared(comparison)
    session.step()  # codes row 29 of V, which was exact with 45 tokens
    assert (comparison.a.num_tokens, comparison.b.num_tokens) == (46, 45)
    picture = comparison.picture(HeadRequest(seq_id, 46, "values", 0, 0, 0, 46, 100), "difference")
    assert isinstance(picture, HeadPicture)
    mine, theirs = (run.source(45).rows(0, "values") for run in (comparison.a, comparison.b))
    assert mine is not None
    assert theirs is not None
    np.testing.assert_array_equal(picture.low.T, (mine.numbers - theirs.numbers)[0].T)
    coded = session.rows_at(seq_id, 46).rows(0, "values")
    assert coded is not None
    assert not torch.equal(coded.numbers[0, 29], mine.numbers[0, 29])


def test_rows_that_one_side_has_dropped_are_no_difference() -> None:
    session, seq_id = started()
    comparison = comparison_of(session, seq_id, CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4)))
    compared(comparison)
    theirs = comparison.b.source(45).rows(0, "keys")
    assert theirs is not None
    assert theirs.positions is not None
    picture = comparison.picture(HeadRequest(seq_id, 45, "keys", 0, 1, 0, 45, 100), "difference")
    assert isinstance(picture, HeadPicture)
    shown = [int(p) for p, column in zip(picture.positions, picture.low, strict=True) if not np.isnan(column).any()]
    assert shown == theirs.positions[1].tolist()
    assert len(shown) == 12
