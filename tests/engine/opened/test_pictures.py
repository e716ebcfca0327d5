"""Pictures of an opened snapshot are those of the live sequence that it was written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.look.source import provenance_of
from engine.opened.description import steps_of
from engine.opened.file import FileSource, OpenedSnapshot
from engine.session.session import Session
from engine.snapshot import save_cache
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    Magnitudes,
    OutliersRequest,
    Picture,
    PictureRequest,
    RowPicture,
    RowRequest,
    TableRequest,
    WallPicture,
    WallRequest,
)
from tests.engine.opened.sessions import opened, same
from tests.engine.snapshot.crafted import Crafted
from tests.engine.snapshot.sessions import begun, kept, small

MODES = ("growing", "paged", "static", "int8", "kivi-4", "h2o", "streamingllm")


def requests(session: Session) -> list[PictureRequest]:
    n, step = session.sequence(0).num_tokens, session.last_step
    assert step is not None
    return [
        WallRequest(0, n, n, "keys", False, 100, 100),
        WallRequest(0, n, n, "values", False, 7, 5),
        WallRequest(0, n, n - 1, "keys", True, 9, 100),
        HeadRequest(0, n, "keys", 1, 1, 0, n, 100),
        HeadRequest(0, n, "values", 0, 0, 5, n - 3, 6),
        RowRequest(0, n, n - 2),
        RowRequest(0, n, 1),
        AttentionRequest(0, step, 1, 100),
        TableRequest(0, n),
        OutliersRequest(0, n, step),
    ]


def taken(session: Session, request: PictureRequest) -> Picture:
    """A picture of a session without what the file of it does not have: it is written without records."""
    picture = session.take_picture(request)
    return replace(picture, written=None) if isinstance(picture, RowPicture) else picture


@pytest.mark.parametrize("name", MODES)
def test_every_picture_is_that_of_the_live_cache(name: str, tmp_path: Path) -> None:
    session = begun(small(name))
    snapshot = opened(session, tmp_path)
    for request in requests(session):
        found = snapshot.take(request)
        if name.startswith("kivi") and isinstance(request, WallRequest) and request.change:
            assert isinstance(found, WallPicture)
            assert found.note == "What this step rewrote in older rows is not known any more."
            continue
        same(taken(session, request), found, f"{name}: {request}")


def test_layers_that_keep_a_window_latents_a_source_or_a_state_are_read_as_they_stand(tmp_path: Path) -> None:
    for architecture in ("gemma2", "deepseek_v3", "bart", "lfm2", "mamba"):
        session = begun(small("dynamic"), architecture=architecture)
        snapshot = opened(session, tmp_path)
        for request in requests(session)[:6]:
            live, found = taken(session, request), snapshot.take(request)
            if architecture == "mamba" and isinstance(live, WallPicture):
                assert len(live.states) == 4, "a convolution and a recurrence of two layers, and no rows"
                assert isinstance(found, WallPicture)
                live, found = (replace(piece, magnitudes=None) for piece in (live, found))
            same(live, found, f"{architecture}: {request}")


def test_an_earlier_step_is_cut_from_the_rows_and_says_so_where_they_are_others(tmp_path: Path) -> None:
    session = begun(small("growing"))
    request = WallRequest(0, 12, 12, "keys", False, 100, 100)
    found = opened(session, tmp_path).take(request)
    same(session.take_picture(request), found)
    assert isinstance(found, WallPicture)
    assert found.provenance == "recorded"
    session = begun(small("h2o"))
    found = opened(session, tmp_path).take(request)
    assert isinstance(found, WallPicture)
    assert found.provenance == "as stored now"


def test_heads_and_layers_that_were_not_written_are_not_there(tmp_path: Path) -> None:
    session = begun(small("growing"))
    snapshot = opened(session, tmp_path, layers=(1,), kv_heads=(1,))
    n = session.sequence(0).num_tokens
    wall = snapshot.take(WallRequest(0, n, n, "keys", False, 100, 100))
    live = session.take_picture(WallRequest(0, n, n, "keys", False, 100, 100))
    assert isinstance(wall, WallPicture)
    assert isinstance(live, WallPicture)
    assert wall.layers == (1,)
    np.testing.assert_array_equal(wall.low[0, 1], live.low[1, 1])
    assert np.isnan(wall.low[0, 0]).all()
    assert wall.absent is not None
    assert (wall.absent[0] == np.array([[1], [0]])).all()
    row = snapshot.take(RowRequest(0, n, 3))
    assert isinstance(row, RowPicture)
    assert (row.layers, row.evicted) == ((1,), ((0,),))


def test_only_the_attention_of_the_newest_step_is_in_a_file(tmp_path: Path) -> None:
    session = begun(small("growing"))
    assert session.last_step is not None
    found = opened(session, tmp_path).take(AttentionRequest(0, session.last_step - 2, 1, 100))
    assert isinstance(found, AttentionPicture)
    assert not found.weights.size
    assert found.note == f"The attention of step {session.last_step - 2} is not in the file."


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    snapshot = opened(begun(small("growing")), tmp_path)
    with pytest.raises(InputError, match="There is no layer 7: this snapshot has layers 0 … 1"):
        snapshot.take(HeadRequest(0, 5, "keys", 7, 0, 0, 5, 10))


# ---- files that are larger than what is shown of them ------------------------------------------------------------

LENGTH, HEADS, DIMS = 3000, 2, 64


def large(tmp_path: Path, length: int = LENGTH, layers: int = 3, **how: Any) -> OpenedSnapshot:
    """A cache of somebody's loop, of many tokens."""
    torch.manual_seed(3)
    pairs = [(torch.randn(1, HEADS, length, DIMS), torch.randn(1, HEADS, length, DIMS)) for _ in range(layers)]
    pairs[1][0][0, 1, min(1234, length - 1), 5] = torch.nan
    pairs[2][1][0, 0, 7, 9] = 80.0
    path = save_cache(pairs, tmp_path / f"{length}.safetensors", tokens=list(range(length)), **how)
    return OpenedSnapshot(path)


