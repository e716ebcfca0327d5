"""The window as a whole: keys, looking back, themes, and that it stays quiet and tidy."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QMimeData, QObject, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage, QKeyEvent, QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QAbstractScrollArea, QApplication, QLineEdit, QMenu, QWidget
from pytestqt.exceptions import capture_exceptions
from pytestqt.qtbot import QtBot

from app.kit.plot import Plot
from app.kit.theme import current_theme
from app.kit.view import View
from app.shell import Shell
from app.start.settings import Settings
from app.window.docks import GRIDS
from app.window.window import WHAT_CAN_BE_DROPPED
from engine.saved.document import write_session
from engine.saved.session import SavedSession
from engine.spec.edit import Rows
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, SamplingParams, Turn
from engine.wire.commands import Cancel, LoadModel, OpenSnapshot, Run, Step, SubmitPrompt
from engine.wire.events import SessionOpened, StateChanged
from tests.app import samples
from tests.app.conftest import new_shell, sweep, take_steps, turn
from tests.app.fake_engine import FakeEngine


def pixel(widget: QWidget, x: int, y: int) -> str:
    return QImage(widget.grab().toImage()).pixelColor(x, y).name()


def test_the_theme_reaches_the_last_pixel(running: Shell) -> None:
    window = running.window
    for name in ("light", "dark"):
        window.actions_[f"theme.{name}"].trigger()
        turn(running)
        theme = current_theme()
        assert theme.name == name == running.settings.theme
        assert pixel(window.docks, 2, 2) == theme.ground
        assert pixel(window.tokens, 30, window.tokens.height() - 12) == theme.panel
        assert window.actions_[f"theme.{name}"].isChecked()


def test_a_window_begins_as_high_as_it_was_left(shell: Shell) -> None:
    window = shell.window
    window.restore_state(b"", b"", "inspect")
    first = window.height()
    window.resize(window.width(), 650)
    left, docks = window.save_state()
    for geometry, height in ((left, 650), (b"nonsense", first), (b"", first)):
        window.resize(window.width(), 640)
        window.restore_state(geometry, docks, "inspect")
        assert window.height() == height


class ShownWindows(QObject):
    """Collects the classes of the windows that are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.names.append(type(watched).__name__)
        return False


def test_while_a_window_is_built_no_part_of_it_is_shown_as_a_window(qapp: QApplication, engine: FakeEngine) -> None:
    shown = ShownWindows()
    qapp.installEventFilter(shown)
    shell = new_shell(qapp, engine, (1280, 800))
    shell.window.need_all()
    for layout in GRIDS:
        shell.window.arrange(layout)
        turn(shell)
    qapp.removeEventFilter(shown)
    sweep(shell)
    assert shown.names == ["MainWindow"]


def test_an_empty_window_invites(shell: Shell) -> None:
    shell.window.docks.show_pages(True)
    turn(shell)
    for panel in shell.window.panels.values():
        if panel not in (shell.window.prompt, shell.window.breakpoints):
            assert panel.empty.text(), panel.accessibleName()
    assert shell.window.breakpoints.read().words.startswith("Type a condition")


