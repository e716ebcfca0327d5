"""The norm of a row, as written and as stored; and pictures of what is not there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.wire.pictures import (
    HeadPicture,
    HeadRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from tests.engine.session.pasts import PROMPT, SPECS, STEPS, started


def row_of(session: Session, position: int) -> RowPicture:
    tokens = session.sequence(0).num_tokens
    piece = session.take_picture(RowRequest(0, tokens, position))
    assert isinstance(piece, RowPicture)
    return piece


def test_a_record_has_the_norm_as_written_and_a_row_slice_that_as_stored() -> None:
    """KIVI writes a row exactly and codes it when its group is full: from then on the two norms differ."""
    session = started(SPECS["kivi-2"], length=16)
    written = session.step().sequences[0]
    assert written.rows is not None
    place = written.first_position
    before = row_of(session, place)
    for layer in range(2):
        assert np.linalg.norm(before.keys[layer], axis=-1).tolist() == pytest.approx(
            written.rows.key_norm[layer, :, 0].tolist(), rel=1e-6
        )
        assert np.linalg.norm(before.values[layer], axis=-1).tolist() == pytest.approx(
            written.rows.value_norm[layer, :, 0].tolist(), rel=1e-6
        )
    for _ in range(STEPS):
        session.step()
    after = row_of(session, place)
    changed = np.abs(np.linalg.norm(after.keys[1], axis=-1) / written.rows.key_norm[1, :, 0] - 1)
    assert float(changed.min()) > 0.01, "two bits are not the row that was written"


def test_the_norm_as_stored_is_nan_where_a_head_has_dropped_the_row() -> None:
    session = started(SPECS["knorm"])
    for _ in range(STEPS):
        session.step()
    found = [row_of(session, position) for position in range(PROMPT + STEPS)]
    lost = [(row, layer, head) for row in found for layer, heads in enumerate(row.evicted) for head in heads]
    assert lost
    for row, layer, head in lost:
        assert np.isnan(np.linalg.norm(row.keys[layer], axis=-1)[head])
        assert np.isnan(np.linalg.norm(row.values[layer], axis=-1)[head])


def test_pictures_of_what_is_not_there_are_cut_to_what_is_or_refused() -> None:
    session = started(cache_preset("growing").spec)
    for request in (
        WallRequest(0, 10**9, -5, "keys", True, 10**9, 8),
        HeadRequest(0, 10**9, "keys", 0, 0, -7, 10**12, 10**9),
    ):
        piece = session.take_picture(request)
        assert isinstance(piece, WallPicture | HeadPicture)
        assert piece.request.num_tokens == PROMPT, "the answer says how many tokens it shows"
        assert piece.low.shape[-2] == PROMPT
    with pytest.raises(InputError, match="no head -1"):
        session.take_picture(HeadRequest(0, 4, "keys", 0, -1, 0, 4, 8))
    with pytest.raises(InputError, match="no layer 9"):
        session.take_picture(HeadRequest(0, 4, "keys", 9, 0, 0, 4, 8))
