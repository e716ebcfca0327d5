"""What a run can be compared with."""

from __future__ import annotations

from pathlib import Path

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.message import Variant


class OtherRun(Variant, frozen=True):
    """The same tokens in a cache mode, by the model at work or (`model`) by another of the same vocabulary, or by the
    same one in another dtype."""

    cache: CacheSpec
    model: ModelSpec | None = None


class OtherStep(Variant, frozen=True):
    """The same sequence as it stood after a step, of its own branch or of another. It is compared with the live one,
    or with itself as it stood after the step `of`."""

    step: int
    of: int | None = None


class OtherFile(Variant, frozen=True):
    """A snapshot file, as it was written."""

    path: Path


Opponent = OtherRun | OtherStep | OtherFile
