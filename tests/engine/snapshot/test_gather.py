"""What of a session goes into a snapshot, and what stays behind of it in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.snapshot import write as pyramid
from engine.snapshot.gather import snapshot_of
from engine.snapshot.write import LazyTensor
from engine.spec.codec import PARTS
from engine.wire.exporting import Export
from tests.engine.snapshot.sessions import begun, small


def test_rows_that_are_gathered_to_be_counted_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of every layer at once would be the whole cache once more."""
    monkeypatch.setattr(pyramid, "MAX_COLUMNS", 4)
    monkeypatch.setattr(pyramid, "MAX_ROWS", 3)
    session = begun(small("paged"), prompt=90)
    count = session.sequence(0).num_tokens
    past = session.rows_at(0, count)
    monkeypatch.setattr(session, "rows_at", lambda seq_id, num_tokens: past)
    tensors = snapshot_of(session, Export(tmp_path / "x.safetensors", 0)).tensors
    counted = [f"layers.{layer}.{part}.magnitudes" for layer in range(2) for part in PARTS]
    for name in counted:
        later = tensors[name]
        assert isinstance(later, LazyTensor)
        later.make()
    assert past._kept == {}
    assert past.rows(0, "keys") is not None
    assert set(past._kept) == {0}, "what it would have kept"
