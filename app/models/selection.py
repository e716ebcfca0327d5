"""What the user looks at: one selection that every panel follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.spec.edit import Rows
from engine.wire.requests import TensorName

if TYPE_CHECKING:
    from app.models.timeline import Timeline


class Selected(Struct, frozen=True):
    """One place. `step` is a moment of any branch, None follows the live one; `position` None selects no token.

    `page` is a page that was chosen itself, in the pool of that number; None where the token decides. `channel` is one
    of the selected head's, chosen together with it: another head or tensor ends it. `area` are the rows that were
    dragged over, tokens of some layers, heads and channels; None where one place was chosen. `ahead` is a place to run
    to, so many steps ahead of the live moment; 0 where none was chosen.
    """

    step: int | None = None
    seq_id: int = 0
    layer: int = 0
    kv_head: int = 0
    position: int | None = None
    tensor: TensorName = "keys"
    change: bool = False
    page: int | None = None
    pool: int = 0
    channel: int | None = None
    area: Rows | None = None
    ahead: int = 0


class Selection(QObject):
    """Holds the place and says `changed(old, new)` when it is another one."""

    changed = Signal(object, object)

    def __init__(self) -> None:
        super().__init__()
        self._now = Selected()
        self._timeline: Timeline | None = None

    def follow(self, timeline: Timeline) -> None:
        """Whose moments are looked at: its live one is the one that is followed."""
        self._timeline = timeline

    @property
    def now(self) -> Selected:
        return self._now

    def update(self, **changes: Any) -> None:
        """Move to another place; says nothing when it is the same one. The live moment is followed.

        Naming another token or sequence gives up a chosen page: it would not be that token's. Choosing one place gives
        up the area.
        """
        if "page" not in changes and {"position", "seq_id"} & changes.keys():
            changes["page"] = None
        if "channel" not in changes and {"layer", "kv_head", "tensor", "seq_id"} & changes.keys():
            changes["channel"] = None
        if "area" not in changes and {"position", "layer", "kv_head", "seq_id", "channel"} & changes.keys():
            changes["area"] = None
        if "step" in changes and "ahead" not in changes:
            changes["ahead"] = 0
        if self._timeline is not None and changes.get("step") == self._timeline.live:
            changes = {name: None if name == "step" else value for name, value in changes.items()}
        old, new = self._now, replace(self._now, **changes)
        if new != old:
            self._now = new
            self.changed.emit(old, new)
