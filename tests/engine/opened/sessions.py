"""Sessions exported and opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import fields

from engine.opened.file import OpenedSnapshot
from engine.session.session import Session
from tests.engine.snapshot.sessions import kept

TIMES_AND_PLACES = {"took_ms", "reply_to", "provenance", "other_magnitudes"}


def opened(session: Session, tmp_path: Path, **how: Any) -> OpenedSnapshot:
    return OpenedSnapshot(kept(session, tmp_path / "a.safetensors", form="stored", **how))


def same(one: Any, other: Any, where: str = "") -> None:
    """Every field but times and where it comes from, NaN where NaN is."""
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, where)
    elif hasattr(one, "__struct_fields__"):
        for field in fields(one):
            if field.name not in TIMES_AND_PLACES:
                same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs, where)
    else:
        assert one == other, where
