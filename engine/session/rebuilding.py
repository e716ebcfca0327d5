"""A session that was written down is done once more by its model, and compared with what it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.saved.difference import Compared, ReplayDifference, differences
from engine.saved.session import SavedSession
from engine.session.edits.numbers import RowsFrom
from engine.session.redoing import Redoing
from engine.session.session import OpenRows, Session
from engine.wire.records import StepRecord
from engine.wire.tree import Node


class Rebuilding:
    """The `session` as it becomes, the `records` of its steps by number, the `differences` found so far, and how much
    was `compared`. Where a moment cannot be done, `steps` raises an `InputError`, and `finish` goes to the last one
    that was, whose next tokens are those that followed. Edits of the session open files through `open_rows`, by default
    none: whoever wrote the session may have named any."""

    def __init__(self, model: LoadedModel, saved: SavedSession, open_rows: OpenRows | None = None) -> None:
        self._saved = saved
        self.session = Session(model, saved.nodes[0].cache if saved.nodes else saved.cache)
        self.session.open_rows = open_rows or refuse_rows
        self.records: dict[int, StepRecord] = {}
        self.differences: list[ReplayDifference] = []
        self.compared = Compared()
        self.num_done = 0
        self._redoing = Redoing(self.session, saved.nodes)
        self._layers = [layer.index for layer in model.info.geometry.attention_layers]

    def steps(self, check: Callable[[], None] | None = None) -> Iterator[tuple[int, list[ReplayDifference]]]:
        """Every moment when it is done: its number, and what of it is not as it was."""
        for node, record in self._told(check):
            self.num_done += 1
            self.compared.add(node, record, self._layers)
            found: list[ReplayDifference] = []
            if record is not None:
                self.records[node.step] = record
                found = list(differences(node, record, self._layers))
                self.differences += found
            yield node.step, found

    def _told(self, check: Callable[[], None] | None) -> Iterator[tuple[Node, StepRecord | None]]:
        try:
            yield from self._redoing.steps(check)
        except InputError as error:
            step = self._saved.nodes[self.num_done].step
            raise InputError(f"Step {step} could not be done once more: {error}") from error

    def finish(self) -> None:
        """The moment that was the present one is, with what was done since."""
        self._redoing.finish(self._saved.live, self._saved.pending)
        self.session.history.take_added()

    def as_far_as_it_went(self) -> SavedSession:
        """What of the session was done: all of it, or the moments before one that could not be."""
        return replace(self._saved, nodes=self._saved.nodes[: self.num_done], live=self.session.last_step)


def refuse_rows(path: str) -> AbstractContextManager[RowsFrom]:
    """Opens nothing."""
    raise InputError(
        f"its edit takes rows from '{path}', and no file that a session names is opened unasked. Make that edit by "
        "hand, or replay the session with --allow-file."
    )


def only_rows_of(files: Collection[Path], open_rows: OpenRows) -> OpenRows:
    """Opens these files and no others."""
    allowed = {file.resolve() for file in files}

    def open_allowed(path: str) -> AbstractContextManager[RowsFrom]:
        return (open_rows if Path(path).resolve() in allowed else refuse_rows)(path)

    return open_allowed
