"""The front of a sweep: what no other mode beats in bytes and damage."""

from __future__ import annotations

from engine.wire.measurements import SweepRow, Unavailable, best_by_text, front


def row(cache: str, kv_bytes: int, kl: float, text: str = "a") -> SweepRow:
    return SweepRow(cache, kv_bytes, 50.0, kl, 1.0, 3.0, 0.0, False, text)


def test_the_front_by_rising_bytes() -> None:
    assert front([4, 1, 1, 0.9, 5], [0.0, 1e-4, 1e-1, 2.0, 0.0]) == (3, 1, 0)
    assert front([], []) == ()


def test_each_text_has_its_own_best_modes() -> None:
    rows = [
        row("none", 0, 0.0),
        row("growing", 4000, 3e-9),
        row("dynamic", 4000, 5e-9),
        row("int8", 1000, 1e-4),
        row("h2o", 1000, 1e-2),
        Unavailable("kivi-4", "no", "a"),
        row("h2o", 1000, 1e-5, "b"),
    ]
    assert best_by_text(rows) == {"a": ("int8", "growing"), "b": ("h2o",)}
