"""What the window declares, as it was approved: one that changes by accident is noticed here, and who changes one on
purpose reads the difference."""

from __future__ import annotations

from pathlib import Path

from tests.declared import declared
from tests.engine.told import approve


def test_declarations_are_as_approved() -> None:
    for what, lines in declared("app").items():
        approve(Path(__file__).parent / "approved" / f"{what}.txt", lines)
