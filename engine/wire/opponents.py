"""What a sequence can be compared with in a duel."""

from __future__ import annotations

from pathlib import Path

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.message import Variant


class OtherRun(Variant, frozen=True):
    """The same tokens in another cache mode, computed by the loaded model, or by `model`: another one with the same
    vocabulary, or the same one in another dtype."""

    cache: CacheSpec
    model: ModelSpec | None = None


class OtherStep(Variant, frozen=True):
    """The sequence as it was after a step of its own or another branch. It is compared with the live one, or with the
    sequence as it was after the step `of`."""

    step: int
    of: int | None = None


class OtherFile(Variant, frozen=True):
    """The contents of a snapshot file."""

    path: Path


Opponent = OtherRun | OtherStep | OtherFile
