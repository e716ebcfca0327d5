"""A window that compares two runs, answered by hand: what A, B and their difference hold is known cell by cell."""

from __future__ import annotations

from typing import cast

import numpy as np
from msgspec.structs import replace

from app.draw.matrix import Matrix, matrix_of
from app.panels.compare.steps import CompareStepsView
from app.panels.compare.view import BESIDE, CompareView
from app.shell import Shell
from engine.spec.cache import cache_named
from engine.wire.commands import StartComparison, TakePicture
from engine.wire.comparison import ComparisonStarted, OtherRun
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    Picture,
    PictureRequest,
    Side,
    WallRequest,
)
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

OFFSETS: dict[Side, float] = {"a": 0.0, "b": 0.25}
KIVI = OtherRun(cache_named("kivi-2"))


def field(shape: tuple[int, ...], side: Side) -> np.ndarray:
    """Numbers of A are 0, 1, 2 … in eighths; those of B are a quarter larger."""
    if side == "difference":
        return np.full(shape, -0.25, np.float32)
    return (np.arange(np.prod(shape)).reshape(shape) / 8 + OFFSETS[side]).astype(np.float32)


def piece_of(request: PictureRequest, side: Side) -> Picture:
    provenance = "difference" if side == "difference" else "live cache"
    if isinstance(request, WallRequest):
        wall = samples.wall_picture(request)
        values = field(wall.low.shape, side)
        return replace(wall, low=values, high=values, provenance=provenance)
    if isinstance(request, HeadRequest):
        head = samples.head_picture(request)
        values = field(head.low.shape, side)
        return replace(head, low=values, high=values, provenance=provenance)
    assert isinstance(request, AttentionRequest)
    row = samples.attention_picture(request, samples.PROMPT + request.step)
    return replace(row, weights=field(row.weights.shape, side), provenance=provenance)


def pooled(low: float, high: float, first: int, stop: int, per_column: int) -> Matrix:
    """A head of two channels from a position on, with the same extremes in every cell."""
    picture = samples.head_picture(HeadRequest(0, stop, "keys", 0, 0, 0, stop, 100))
    positions = np.arange(first, stop, per_column)
    cells = np.ones((len(positions), 2), np.float32)
    return matrix_of(
        replace(
            picture, low=cells * low, high=cells * high, positions=positions, tokens_per_column=per_column, absent=None
        )
    )


class CompareDesk:
    """The Compare layout after twenty steps."""

    def __init__(self, shell: Shell, engine: FakeEngine) -> None:
        self.shell, self.engine, self.models = shell, engine, shell.models
        self.view: CompareView = shell.window.compare()
        steps = shell.window.panels["compared_steps"]
        assert isinstance(steps, CompareStepsView)
        self.steps = steps
        self.view.choose(self.view.choices[0][0])
        self.view.displays.choose(BESIDE)
        self.view.maps.maps["b"].hover_at(None)
        self._answered: set[int] = set()
        engine.is_silent = True
        turn(shell)

    def start(self, started: ComparisonStarted | None = None) -> None:
        """The other run has started, and every picture that the panel asks for is answered."""
        self.view.compare_with(KIVI)
        self.tell(replace(started or samples.comparison_started(21), reply_to=self.engine.id_of(StartComparison)))

    def tell(self, *events: object) -> None:
        self.engine.emit(*events)  # type: ignore[arg-type]
        turn(self.shell, 2)
        self.answer()

    def asked(self) -> list[TakePicture]:
        pictures = cast(list[TakePicture], self.engine.of(TakePicture))
        return [one for one in pictures if one.side is not None and one.id not in self._answered]

    def answer(self) -> None:
        while asked := self.asked():
            for one in asked:
                assert one.side is not None
                self._answered.add(one.id)
                self.engine.emit(replace(piece_of(one.request, one.side), reply_to=one.id))
            turn(self.shell, 2)

    def show(self, kind: str) -> None:
        self.view.choose(kind)
        turn(self.shell, 2)
        self.answer()
