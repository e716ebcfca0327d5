"""The words for rows that are exact beside rows that were quantised."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.kit.provenance import (
    layer_rows_words,
    parts_words,
    residual_start,
    residual_starts,
    run_words,
    source_of,
    source_words,
)
from app.models import Models
from engine.wire.pictures import HeadRequest, WallRequest
from tests.app import samples

N = 40


@pytest.mark.parametrize(
    ("exact_from", "words"),
    [(0, "exact"), (8, "exact"), (9, "dequantised, exact from token 9 on"), (N, "dequantised"), (N + 1, "dequantised")],
)
def test_a_run_of_rows_is_exact_dequantised_or_both(exact_from: int, words: str) -> None:
    assert run_words(exact_from, 8, N) == words
    assert (residual_start(exact_from, 8, N) is not None) == ("from token" in words)


@pytest.mark.parametrize(
    ("exact_from", "words"),
    [
        ((), ""),
        ((N,) * 6, ""),
        ((32,) * 6, "dequantised, exact from token 32 on"),
        ((N, N, N, N, 0, 0), "L0 … L3: dequantised; L4, L5: exact"),
        ((0, N, 0, 32, 0, 0), "L0, L2, L4, L5: exact; L1: dequantised; L3: dequantised, exact from token 32 on"),
    ],
)
def test_a_wall_names_the_layers_that_differ(models: Models, exact_from: tuple[int, ...], words: str) -> None:
    assert samples.LAYERS == 6
    plain = samples.wall_picture(WallRequest(0, N, 0, "keys", False, 16, 8))
    piece = replace(plain, exact_from=exact_from, provenance="dequantised" if exact_from else "live cache")
    assert parts_words(models, piece) == words
    assert source_words(models, piece) == (words or piece.provenance)
    assert residual_starts(piece) == {layer: start for layer, start in enumerate(exact_from) if start == 32}
    one = layer_rows_words(piece, 3)
    assert one == (run_words(exact_from[3], 0, N) if exact_from else "")
    found = source_of(models, piece.provenance, "float32", 6, parts=words)
    assert found.words.startswith("partly dequantised") == bool(words)
    assert words in found.sentence


def test_rows_that_are_stored_now_and_partly_dequantised_are_both(models: Models) -> None:
    words = "dequantised, exact from token 32 on"
    plain = samples.wall_picture(WallRequest(0, N, 0, "keys", False, 16, 8))
    piece = replace(plain, exact_from=(32,) * 6, provenance="as stored now")
    assert source_words(models, piece) == f"as stored now ({words})"
    found = source_of(models, piece.provenance, "float32", 6, parts=words)
    assert found.words.startswith("as stored now")
    assert f"as stored now ({words})" in found.sentence


def test_a_head_speaks_of_the_rows_it_shows(models: Models) -> None:
    for start, words in ((0, "dequantised, exact from token 32 on"), (32, "")):
        plain = samples.head_picture(HeadRequest(0, N, "keys", 3, 1, start, N, 64))
        assert parts_words(models, replace(plain, exact_from=32)) == words
