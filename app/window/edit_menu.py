"""The menu of what is selected in a picture: what an edit would touch, in words and bytes, and the edits."""

from __future__ import annotations

from collections.abc import Iterable

from app.draw.edit_words import rows_words, size_words
from app.models.chosen_rows import NOTHING, chosen_rows
from app.window.place_menu import PlaceMenu


class EditMenu(PlaceMenu):
    """The Edit menu, below a line that says what is selected."""

    name = "edits"

    def groups(self) -> Iterable[Iterable[str]]:
        if self._models.selection.now.position is not None:
            yield "run.here_token", "run.at_token", "run.go_on", "run.to"
        undo, *groups, parts, notes = self._actions.menus["&Edit"]
        for group in (parts, *groups, notes, undo):
            yield [action.name for action in group]

    def words(self) -> tuple[str, ...]:
        """What is selected, and how much that is."""
        rows, model = chosen_rows(self._models), self._models.status.model
        if rows is None or model is None:
            return (f"Nothing is selected: {NOTHING}",)
        return rows_words(rows), size_words(rows, model.geometry, model.dtype)
