"""Two runs side by side, as far as the engine has told of them."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.wire.duel import Departure, DuelSide, DuelStep, Parting
from engine.wire.opponents import Opponent
from engine.wire.requests import Side
from engine.wire.slices import Slice

SIDES: tuple[Side, ...] = ("a", "b", "difference")


class ComparedPair(Struct, frozen=True, eq=False):
    """A sequence and what it is compared with, both sides, the `layers` whose rows are compared, what rounding may do
    to a logit, and `no_rows`: why K and V cannot be compared, empty where they can."""

    seq_id: int
    against: Opponent
    a: DuelSide
    b: DuelSide
    layers: tuple[int, ...]
    tolerance: float
    no_rows: str

    @property
    def is_lossy(self) -> bool:
        """Whether a side's mode asks for rows that are not exact."""
        return self.a.is_lossy or self.b.is_lossy

    def is_edited(self, num_tokens: int) -> bool:
        """Whether a row among the first tokens of a side was changed by hand."""
        return any(side.edited_from is not None and side.edited_from < num_tokens for side in (self.a, self.b))


class Pictures(Struct, frozen=True, eq=False):
    """One picture of each side and of the difference, of the same moment."""

    a: Slice
    b: Slice
    difference: Slice


class Comparison(QObject):
    """Only the controller writes. `changed` tells of sides and verdicts, `stepped` of further steps, `pictured` of
    pictures."""

    changed = Signal()
    stepped = Signal()
    pictured = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.now: ComparedPair | None = None
        self.asked: Opponent | None = None  # that is being started
        self.refusal = ""  # why there is none, in a sentence
        self.first: Departure | None = None
        self.num_scanned: int | None = None  # tokens whose rows were all compared
        self.pictures: Pictures | None = None
        self.no_pictures = ""  # why there are none, in a sentence
        self._steps: list[DuelStep] = []

    @property
    def steps(self) -> tuple[DuelStep, ...]:
        """Everything compared so far, oldest first."""
        return tuple(self._steps)

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def at(self, step: int | None) -> DuelStep | None:
        """What was compared after a step of side A, or the last comparison before it; None: the newest."""
        if step is None:
            return self._steps[-1] if self._steps else None
        index = bisect_left(self._steps, step + 1, key=lambda each: each.step)
        return self._steps[index - 1] if index else None

    @property
    def parting(self) -> Parting | None:
        """Where two branches begin to be fed other tokens, as far as steps behind it were compared."""
        return self._steps[-1].parting if self._steps else None

    def parting_in(self, pictures: Pictures) -> int | None:
        """The position from which pictures of rows show those of other tokens; None where they do not."""
        count, parting = getattr(pictures.a.request, "num_tokens", 0), self.parting
        return parting.num_tokens if parting is not None and parting.num_tokens < count else None

    # ---- written by the controller -------------------------------------------------------------------------------

    def ask(self, against: Opponent) -> None:
        """Another one was asked for; what is shown stays until it stands."""
        self.asked, self.refusal = against, ""
        self.changed.emit()

    def refuse(self, why: str) -> None:
        """It cannot be had; what is shown stays."""
        self.asked, self.refusal = None, why
        self.changed.emit()

    def start(self, now: ComparedPair, steps: tuple[DuelStep, ...], *, is_new: bool = True) -> None:
        """Both sides stand, and were compared at these steps; or (not `is_new`) all that is told of them is told again,
        and what was asked for meanwhile is on its way still."""
        self.now = now
        if is_new:
            self.asked, self.refusal = None, ""
        self.first = self.num_scanned = self.pictures = None
        self.no_pictures = ""
        self._steps = list(steps)
        self.changed.emit()

    def append(self, step: DuelStep) -> None:
        """One more step was compared: those from its number of tokens on are of a way that was left."""
        while self._steps and self._steps[-1].num_tokens >= step.num_tokens:
            self._steps.pop()
        self._steps.append(step)
        self.stepped.emit()

    def scan(self, num_tokens: int, first: Departure | None) -> None:
        """All rows were compared; the first that departs."""
        self.num_scanned, self.first = num_tokens, first
        self.changed.emit()

    def put(self, pictures: Pictures) -> None:
        """The pictures of one moment, in place of those before."""
        self.pictures, self.no_pictures = pictures, ""
        self.pictured.emit()

    def refuse_pictures(self, why: str) -> None:
        """What is wanted now cannot be drawn of both sides."""
        self.pictures, self.no_pictures = None, why
        self.pictured.emit()

    def end(self, reason: str) -> None:
        """There is none any more, and why, where nobody asked for that."""
        self.now = self.asked = self.first = self.num_scanned = self.pictures = None
        self.refusal = reason
        self._steps.clear()
        self.changed.emit()
