"""The state of the timeline."""

from __future__ import annotations

from msgspec import Struct, field

from app.draw.format import counted, thousands
from app.models.branches import PathMark
from app.panels.timeline.found import FoundSteps
from engine.wire.records import StepRecord


class Left(Struct, frozen=True):
    """The nodes after the live one, on the branch that was left: how many, and the newest."""

    count: int
    tip: int

    @property
    def words(self) -> str:
        return f"{counted(self.count, 'more moment')} on the branch you left"


class Shown(Struct, frozen=True):
    """A path of `count` nodes from `first` to `tip`, with its newest record `latest`; the node shown, `step` at
    `index`, and whether that is the live one (`is_live`). `live_index`: on the path of another branch, where the live
    node is or its path leaves this one; None on the live path. `ahead` steps are chosen to be run."""

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
        ahead = (
            f", {counted(self.ahead, 'step')} ahead {'is' if self.ahead == 1 else 'are'} chosen" if self.ahead else ""
        )
        return f"step {thousands(self.step)}{elsewhere}{behind}{ahead}{self.found.words}"
