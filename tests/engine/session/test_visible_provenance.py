"""What pictures say of their rows, layer by layer: which ones attention reads from quantised codes."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from engine.errors import InputError
from engine.opened.file import OpenedSnapshot
from engine.session.session import Session
from engine.spec.cache import CacheSpec, Quantizer, cache_preset, tuned
from engine.spec.codec import CodecSpec, Coding, LayerCoding, Part
from engine.spec.sampling import Prompt
from engine.wire.pictures import (
    HeadPicture,
    HeadRequest,
    OutliersPicture,
    OutliersRequest,
    PictureRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from tests.engine.snapshot.sessions import kept, step
from tests.engine.tiny import model_of, prompt_ids

Kind = TypeVar("Kind")
TOKENS = 44
SPECS = {
    "lossless": CacheSpec(),
    "int8": cache_preset("int8").spec,
    "fp8 of the prompt": cache_preset("fp8").spec,
    "K alone": CacheSpec(codec=CodecSpec(Coding("int8"), Coding())),
    "two layers exact": CacheSpec(codec=CodecSpec(Coding("int8"), Coding("int8"), (LayerCoding(0), LayerCoding(1)))),
    "kivi": tuned(cache_preset("kivi-4").spec, group=8, residual=8),
    "in pages": CacheSpec("paged", page_size=4, codec=cache_preset("int8").spec.codec),
    "evicting": CacheSpec(
        codec=cache_preset("int8").spec.codec, retention=tuned(cache_preset("h2o").spec, budget=12).retention
    ),
    "of transformers": CacheSpec("quantized", quantizer=Quantizer()),
}
ARCHITECTURES = "llama", "t5", "lfm2", "gemma3_text"
TENSORS: tuple[tuple[Part, str], ...] = (("keys", "coded_keys"), ("values", "coded_values"))


def session_of(mode: str, architecture: str = "llama") -> Session:
    session = Session(model_of(architecture), SPECS[mode], prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(TOKENS - 9)))
    while session.sequence(0).num_tokens < TOKENS:
        step(session)
    return session


def wall(session: Session | OpenedSnapshot, tensor: Part = "keys") -> WallPicture:
    return taken(session, WallRequest(0, TOKENS, 0, tensor, False, 16, 8), WallPicture)


def head(session: Session | OpenedSnapshot, layer: int, tensor: Part = "keys", start: int = 0) -> HeadPicture:
    return taken(session, HeadRequest(0, TOKENS, tensor, layer, 0, start, TOKENS, 64), HeadPicture)


def taken(session: Session | OpenedSnapshot, request: PictureRequest, kind: type[Kind]) -> Kind:
    piece = session.take_picture(request) if isinstance(session, Session) else session.take(request)
    assert isinstance(piece, kind)
    return piece


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mode", list(SPECS)[1:])
def test_exact_rows_are_those_of_a_lossless_cache_and_coded_ones_are_not(mode: str, architecture: str) -> None:
    """In layers that no coded row has come before: the first one with rows, and cross layers."""
    try:
        session = session_of(mode, architecture)
    except InputError as error:
        pytest.skip(str(error))
    lossless = session_of("lossless", architecture)
    geometry = session.model.info.geometry
    layers = {geometry.attention_layers[0].index} | {la.index for la in geometry.layers if la.kind == "cross"}
    ids = session.sequence(0).token_ids
    walls = {tensor: wall(session, tensor) for tensor, _ in TENSORS}
    found = set()
    for position in range(TOKENS):
        row, expected = (taken(one, RowRequest(0, TOKENS, position), RowPicture) for one in (session, lossless))
        for layer in layers & set(row.layers):
            if ids[: position + 1] != lossless.sequence(0).token_ids[: position + 1] or layer not in expected.layers:
                continue
            at, of = row.layers.index(layer), expected.layers.index(layer)
            for tensor, coded in TENSORS:
                is_coded = bool(getattr(row, coded)) and getattr(row, coded)[at]
                exact_from = walls[tensor].exact_from or (0,) * len(walls[tensor].layers)
                assert is_coded == (position < exact_from[walls[tensor].layers.index(layer)])
                held, true = getattr(row, tensor)[at], getattr(expected, tensor)[of]
                is_there = ~np.isnan(held).any(-1)
                if is_there.any():
                    is_alike = np.allclose(held[is_there], true[is_there], rtol=1e-5, atol=1e-5)
                    assert is_alike != is_coded, (layer, tensor, position)
                    found.add((tensor, is_coded))
    expected_of = {
        "K alone": {("keys", True), ("values", False)},
        "two layers exact": {("keys", False), ("values", False)},
    }
    coded_both = {("keys", True), ("values", True)}
    assert found >= expected_of.get(mode, coded_both)


def test_cross_layers_are_exact_beside_coded_ones() -> None:
    session = session_of("int8", "t5")
    num_blocks = len(session.model.info.geometry.layers) // 2
    assert wall(session).exact_from == (TOKENS,) * num_blocks + (0,) * num_blocks
    assert (head(session, 0).provenance, head(session, num_blocks).provenance) == ("dequantised", "live cache")
    assert taken(session, RowRequest(0, TOKENS, 3), RowPicture).provenance == "live cache", "a row of the source alone"
    found = taken(session, OutliersRequest(0, TOKENS, TOKENS - 1, 40), OutliersPicture)
    assert {one.layer < num_blocks for one in found.keys} == {True, False}
    assert all(one.is_coded == (one.layer < num_blocks) for one in (*found.keys, *found.values))


def test_rows_of_a_source_are_compared_with_what_the_encoder_gave() -> None:
    session = Session(model_of("t5"), CacheSpec(), capture="everything")
    session.submit(Prompt(token_ids=prompt_ids(TOKENS - 9)))
    session.step()
    row = taken(session, RowRequest(0, TOKENS - 9, 3), RowPicture)
    assert len(row.written_keys) == len(row.keys) == len(session.model.info.geometry.layers) // 2
    for held, written in zip(row.keys + row.values, row.written_keys + row.written_values, strict=True):
        np.testing.assert_array_equal(held, written)


def test_k_and_v_are_told_apart() -> None:
    session = session_of("K alone")
    assert (wall(session).provenance, wall(session, "values").provenance) == ("dequantised", "live cache")
    row = taken(session, RowRequest(0, TOKENS, 3), RowPicture)
    assert (set(row.coded_keys), row.coded_values) == ({True}, ())


def test_the_residual_is_exact() -> None:
    session = session_of("kivi")
    assert (head(session, 0).exact_from, head(session, 0, "values").exact_from) == (40, TOKENS - 8)
    assert (head(session, 0).provenance, head(session, 0, start=40).provenance) == ("dequantised", "live cache")
    assert taken(session, RowRequest(0, TOKENS, 41), RowPicture).coded_keys == ()


@pytest.mark.parametrize(("form", "mode"), [("stored", "int8"), ("rows", "int8"), ("stored", "kivi"), ("rows", "kivi")])
def test_a_file_says_it_as_the_cache_did(form: str, mode: str, tmp_path: Path) -> None:
    session = session_of(mode, "t5")
    file = OpenedSnapshot(kept(session, tmp_path / "a.safetensors", form=form))
    assert wall(file).exact_from == wall(session).exact_from
    last = len(session.model.info.geometry.layers) - 1
    start = int(head(session, 0).positions[0])
    assert (head(file, 0, start=start).provenance, head(file, last).provenance) == ("dequantised", "recorded")
    part = kept(session, tmp_path / "b.safetensors", form=form, layers=(last,))
    assert wall(OpenedSnapshot(part)).provenance == "recorded"


def test_a_wall_made_from_the_last_one_tells_of_its_own_step() -> None:
    session = session_of("int8")
    assert wall(session).exact_from[0] == TOKENS
    before = taken(session, WallRequest(0, TOKENS - 2, 0, "keys", False, 16, 8), WallPicture)
    assert before.exact_from[0] == TOKENS - 2
