"""Every action by its own key, where it acts: what was so before, and what is so after. One line per action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from app.actions import MENUS
from app.control.actions import declared_in
from app.control.pace import PACES
from app.kit.theme import current_theme
from app.shell import Shell
from engine.saved.document import is_session
from engine.spec.capture import CAPTURES
from engine.spec.edit import Drop, Edit, Mask, Pin, Rows, Zero
from engine.spec.model import ModelSpec
from engine.spec.presets import PRESETS, cache_preset
from engine.spec.runners import RUNNERS
from engine.spec.stops import Stop
from engine.wire.commands import (
    Cancel,
    ChooseRunner,
    CloseSnapshot,
    Continue,
    GoTo,
    LoadModel,
    MakeEdit,
    NextPhase,
    OpenSnapshot,
    RedoEdit,
    Run,
    SetCache,
    SetCapture,
    StartDuel,
    Step,
    SubmitPrompt,
    UndoEdit,
)
from engine.wire.devices import UnloadModel
from engine.wire.events import StateChanged
from engine.wire.measuring import Bench, CheckParity, MeasureRegret, Sweep
from engine.wire.opponents import OtherStep
from engine.wire.status import OpenedFile
from engine.wire.stopping import SetStops
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
        place = places.get(declared.where, self.window.tokens.strip)
        place.setFocus()
        QApplication.processEvents()
        assert action.isEnabled(), self.window.actions_.reason(name)
        if declared.key:
            QTest.keySequence(place, QKeySequence(declared.key))
        else:
            action.trigger()
        turn(self.shell, 2)

    def _on_reload(self) -> None:
        self.reloads += 1

    def unload(self) -> None:
        """As if the model had been let go."""
        self.engine.emit(StateChanged(replace(self.engine.status, model=None, sequences=(), step=None)))
        turn(self.shell, 2)

    def rest(self) -> None:
        """As it was before an action that leaves nothing behind in the history: nothing open, nothing sent."""
        self.close_dialogs()
        self.models.selection.update(**vars(self._selected))
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
        self.shell.intents.on_gone_to(7)
        turn(self.shell)

    def look_back(self) -> None:
        self.models.selection.update(step=7)

    def type_condition(self) -> None:
        self.window.show_stops().line.setText("step = 20")

    def search(self) -> None:
        """Between two steps at which a condition held."""
        self.models.stops.search("step = 20 or step = 40")
        turn(self.shell, 3)
        assert self.models.stops.queried is not None
        assert self.models.stops.queried.matches == [20, 40]
        self.models.selection.update(step=30)

    def edit(self) -> None:
        """Rows are dragged over, and one edit was made."""
        self.models.selection.update(position=4, area=AREA)
        self.shell.intents.on_edited(Zero(0, AREA))
        turn(self.shell)
        self.engine.sent.clear()

    def undo(self) -> None:
        self.edit()
        self.shell.intents.on_edit_undone()
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
        self.shell.intents.on_compared(OtherStep(3))
        self.engine.emit(replace(samples.duel_started(), reply_to=self.engine.id_of(StartDuel)))
        turn(self.shell)

    def widen(self) -> None:
        """Zoom into the head and set its colours by hand, so that both can be taken back."""
        self.window.head.zoom_to_selection()
        self.window.head._bar.dragged.emit(0.25)
        turn(self.shell)


@pytest.fixture
def desk(shell: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    (tmp_path / "config.json").write_text("{}")
    chosen = {
        "getExistingDirectory": str(tmp_path),
        "getOpenFileName": (str(tmp_path / "config.json"), ""),
        "getSaveFileName": (str(tmp_path / "picture.png"), ""),
    }
    for name, answer in chosen.items():
        monkeypatch.setattr(QFileDialog, name, lambda *_, answer=answer: answer)
    return Desk(shell, engine, tmp_path)


@dataclass(frozen=True)
class Effect:
    """What an action changes: read before and after it, and what must be found. `prepare` makes it possible; what
    `lasts` cannot be taken back by `Desk.rest` and has a window of its own."""

    read: Callable[[Desk], object]
    before: object
    after: object
    prepare: Callable[[Desk], None] = lambda _: None
    lasts: bool = field(default=False, kw_only=True)

    def fault(self, desk: Desk, key: str) -> str:
        """What is not as it should be before or after the action; empty where all is."""
        self.prepare(desk)
        found = self.read(desk)
        if found != self.before:
            return f"{key}: {found!r} before it, where {self.before!r} was expected"
        desk.press(key)
        found = self.read(desk)
        return "" if found == self.after else f"{key}: {found!r} after it, where {self.after!r} was expected"


def selected(name: str) -> Callable[[Desk], object]:
    return lambda desk: getattr(desk.models.selection.now, name)


def sent(kind: type) -> Callable[[Desk], object]:
    return lambda desk: desk.sent(kind)


def models_loaded(desk: Desk) -> list[str]:
    return [command.model.source.replace(str(desk.folder), "…") for command in desk.engine.of(LoadModel)]


def text_asked(desk: Desk) -> list[tuple[str | None, bool]]:
    return [(command.prompt.text, command.alone) for command in desk.engine.of(SubmitPrompt)]


def to_change(desk: Desk) -> None:
    desk.models.selection.update(tensor="values", change=True)


def opens(name: str, prepare: Callable[[Desk], None] = lambda _: None) -> Effect:
    return Effect(Desk.dialogs, [], [name], prepare)


def whole_view(desk: Desk) -> bool:
    return desk.models.viewport.now.head_range is None


AREA = Rows(4, 8, (3,), (1,))


def edits(desk: Desk) -> list[object]:
    return [command.edit for command in desk.engine.of(MakeEdit)]


def drag_over(desk: Desk) -> None:
    desk.models.selection.update(position=4, area=AREA)


def chosen_part(desk: Desk) -> str:
    area = desk.models.selection.now.area
    return area.part if area is not None else ""


EDITS: dict[str, Edit] = {
    "edit.zero": Zero(0, AREA),
    "edit.mask": Mask(0, AREA),
    "edit.unmask": Mask(0, AREA, hidden=False),
    "edit.pin": Pin(0, AREA),
    "edit.unpin": Pin(0, AREA, pinned=False),
    "edit.drop": Drop(0, AREA),
}
EFFECTS: dict[str, Effect] = {
    "model.open": Effect(models_loaded, [], ["…"]),
    "model.hub": opens("HubDialog"),
    "model.shape": Effect(models_loaded, [], ["shape:…/config.json"]),
    "model.bundled": Effect(models_loaded, [], [ModelSpec().source]),
    "model.compute": opens("LoadingDialog"),
    "model.unload": Effect(sent(UnloadModel), [], [UnloadModel()]),
    "model.reload": Effect(lambda desk: desk.reloads, 0, 1, lambda desk: desk.unload()),
    "snapshot.open": Effect(lambda desk: [c.path.name for c in desk.engine.of(OpenSnapshot)], [], ["config.json"]),
    "session.save": Effect(lambda desk: is_session(desk.folder / "picture.png"), False, True),
    "snapshot.continue": Effect(sent(Continue), [], [Continue(ModelSpec())], lambda desk: desk.open_file()),
    "snapshot.close": Effect(sent(CloseSnapshot), [], [CloseSnapshot(ModelSpec())], lambda desk: desk.open_file()),
    "export": opens("ExportDialog"),
    **{f"export.{kind}": opens("ExportDialog") for kind in ("npz", "table", "trace", "session", "picture")},
    "picture.copy": Effect(
        lambda _: QGuiApplication.clipboard().image().isNull(),
        True,
        False,
        lambda _: QGuiApplication.clipboard().setText("words"),
    ),
    "picture.save": Effect(lambda desk: (desk.folder / "picture.png").is_file(), False, True),
    "quit": Effect(lambda desk: desk.window.isVisible(), True, False, lasts=True),
    "prompt.send": Effect(text_asked, [], [("Once upon a time", True)], lasts=True),
    "prompt.add": Effect(text_asked, [], [("Once upon a time", False)], lasts=True),
    "run.step": Effect(sent(Step), [], [Step()], lasts=True),
    "run.back": Effect(selected("step"), None, STEPS - 1),
    "run.run": Effect(sent(Run), [], [Run()]),
    "run.phase": Effect(sent(NextPhase), [], [NextPhase()]),
    "run.to": opens("RunToDialog"),
    "run.here": Effect(sent(Run), [], [Run(12)], lambda desk: desk.models.selection.update(ahead=12), lasts=True),
    "run.here_token": Effect(
        lambda desk: [c.step == desk.models.timeline.token(0, 9).step for c in desk.engine.of(GoTo)],
        [],
        [True],
        lasts=True,
    ),
    "run.at_token": Effect(
        lambda desk: desk.models.selection.now.step == desk.models.timeline.token(0, 9).step, False, True
    ),
    "stops.add": Effect(sent(SetStops), [], [SetStops((Stop(1, "step = 20"),))], Desk.type_condition, lasts=True),
    "stops.switch": Effect(
        lambda desk: [stop.is_enabled for stop in desk.models.stops.stops],
        [True],
        [False],
        lambda desk: desk.shell.intents.on_stops_changed((Stop(1, "step = 20"),)),
        lasts=True,
    ),
    "stops.find": Effect(lambda desk: desk.window.stops.line.hasFocus(), False, True),
    "stops.next": Effect(selected("step"), 30, 40, Desk.search, lasts=True),
    "stops.previous": Effect(selected("step"), 30, 20, Desk.search, lasts=True),
    "note.add": opens("BookmarkDialog"),
    "run.cancel": Effect(sent(Cancel), [], [Cancel()], Desk.run),
    "run.first": Effect(selected("step"), None, 0),
    "run.live": Effect(selected("step"), 7, None, Desk.look_back),
    "run.go_on": Effect(sent(GoTo), [], [GoTo(7)], Desk.look_back, lasts=True),
    "run.return": Effect(
        lambda desk: [c.step for c in desk.engine.of(GoTo)], [7], [7, STEPS], Desk.go_back, lasts=True
    ),
    "run.kept": opens("KeptMomentsDialog"),
    "run.road": Effect(lambda desk: desk.window.next_token.road.edit.hasFocus(), False, True),
    "view.branches": Effect(lambda desk: desk.window.branches.visibleRegion().isEmpty(), True, False),
    "timeline.play": Effect(lambda desk: desk.shell.navigator.is_replaying, False, True, lasts=True),
    "timeline.first": Effect(selected("step"), None, 0),
    "timeline.live": Effect(selected("step"), 7, None, Desk.look_back),
    "edit.undo": Effect(sent(UndoEdit), [], [UndoEdit()], Desk.edit, lasts=True),
    "edit.redo": Effect(sent(RedoEdit), [], [RedoEdit()], Desk.undo, lasts=True),
    "edit.scale": opens("ScaleForm", drag_over),
    "edit.noise": opens("NoiseForm", drag_over),
    "edit.overwrite": opens("OverwriteForm", drag_over),
    "edit.replace": opens("ReplaceForm", drag_over),
    "edit.bias": opens("BiasForm"),
    "edit.typed": opens("TypedForm"),
    "edit.both": Effect(chosen_part, "keys", "both", Desk.choose_keys),
    "edit.keys": Effect(chosen_part, "both", "keys", drag_over),
    "edit.values": Effect(chosen_part, "both", "values", drag_over),
    "cache.tune": opens("CacheDialog", lambda desk: desk.in_mode("h2o")),
    "truth.parity": Effect(sent(CheckParity), [], [CheckParity(0)]),
    "truth.sweep": Effect(lambda desk: desk.counted(Sweep), 0, 1),
    "truth.bench": Effect(lambda desk: desk.counted(Bench), 0, 1),
    "truth.regret": Effect(lambda desk: desk.counted(MeasureRegret), 0, 1),
    "cache.calculator": opens("Calculator"),
    "cache.max": opens("MaxParams"),
    "view.keys": Effect(lambda desk: selected("tensor")(desk), "values", "keys", to_change),
    "view.values": Effect(selected("tensor"), "keys", "values"),
    "view.change": Effect(selected("change"), False, True),
    "view.layer_up": Effect(selected("layer"), 4, 3),
    "view.layer_down": Effect(selected("layer"), 4, 5),
    "view.layers_up": Effect(selected("layer"), 4, 0),
    "view.layers_down": Effect(selected("layer"), 4, samples.LAYERS - 1),
    "view.head_left": Effect(selected("kv_head"), 1, 0),
    "view.head_right": Effect(selected("kv_head"), 1, 2),
    "view.token_left": Effect(selected("position"), 9, 8),
    "view.token_right": Effect(selected("position"), 9, 10),
    "view.find": Effect(lambda desk: desk.window.tokens._find.isVisible(), False, True),
    "view.outliers": opens("OutliersDialog"),
    "view.reset": Effect(whole_view, False, True, Desk.widen),
    "view.zoom": Effect(whole_view, True, False),
    "view.colors": Effect(lambda desk: desk.window.head._bar.limit == 0.25, True, False, Desk.widen),
    "layout.learn": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "learn"),
    "layout.inspect": Effect(
        lambda desk: desk.window.docks.layout_name, "learn", "inspect", lambda desk: desk.window.arrange("learn")
    ),
    "compare.with": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare", lasts=True),
    "compare.flip": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare", Desk.compare, lasts=True),
    "compare.report": Effect(
        lambda desk: (desk.folder / "picture.png").is_file(), False, True, Desk.compare, lasts=True
    ),
    "layout.compare": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare"),
    "layout.truth": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "truth"),
    "theme.system": Effect(lambda desk: desk.shell.settings.theme, "dark", "system"),
    "theme.dark": Effect(
        lambda desk: current_theme().name, "light", "dark", lambda desk: desk.shell.set_theme("light")
    ),
    "theme.light": Effect(lambda desk: current_theme().name, "dark", "light"),
    "view.full": Effect(lambda desk: desk.window.isFullScreen(), False, True, lasts=True),
    "engine.restart": Effect(lambda desk: desk.engines, [], [""]),
    "engine.auto": Effect(lambda desk: desk.engines, [], ["auto"]),
    "engine.thread": Effect(lambda desk: desk.engines, [], ["thread"]),
    "engine.process": Effect(lambda desk: desk.engines, [], ["process"]),
    **{f"capture.{name}": Effect(lambda desk: desk.sent(SetCapture), [], [SetCapture(name)]) for name in CAPTURES},
    "capture.by_layer": Effect(lambda desk: desk.sent(SetCapture), [], [SetCapture("rows", by_layer=True)]),
    **{f"runner.{name}": Effect(lambda desk: desk.sent(ChooseRunner), [], [ChooseRunner(name)]) for name in RUNNERS},
    **{
        f"pace.{name}": Effect(
            lambda desk: desk.shell.settings.pace,
            "all" if name != "all" else "1",
            name,
            lambda desk, name=name: desk.shell.set_pace("all" if name != "all" else "1"),  # type: ignore[misc]
        )
        for name in PACES
    },
    "help.palette": opens("Palette"),
    "help.keys": opens("KeysDialog"),
    "help.about": opens("AboutDialog"),
}


def test_the_table_has_every_action() -> None:
    assert set(EFFECTS) | set(EDITS) | {f"cache.{name}" for name in PRESETS} == set(ACTIONS)


def test_every_mode_is_asked_for(desk: Desk) -> None:
    for name in PRESETS:
        desk.press(f"cache.{name}")
    assert desk.sent(SetCache) == [SetCache(preset.spec) for preset in PRESETS.values()]


@pytest.mark.parametrize("key", [key for key, effect in EFFECTS.items() if effect.lasts])
def test_an_action_that_lasts_does_what_it_says(desk: Desk, key: str) -> None:
    assert EFFECTS[key].fault(desk, key) == ""
    desk.close_dialogs()


def test_every_other_action_does_what_it_says(desk: Desk) -> None:
    """In one window, in the order of the table: what one leaves behind would stand before another."""
    faults = []
    for key, effect in EFFECTS.items():
        if not effect.lasts:
            faults.append(effect.fault(desk, key))
            desk.rest()
    assert not any(faults), "\n".join(filter(None, faults))


def test_every_edit_of_rows_is_made(desk: Desk) -> None:
    """In one window, one after the other."""
    faults = []
    for key, edit in EDITS.items():
        if isinstance(edit, Pin):
            drag_over(desk)
            assert "this cache keeps every row" in desk.window.actions_.reason(key)
            desk.in_mode("h2o")
        faults.append(Effect(edits, [], [edit], drag_over).fault(desk, key))
        desk.rest()
    assert not any(faults), "\n".join(filter(None, faults))


def test_eight_layers_up_are_eight(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    deep = samples.model_info("deep", shape=samples.geometry(layers=20))
    engine.status = replace(engine.status, model=deep)
    desk = Desk(shell, engine, tmp_path)
    desk.models.selection.update(layer=9)
    desk.press("view.layers_up")
    assert desk.models.selection.now.layer == 1
    desk.press("view.layers_down")
    assert desk.models.selection.now.layer == 9


def test_keys_take_the_difference_back(desk: Desk) -> None:
    to_change(desk)
    desk.press("view.keys")
    now = desk.models.selection.now
    assert (now.tensor, now.change) == ("keys", False)


def test_letters_stay_letters_while_somebody_types(desk: Desk, qtbot: QtBot) -> None:
    edit = desk.window.prompt.edit
    edit.set_text("")
    edit.setFocus()
    qtbot.keyClicks(edit, "vkd fc")
    qtbot.keyClick(edit, Qt.Key.Key_Home)
    assert edit.text() == "vkd fc"
    assert (desk.models.selection.now.tensor, desk.models.selection.now.change) == ("keys", False)
