"""What the timeline shows, as one state."""

from __future__ import annotations

from msgspec import Struct, field

from app.draw.format import counted, thousands
from app.models.branches import PathMark
from app.panels.timeline.found import FoundSteps
from engine.wire.records import StepRecord


class Left(Struct, frozen=True):
    """The moments behind the live one, on the branch that was left: how many, and the newest."""

    count: int
    tip: int

    @property
    def words(self) -> str:
        return f"{counted(self.count, 'more moment')} on the branch you left"


class Shown(Struct, frozen=True):
    """The `count` moments of a path from `first` to `tip`, the newest of which the record `latest` is, and the one that
    is looked at, `step` at `index`; `is_live`: whatever comes next. `live_index`: where the live moment stands on the
    path of another branch, or parts from it; None where the path is its own. `ahead` steps are chosen to be run."""

    first: int
    tip: int
    latest: StepRecord
    count: int
    index: int
    step: int
    is_live: bool
    live_index: int | None = None
    left: Left | None = None
    goes_on: bool = False
    ahead: int = 0
    pointed_ahead: int = 0
    marks: tuple[PathMark, ...] = ()
    found: FoundSteps = field(default_factory=FoundSteps)
    noted: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The number at the end of the line."""
        return self.tip if self.left is None else self.left.tip

    @property
    def words(self) -> str:
        """For a screen reader."""
        behind = f", {self.left.words}" if self.left is not None else ""
        elsewhere = ", on another branch" if self.live_index is not None and self.index > self.live_index else ""
        ahead = f", {thousands(self.ahead)} steps ahead are chosen" if self.ahead else ""
        return f"step {thousands(self.step)}{elsewhere}{behind}{ahead}{self.found.words}"