def test_typing_and_ctrl_enter_send_the_prompt(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    engine.loaded()
    turn(shell)
    shell.window.activateWindow()
    edit = shell.window.prompt.edit
    edit.set_text("")
    edit.setFocus()
    qtbot.keyClicks(edit, "A cat? kvfc ")
    qtbot.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert [c.prompt.text for c in engine.of(SubmitPrompt)] == ["A cat? kvfc "]


def test_the_debuggers_keys(running: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    window = running.window
    window.activateWindow()
    edit = window.prompt.edit
    edit.setFocus()
    qtbot.keyClick(edit, Qt.Key.Key_F10)
    assert engine.of(Step)
    turn(running)
    qtbot.keyClick(edit, Qt.Key.Key_F10, Qt.KeyboardModifier.ShiftModifier)
    assert running.models.selection.now.step == 20
    qtbot.keyClick(edit, Qt.Key.Key_F5)
    assert engine.of(Run) == [Run()]
    engine.emit(StateChanged(replace(engine.status, running=True)))
    turn(running)
    qtbot.keyClick(edit, Qt.Key.Key_Escape)
    assert engine.of(Cancel)


class Line(QLineEdit):
    """A line of text that takes every key with Ctrl, as Qt's takes Ctrl+E on X11 to go to the end of the line."""

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride:
            event.accept()
            return True
        return super().event(event)


def test_a_line_of_text_leaves_the_window_its_keys(running: Shell) -> None:
    line = Line(running.window)
    line.show()
    running.window.activateWindow()
    line.setFocus()
    taken = {}
    for key in (Qt.Key.Key_E, Qt.Key.Key_Z, Qt.Key.Key_Left):
        asked = QKeyEvent(QEvent.Type.ShortcutOverride, key, Qt.KeyboardModifier.ControlModifier)
        asked.ignore()
        QApplication.sendEvent(line, asked)
        taken[key] = asked.isAccepted()
    assert taken == {Qt.Key.Key_E: False, Qt.Key.Key_Z: True, Qt.Key.Key_Left: True}


def test_arrows_walk_layers_and_heads_in_a_picture_only(running: Shell, qtbot: QtBot) -> None:
    window = running.window
    window.activateWindow()
    window.head.setFocus()
    qtbot.keyClick(window.head, Qt.Key.Key_Down)
    qtbot.keyClick(window.head, Qt.Key.Key_Right)
    qtbot.keyClick(window.head, Qt.Key.Key_V)
    now = running.models.selection.now
    assert (now.layer, now.kv_head, now.lens) == (1, 1, "values")
    qtbot.keyClick(window.head, Qt.Key.Key_PageDown)
    assert running.models.selection.now.layer == samples.LAYERS - 1
    window.prompt.edit.setFocus()
    qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Up)
    window.timeline.setFocus()
    qtbot.keyClick(window.timeline, Qt.Key.Key_Up)
    assert running.models.selection.now.layer == samples.LAYERS - 1


def test_space_replays_on_the_timeline(running: Shell, qtbot: QtBot) -> None:
    running.window.activateWindow()
    running.window.timeline.setFocus()
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_Space)
    assert running.models.selection.now.step == 0
    qtbot.waitUntil(lambda: (running.models.selection.now.step or 0) >= 2)
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_Space)
    assert not running.navigator.is_playing
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_End)
    assert running.models.selection.now.step is None