def wall(snapshot: OpenedSnapshot, columns: int, rows: int) -> WallPicture:
    found = snapshot.take(WallRequest(0, snapshot.num_tokens, snapshot.num_tokens, "keys", False, columns, rows))
    assert isinstance(found, WallPicture)
    return found


@pytest.mark.parametrize(("columns", "rows"), [(187, 16), (120, 9), (31, 1)])
def test_a_coarse_wall_is_made_of_the_extremes_alone_and_is_exact(
    columns: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = large(tmp_path)
    before = snapshot.file.bytes_read
    found = wall(snapshot, columns, rows)
    assert snapshot.file.bytes_read - before < snapshot.file.file_bytes / 6
    assert found.tokens_per_column % 16 == 0
    assert found.low.shape[2] <= columns
    monkeypatch.setattr(FileSource, "coarseness", lambda *_: None)
    exact = wall(snapshot, -(-LENGTH // found.tokens_per_column), rows)
    assert (found.tokens_per_column, found.dims_per_row) == (exact.tokens_per_column, exact.dims_per_row)
    np.testing.assert_array_equal(found.low, exact.low)
    np.testing.assert_array_equal(found.high, exact.high)
    assert np.isnan(found.low[1, 1, 1234 // found.tokens_per_column]).any()


def test_a_finer_wall_is_exact_from_the_rows(tmp_path: Path) -> None:
    snapshot = large(tmp_path)
    found = wall(snapshot, LENGTH, DIMS)
    assert (found.tokens_per_column, found.dims_per_row) == (1, 1)
    np.testing.assert_array_equal(found.low[0, 0], snapshot.file.rows(0, "keys", 0))


def test_magnitudes_beside_the_rows_are_those_that_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = large(tmp_path)
    told = wall(snapshot, 100, 16).magnitudes
    monkeypatch.setattr(FileSource, "ranges", lambda *_: {})
    counted = wall(snapshot, 100, 16).magnitudes
    assert isinstance(told, Magnitudes)
    same(told, counted)
    assert told.largest[2] < 10
    assert np.isfinite(told.limit).all()


def test_what_is_read_depends_on_what_is_shown_and_not_on_the_file(tmp_path: Path) -> None:
    """Twice as many tokens: the header, a wall of so many columns and a part of a head take no more bytes, but for the
    ids of the tokens."""
    read = []
    for length in (LENGTH, 2 * LENGTH):
        snapshot = large(tmp_path, length)
        at_first = snapshot.file.bytes_read - 8 * length
        wall(snapshot, 100, 16)
        head = snapshot.take(HeadRequest(0, length, "keys", 0, 1, 100, 200, 100))
        assert isinstance(head, HeadPicture)
        np.testing.assert_array_equal(head.low, snapshot.file.rows(0, "keys", 1, range(100, 200)))
        read.append((at_first, snapshot.file.bytes_read))
    (first, one), (again, other) = read
    assert abs(first - again) < 200
    assert other - one < 8 * LENGTH + HEADS * 3 * DIMS * 4 * 40
    assert other < snapshot.file.file_bytes / 20


def test_small_files_have_no_extremes(tmp_path: Path) -> None:
    assert opened(begun(small("growing")), tmp_path).file.manifest.pyramid is None


def test_extremes_of_a_window_begin_where_its_rows_do(tmp_path: Path) -> None:
    from engine.look.canvas import merged
    from engine.snapshot.format import LayerEntry
    from engine.snapshot.write import extremes_of, pyramid_for

    entry = LayerEntry(0, "sliding", 1, (0,), 64, 64, "float32", 2000, first=1003)
    pyramid = pyramid_for(3003, (entry,))
    assert pyramid is not None
    rows = torch.randn(1, 2000, 64)
    low, _ = extremes_of(rows[None], entry, "keys", pyramid, 3003)
    first = 1003 // pyramid.tokens_per_column
    assert torch.isnan(low[0, :first]).all()
    assert not torch.isnan(low[0, first:]).any()
    coarse = merged(low.numpy(), range(first, low.shape[1]), 4, 1, is_low=True)
    begin = first // 4 * 4 * pyramid.tokens_per_column
    stop = begin + 4 * pyramid.tokens_per_column
    assert coarse[0, first // 4].min() == rows[0, : stop - 1003].min()


def test_extremes_of_a_layer_that_ends_before_the_others_have_its_last_rows(tmp_path: Path) -> None:
    torch.manual_seed(3)
    lengths = (LENGTH, LENGTH - LENGTH // 9)
    pairs = [(torch.randn(1, HEADS, n, DIMS), torch.randn(1, HEADS, n, DIMS)) for n in lengths]
    snapshot = OpenedSnapshot(save_cache(pairs, tmp_path / "x.safetensors"))
    found = wall(snapshot, 7, 2)
    size = -(-lengths[1] // found.tokens_per_column) - 1  # the column in which it ends
    assert size < found.low.shape[2]
    rows = pairs[1][0][0, :, size * found.tokens_per_column :]
    assert np.array_equal(found.low[1, :, size].min(-1), rows.amin((1, 2)).numpy())
    assert np.array_equal(found.high[1, :, size].max(-1), rows.amax((1, 2)).numpy())


# ---- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("live cache", "recorded"),
        ("recorded", "recorded"),
        ("recomputed", "recomputed"),
        ("dequantised", "dequantised"),
        ("as stored now", "as stored now"),
        ("a word of tomorrow", "as stored now"),
        ("", "as stored now"),
    ],
)
def test_rows_are_what_they_were_called_when_they_were_written(said: str, shown: str, tmp_path: Path) -> None:
    path = kept(begun(small("growing")), tmp_path / "x.safetensors")
    crafted = Crafted.of(path.read_bytes())
    crafted.say(provenance=said)
    path.write_bytes(crafted.bytes())
    snapshot = OpenedSnapshot(path)
    source = snapshot.at(snapshot.num_tokens)
    assert provenance_of(source, range(2)) == shown


def test_a_foreign_cache_is_of_no_mode_and_its_tokens_have_no_made_up_text(tmp_path: Path) -> None:
    rows = torch.randn(1, 2, 4, 8)
    snapshot = OpenedSnapshot(save_cache([(rows, rows)], tmp_path / "x.safetensors"))
    assert snapshot.opened.foreign_cache == "list"
    assert snapshot.texts == ("?",) * 4
    assert opened(begun(small("h2o")), tmp_path).opened.foreign_cache is None


# ---- steps -------------------------------------------------------------------------------------------------------


def test_without_records_one_step_says_what_the_file_does(tmp_path: Path) -> None:
    session = begun(small("growing"))
    snapshot = opened(session, tmp_path)
    (record,) = steps_of(snapshot.file)
    assert record.step == session.last_step
    assert record.sequences[0].token_ids == tuple(session.sequence(0).token_ids[:30])
    assert record.num_bytes.stored == sum(layer.stored for layer in session.bytes().layers)
    assert record.num_bytes.predicted == session.bytes().predicted
    bare = large(tmp_path)
    (record,) = steps_of(bare.file)
    assert record.sequences[0].num_tokens == LENGTH


def test_a_cache_without_tokens_has_places_for_them(tmp_path: Path) -> None:
    pairs = [(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))]
    snapshot = OpenedSnapshot(save_cache(pairs, tmp_path / "a.safetensors"))
    assert (snapshot.token_ids, snapshot.texts) == ((-1,) * 5, ("?",) * 5)
    assert snapshot.info.geometry.layers[0].num_kv_heads == 2


# ---- npz ---------------------------------------------------------------------------------------------------------


def test_what_was_never_watched_is_said_of_the_file_and_not_of_its_model(tmp_path: Path) -> None:
    snapshot = large(tmp_path, 100, layers=3)
    assert snapshot.info.captures_attention
    found = snapshot.take(AttentionRequest(0, 0, 1, 100))
    assert isinstance(found, AttentionPicture)
    assert found.note == "The attention of step 0 is not in the file."
