"""The menu of a place on the timeline: run to it, go on from it; the steps that were found."""

from __future__ import annotations

from app.draw.format import thousands
from app.window.place_menu import PlaceMenu

GROUPS = (
    ("run.here", "run.go_on", "run.live", "run.return"),
    ("run.to", "stops.add", "note.add"),
    ("stops.find", "stops.next", "stops.previous"),
)


class TimelineMenu(PlaceMenu):
    """What can be done with a step, below a line that says which one is looked at."""

    name = "step"

    def groups(self) -> tuple[tuple[str, ...], ...]:
        return GROUPS

    def words(self) -> tuple[str]:
        """Which moment is looked at, or which place ahead is chosen."""
        now, timeline = self._models.selection.now, self._models.timeline
        if now.ahead:
            return (f"{_steps(now.ahead)} ahead of the live moment",)
        if now.step is not None:
            ahead = timeline.num_steps_ahead
            where = f", {_steps(ahead)} ahead of the live one" if ahead else ""
            where = ", on another branch" if timeline.is_elsewhere and not ahead else where
            return (f"Step {thousands(now.step)}{where}",)
        return ("The live step" if timeline.latest is not None else "No step was taken",)


def _steps(count: int) -> str:
    return f"{thousands(count)} {'step' if count == 1 else 'steps'}"
