"""A session that was written down is done once more by its model, and compared with what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from engine.model.loader import LoadedModel
from engine.saved.difference import Difference, differences
from engine.saved.session import SavedSession
from engine.session.redoing import Redoing
from engine.session.session import Session
from engine.wire.records import StepRecord


class Rebuilding:
    """The `session` as it becomes, the `records` of its steps by number, and the `differences` found so far. Where a
    moment cannot be done, `steps` raises an `InputError`, and `finish` goes to the last one that was, whose next tokens
    are those that followed."""

    def __init__(self, model: LoadedModel, saved: SavedSession) -> None:
        self._saved = saved
        self.session = Session(model, saved.nodes[0].cache if saved.nodes else saved.cache)
        self.records: dict[int, StepRecord] = {}
        self.differences: list[Difference] = []
        self.num_done = 0
        self._redoing = Redoing(self.session, saved.nodes)
        self._layers = [layer.index for layer in model.info.geometry.attention_layers]

    def steps(self, check: Callable[[], None] | None = None) -> Iterator[tuple[int, list[Difference]]]:
        """Every moment when it is done: its number, and what of it is not as it was."""
        for node, record in self._redoing.steps(check):
            self.num_done += 1
            found: list[Difference] = []
            if record is not None:
                self.records[node.step] = record
                found = list(differences(node, record, self._layers))
                self.differences += found
            yield node.step, found

    def finish(self) -> None:
        """The moment that was the present one is, with what was done since."""
        self._redoing.finish(self._saved.live, self._saved.pending)
        self.session.history.take_added()

    def as_far_as_it_went(self) -> SavedSession:
        """What of the session was done: all of it, or the moments before one that could not be."""
        return replace(self._saved, nodes=self._saved.nodes[: self.num_done], live=self.session.last_step)