def test_dragging_the_timeline_moves_the_step_and_its_end_is_live(running: Shell, qtbot: QtBot) -> None:
    bar, strip = running.window.timeline, running.window.tokens.canvas
    middle, end = QPoint(round(bar.track.x_of(10)), bar.height() // 2), QPoint(bar.width() - 2, bar.height() // 2)
    qtbot.mousePress(bar, Qt.MouseButton.LeftButton, pos=middle)
    turn(running)
    assert running.models.selection.now.step == 10
    assert len(strip.chips.tokens) == 14
    assert bar.accessibleDescription() == "step 10"
    event = QMouseEvent(
        QEvent.Type.MouseMove, QPointF(end), bar.mapToGlobal(QPointF(end)), Qt.MouseButton.NoButton,
        Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    QApplication.sendEvent(bar, event)
    turn(running)
    assert running.models.selection.now.step is None
    assert len(strip.chips.tokens) == 24
    assert bar.accessibleDescription() == "step 20"


def test_go_on_from_here_appears_only_while_looking_back(running: Shell) -> None:
    past = running.window.top.earlier
    assert not past.isVisible()
    running.intents.on_step_back()
    turn(running)
    assert past.isVisible()
    running.window.resize(running.window.minimumSize())
    turn(running)
    assert running.window.minimumSize().width() <= 960
    assert all(button.width() >= button.sizeHint().width() for button in past.findChildren(QAbstractButton))
    assert not [button for button in past.findChildren(QAbstractButton) if "Not now" in button.toolTip()]
    assert "looking back" in running.window.top.counter.accessibleName()
    running.window.actions_["run.go_on"].trigger()
    turn(running)
    assert not past.isVisible()
    assert running.models.timeline.latest.step == 19


def test_running_is_unmistakable(running: Shell, engine: FakeEngine) -> None:
    run = running.window.actions_["run.run"]
    assert run.text() == "Run"
    engine.emit(StateChanged(replace(engine.status, running=True)))
    turn(running)
    assert run.text() == "Pause"
    assert "running" in running.window.top.counter.accessibleName()


def test_the_title_names_the_step_shown_while_it_runs_too(running: Shell, engine: FakeEngine) -> None:
    window, model = running.window, engine.status.model
    assert model is not None
    assert window.windowTitle() == f"{model.name} · step 20 — KV Loupe"
    for step in (21, 22):
        engine.emit(samples.step_record(step), StateChanged(replace(engine.status, running=True, step=step)))
        turn(running)
        running.models.timeline.announce()
        assert window.windowTitle() == f"{model.name} · step {step} — KV Loupe"
    running.models.selection.update(step=7)
    assert window.windowTitle() == f"{model.name} · looking at step 7 — KV Loupe"


def test_what_is_dropped_is_a_model_its_shape_or_a_file(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    session = tmp_path / "s.json"
    write_session(SavedSession(draft="words"), session)
    for name in ("config.json", "a.safetensors", "b.npz", "c.txt", "d.gguf"):
        (tmp_path / name).write_text("{}")
    expected: dict[str, object] = {
        ".": ModelSpec(str(tmp_path)), "config.json": ModelSpec(f"shape:{tmp_path / 'config.json'}"),
        "s.json": session, "a.safetensors": tmp_path / "a.safetensors", "b.npz": tmp_path / "b.npz", "c.txt": None,
        "d.gguf": tmp_path / "d.gguf",
    }  # fmt: skip
    keys, buttons = Qt.KeyboardModifier.NoModifier, Qt.MouseButton.LeftButton
    for name, wanted in expected.items():
        mime = QMimeData()
        mime.setUrls([QUrl.fromLocalFile(str(tmp_path / name))])
        engine.sent.clear()
        enter = QDragEnterEvent(QPoint(5, 5), Qt.DropAction.CopyAction, mime, buttons, keys)
        enter.ignore()
        shell.window.dragEnterEvent(enter)
        shell.window.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, mime, buttons, keys))
        found = [*(c.model for c in engine.of(LoadModel)), *(c.path for c in engine.of(OpenSnapshot))]
        assert (found, enter.isAccepted()) == ([] if wanted is None else [wanted], wanted is not None), name
        assert (shell.window.status.note.text() == WHAT_CAN_BE_DROPPED) is (wanted is None), name
        shell.window.status.notify("")
    two, far = QMimeData(), QMimeData()
    two.setUrls([QUrl.fromLocalFile(str(tmp_path))] * 2)
    far.setUrls([QUrl("https://example.org/a.npz")])
    engine.sent.clear()
    for mime in (two, far, QMimeData()):
        shell.window.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, mime, buttons, keys))
    assert not engine.of(LoadModel)
    assert not engine.of(OpenSnapshot)


def test_a_file_dropped_while_a_model_is_loaded_is_said_to_come(shell: Shell, engine: FakeEngine) -> None:
    path = Path("/nowhere/cat.safetensors")
    shell.window.file_dropped.emit(path)
    assert shell.window.status.note.text() == "cat.safetensors is opened once the model is loaded"
    assert engine.sent[-1] == OpenSnapshot(path)


def test_a_place_whose_tokens_come_later_is_not_said_to_be_none(shell: Shell, engine: FakeEngine) -> None:
    """What a file's window had selected is known before its steps are read."""
    shell.models.selection.update(area=Rows(0, 3))
    assert "Nothing is selected" not in shell.window.status.note.text()
    take_steps(shell, engine, 2)
    shell.models.selection.update(area=Rows(0, 2))
    assert shell.window.status.note.text().startswith("Selected: positions 0")


def test_copying_a_picture(running: Shell) -> None:
    running.window.activateWindow()
    running.window.head.setFocus()
    running.window.actions_["picture.copy"].trigger()
    assert QApplication.clipboard().image().width() == running.window.docks.docks["head"].width()
    assert "copied" in running.window.status.note.text()


