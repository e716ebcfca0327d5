"""A comparison of two runs, as far as the engine has reported it."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.wire.comparison import ComparedStep, ComparisonStarted, FirstDifference, Opponent, TokenDivergence
from engine.wire.pictures import Picture, Side

SIDES: tuple[Side, ...] = ("a", "b", "difference")


class ComparedPictures(Struct, frozen=True, eq=False):
    """One picture of each side and of their difference, of the same step."""

    a: Picture
    b: Picture
    difference: Picture


class Comparison(QObject):
    """Only the controller writes it. Signals: `changed()`, sides or results are others; `stepped()`, another step was
    compared; `pictured()`, pictures are others."""

    changed = Signal()
    stepped = Signal()
    pictured = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.now: ComparisonStarted | None = None
        self.asked: Opponent | None = None  # what the comparison being started compares with
        self.refusal = ""  # why there is no comparison, in a sentence
        self.first: FirstDifference | None = None
        self.num_scanned: int | None = None  # how many tokens' rows have all been compared
        self.pictures: ComparedPictures | None = None
        self.no_pictures = ""  # why there are no pictures, in a sentence
        self._steps: list[ComparedStep] = []

    @property
    def steps(self) -> tuple[ComparedStep, ...]:
        """Everything compared so far, oldest first."""
        return tuple(self._steps)

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def at(self, step: int | None) -> ComparedStep | None:
        """The comparison after a step of side A, or the last one before it; None: the newest."""
        if step is None:
            return self._steps[-1] if self._steps else None
        index = bisect_left(self._steps, step + 1, key=lambda each: each.step)
        return self._steps[index - 1] if index else None

    @property
    def divergence(self) -> TokenDivergence | None:
        """Where the two sides begin to be given different tokens, as far as steps after that were compared."""
        return self._steps[-1].divergence if self._steps else None

    def divergence_in(self, pictures: ComparedPictures) -> int | None:
        """The position from which on the pictured rows belong to different tokens; None if there is none."""
        count, divergence = getattr(pictures.a.request, "num_tokens", 0), self.divergence
        return divergence.num_tokens if divergence is not None and divergence.num_tokens < count else None

    # ---- written by the controller -------------------------------------------------------------------------------

    def ask(self, against: Opponent) -> None:
        """Note that a comparison is being started; the one shown stays until then."""
        self.asked, self.refusal = against, ""
        self.changed.emit()

    def refuse(self, why: str) -> None:
        """Note why the comparison asked for cannot be started; the one shown stays."""
        self.asked, self.refusal = None, why
        self.changed.emit()

    def start(self, now: ComparisonStarted, *, is_new: bool = True) -> None:
        """Set the comparison, with the steps compared so far. `is_new` False: it is the present one sent again, and one
        being started is still to come."""
        self.now = now
        if is_new:
            self.asked, self.refusal = None, ""
        self.first = self.num_scanned = self.pictures = None
        self.no_pictures = ""
        self._steps = list(now.steps)
        self.changed.emit()

    def append(self, step: ComparedStep) -> None:
        """Add a compared step; earlier ones with as many or more tokens are dropped, as the run went back and on from
        there."""
        while self._steps and self._steps[-1].num_tokens >= step.num_tokens:
            self._steps.pop()
        self._steps.append(step)
        self.stepped.emit()

    def scan(self, num_tokens: int, first: FirstDifference | None) -> None:
        """Note that all rows of `num_tokens` tokens were compared, and the first that differs."""
        self.num_scanned, self.first = num_tokens, first
        self.changed.emit()

    def put(self, pictures: ComparedPictures) -> None:
        """Set the pictures of one step."""
        self.pictures, self.no_pictures = pictures, ""
        self.pictured.emit()

    def refuse_pictures(self, why: str) -> None:
        """Note why the pictures wanted now cannot be drawn of both sides."""
        self.pictures, self.no_pictures = None, why
        self.pictured.emit()

    def end(self, reason: str) -> None:
        """Remove the comparison; `reason` says why, empty if the user ended it."""
        self.now = self.asked = self.first = self.num_scanned = self.pictures = None
        self.refusal = reason
        self._steps.clear()
        self.changed.emit()
