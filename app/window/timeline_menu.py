"""The menu of a step on the timeline: go on from it, or run to a later one; the steps that were found."""

from __future__ import annotations

from app.draw.format import thousands
from app.window.place_menu import PlaceMenu

GROUPS = (
    ("run.go_on", "run.live"),
    ("run.to", "stops.add", "note.add"),
    ("stops.find", "stops.next", "stops.previous"),
)


class TimelineMenu(PlaceMenu):
    """What can be done with a step, below a line that says which one is looked at."""

    name = "step"

    def groups(self) -> tuple[tuple[str, ...], ...]:
        return GROUPS

    def words(self) -> tuple[str]:
        """Which step is looked at."""
        step, latest = self._models.selection.now.step, self._models.timeline.latest
        if step is not None:
            return (f"Step {thousands(step)}",)
        return ("The live step" if latest is not None else "No step was taken",)
