"""A window at work, whose actions are pressed by their keys."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs
from msgspec.structs import replace
from PySide6.QtGui import QGuiApplication, QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from app.actions.menus import MENUS
from app.control.actions import declared_in
from app.models.kept_sessions import KeptSession
from app.shell import Shell
from engine.spec.cache import cache_preset
from engine.spec.edit import Rows, Zero
from engine.wire.commands import (
    GoTo,
    StartComparison,
    UndoEdit,
)
from engine.wire.comparison import OtherStep
from engine.wire.events import StateChanged
from engine.wire.status import OpenedFile
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

STEPS = 60
ACTIONS = {action.name: action for action in declared_in(MENUS)}


class Desk:
    """A window with a prompt and sixty steps behind it; the last layer but one and its second head are selected."""

    def __init__(self, shell: Shell, engine: FakeEngine, folder: Path) -> None:
        self.shell, self.engine, self.folder = shell, engine, folder
        self.engines: list[str] = []  # where an engine was wished for
        shell.engine_wanted.connect(self.engines.append)
        self.reloads = 0  # how often the unloaded model was wished for
        shell.reload_wanted.connect(self._on_reload)
        self.sessions: list[Path] = []  # that were wished for
        shell.session_wanted.connect(self.sessions.append)
        self.models, self.window = shell.models, shell.window
        engine.loaded()
        turn(shell)
        self.window.actions_["prompt.send"].trigger()
        turn(shell)
        shell.intents.on_run_to(STEPS)
        turn(shell)
        self.models.selection.update(layer=4, kv_head=1, position=9)
        self.window.activateWindow()
        turn(shell)
        engine.sent.clear()
        self._selected, self._status = self.models.selection.now, engine.status

    def press(self, name: str) -> None:
        """The shortcut, in the widget where it acts; an action without one is chosen from its menu."""
        declared, action = ACTIONS[name], self.window.actions_[name]
        places: dict[str, QWidget] = {
            "picture": self.window.head,
            "rows": self.window.head,
            "timeline": self.window.timeline,
        }
        place = places.get(declared.where, self.window.tokens.canvas)
        place.setFocus()
        QApplication.processEvents()
        assert action.isEnabled(), self.window.actions_.reason(name)
        if declared.key:
            QTest.keySequence(place, QKeySequence(declared.key))
        else:
            action.trigger()
        turn(self.shell, 2)

    def point_at_cell(self) -> None:
        """A cell of a head is selected, and nothing was copied."""
        QGuiApplication.clipboard().clear()
        self.models.selection.update(position=4, channel=3)
        turn(self.shell, 2)

    def _on_reload(self) -> None:
        self.reloads += 1

    def have_a_former_session(self) -> None:
        self.models.kept_sessions.replace(KeptSession(Path("former.json"), 0.0, "Once"))

    def unload(self) -> None:
        """As if the model had been let go."""
        self.engine.emit(StateChanged(replace(self.engine.status, model=None, sequences=(), step=None)))
        turn(self.shell, 2)

    def rest(self) -> None:
        """As it was before an action that leaves nothing behind in the history: nothing open, nothing sent."""
        self.close_dialogs()
        self.models.selection.update(**structs.asdict(self._selected))
        self.window.head.reset_view()
        if self.window.docks.layout_name != "inspect":
            self.window.arrange("inspect")
        if self.shell.settings.theme != "dark":
            self.shell.set_theme("dark")
        (self.folder / "picture.png").unlink(missing_ok=True)
        self.engine.status = self._status
        self.engine.emit(StateChanged(self._status))
        self.window.activateWindow()
        turn(self.shell, 2)
        self.engine.sent.clear()
        self.engines.clear()

    def close_dialogs(self) -> None:
        for widget in QApplication.topLevelWidgets():
            if isinstance(widget, QDialog):
                widget.reject()

    def sent(self, kind: type) -> list[object]:
        return [replace(command, id=0) for command in self.engine.of(kind)]

    def counted(self, kind: type) -> int:
        return len(self.engine.of(kind))

    def dialogs(self) -> list[str]:
        shown = [w for w in QApplication.topLevelWidgets() if isinstance(w, QDialog) and w.isVisible()]
        return [type(dialog).__name__ for dialog in shown]

    def go_back(self) -> None:
        """Go on from step 7: the steps after it are left behind."""
        self.shell.intents.send(GoTo(7))
        turn(self.shell)

    def look_back(self) -> None:
        self.models.selection.update(step=7)

    def type_condition(self) -> None:
        self.window.show_breakpoints().line.setText("step = 20")

    def search(self) -> None:
        """Between two steps at which a condition held."""
        self.models.breakpoints.search("step = 20 or step = 40")
        turn(self.shell, 3)
        assert self.models.breakpoints.queried is not None
        assert self.models.breakpoints.queried.matches == [20, 40]
        self.models.selection.update(step=30)

    def edit(self) -> None:
        """Rows are dragged over, and one edit was made."""
        self.models.selection.update(position=4, area=AREA)
        self.shell.intents.on_edited(Zero(0, AREA))
        turn(self.shell)
        self.engine.sent.clear()

    def undo(self) -> None:
        self.edit()
        self.shell.intents.send(UndoEdit())
        turn(self.shell)
        self.engine.sent.clear()

    def choose_keys(self) -> None:
        self.models.selection.update(position=4, area=replace(AREA, part="keys"))

    def run(self) -> None:
        self.engine.emit(StateChanged(replace(self.engine.status, running=True)))
        turn(self.shell)

    def open_file(self) -> None:
        file = OpenedFile(self.folder / "a.safetensors", 1, "Tales 5M", 0, "", "", "", "")
        self.engine.status = replace(self.engine.status, opened=file)
        self.engine.emit(StateChanged(self.engine.status))
        turn(self.shell)

    def in_mode(self, name: str) -> None:
        self.engine.status = replace(self.engine.status, cache=cache_preset(name).spec)
        self.engine.emit(StateChanged(self.engine.status))
        turn(self.shell)

    def compare(self) -> None:
        """Another run stands beside this one."""
        self.shell.intents.send(StartComparison(self.shell.models.selection.now.seq_id, OtherStep(3)))
        self.engine.emit(replace(samples.comparison_started(), reply_to=self.engine.id_of(StartComparison)))
        turn(self.shell)

    def widen(self) -> None:
        """Zoom into the head and set its colours by hand, so that both can be taken back."""
        self.window.head.zoom_to_selection()
        self.window.head.bar.dragged.emit(0.25)
        turn(self.shell)


def to_change(desk: Desk) -> None:
    desk.models.selection.update(lens="values", change=True)


AREA = Rows(4, 8, (3,), (1,))