class PaintCounter(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.count += event.type() == QEvent.Type.Paint
        return False


def test_nothing_is_painted_while_nothing_changes(running: Shell, qtbot: QtBot) -> None:
    running.window.timeline.setFocus()  # the editor's cursor blinks
    counter = PaintCounter()
    QApplication.instance().installEventFilter(counter)

    def is_nothing_painted() -> bool:
        counter.count = 0
        for _ in range(20):
            running.controller.tick()
            qtbot.wait(10)
        return counter.count == 0

    qtbot.waitUntil(is_nothing_painted)  # what fades is painted until it is gone
    QApplication.instance().removeEventFilter(counter)


def test_everything_that_takes_the_focus_has_a_name(running: Shell) -> None:
    nameless = [
        widget
        for widget in running.window.findChildren(QWidget)
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        and widget.isVisible()
        and not widget.accessibleName()
        and not widget.objectName().startswith("qt_")  # the inside of a spin box, whose name speaks for it
        and not isinstance(widget.parentWidget(), QAbstractScrollArea)  # a viewport: its area speaks for it
        and not (isinstance(widget, QAbstractButton) and widget.text())
    ]
    assert not nameless


def test_panels_are_reached_by_tab(running: Shell) -> None:
    focusable = [w for w in running.window.findChildren(QWidget) if w.focusPolicy() & Qt.FocusPolicy.TabFocus]
    owners = {
        panel.accessibleName() for panel in running.window.panels.values() for w in focusable if panel.isAncestorOf(w)
    }
    assert {"Prompt", "Tokens"} <= owners
    assert all(isinstance(panel, View) for panel in running.window.panels.values())


def test_windows_come_and_go_without_a_trace(qtbot: QtBot, qapp: QApplication) -> None:
    def once() -> weakref.ref[QWidget]:
        engine = FakeEngine()
        shell = Shell(qapp, Settings(), engine.send, engine.drain)
        shell.window.show()
        engine.loaded()
        turn(shell, 2)
        sweep(shell)
        return weakref.ref(shell)

    once()
    gc.collect()
    before = len(qapp.allWidgets())
    left = [once() for _ in range(5)]
    gc.collect()
    assert len(qapp.allWidgets()) <= before
    assert [ref() for ref in left] == [None] * 5


def test_a_window_that_ends_as_soon_as_it_is_painted_tells_nobody(qapp: QApplication, engine: FakeEngine) -> None:
    shell = new_shell(qapp, engine, (1280, 800))
    with capture_exceptions() as raised:
        sweep(shell)
    assert raised == []


def test_news_of_every_plot_stand_in_the_status_line(running: Shell) -> None:
    running.window.need("truth")
    plots = running.window.findChildren(Plot)
    assert len(plots) >= 7
    for plot in plots:
        news = f"{plot.accessibleName()} saved"
        assert running.window.status.note.text() != news
        plot.message.emit(news)
        assert running.window.status.note.text() == news


@pytest.mark.parametrize("name", ["timings", "bytes"])
def test_show_everything_reaches_the_plot_of_the_panel_in_use(running: Shell, name: str) -> None:
    panel = running.window.panels[name]
    if name == "bytes":
        panel.choose("steps")  # type: ignore[attr-defined]
    turn(running)
    panel.setFocus()
    turn(running)
    canvas = panel.plot.canvas  # type: ignore[attr-defined]
    home = canvas.frame.x_range
    QTest.keyClick(canvas, Qt.Key.Key_Plus)
    assert canvas.is_zoomed
    assert canvas.frame.x_range != home
    assert running.actions["view.reset"].isEnabled()
    running.actions["view.reset"].trigger()
    assert canvas.frame.x_range == home
    assert not canvas.is_zoomed


def test_what_was_being_written_comes_back_with_its_session_unless_another_prompt_was_begun(
    running: Shell, engine: FakeEngine
) -> None:
    prompt = running.window.prompt
    chats = [Chat((Turn("user", text),)) for text in ("Who?", "What?")]
    for draft, chat in zip(("left behind", "and another"), chats, strict=True):
        engine.emit(SessionOpened(draft, SamplingParams(), draft_chat=chat))
        turn(running)
        assert (prompt.draft, prompt.chat.draft) == (draft, chats[0])
    prompt.choose("text")
    for begun, draft in ((True, "mine"), (False, "of a file")):
        prompt.edit.set_text("mine")
        if not begun:
            prompt.submit()
        engine.emit(SessionOpened("of a file", SamplingParams()))
        turn(running)
        assert prompt.draft == draft


def test_every_action_says_in_its_tip_what_it_does_and_why_not_now(shell: Shell) -> None:
    actions = shell.actions
    for name in actions.names():
        tip, declared = actions[name].toolTip(), actions.declared(name)
        assert declared.tip in tip, name
        assert actions.reason(name).rstrip(".")[1:] in tip, name


def test_no_menu_is_higher_than_the_smallest_window(shell: Shell) -> None:
    """Under its menu bar, in a window of 1280 by 800."""
    menus = shell.window.menuBar().findChildren(QMenu)
    heights = {menu.title(): menu.sizeHint().height() for menu in menus}
    assert len(heights) > 12
    assert {title for title, height in heights.items() if height > 760} == set()
