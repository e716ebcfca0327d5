from __future__ import annotations

import gc
import random
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QMimeData, QObject, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QAction, QDropEvent, QImage
from PySide6.QtWidgets import QAbstractButton, QAbstractScrollArea, QApplication, QDialog, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.dialogs.dialogs import CacheDialog, HubDialog
from app.dialogs.export import ExportDialog
from app.kit.panel import Panel
from app.panels.prompt.view import MAX_COUNTED_CHARS
from app.shell import Shell
from app.start.settings import Settings
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.wire.commands import Cancel, LoadModel, Run, SetCache, Step, SubmitPrompt, Tokenize
from engine.wire.records import Failed, LocalModel, StateChanged, Tokenized, Work
from tests.app import samples
from tests.app.conftest import sweep, turn
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def running(shell: Shell, engine: FakeEngine) -> Shell:
    """A window with a prompt and twenty steps behind it."""
    engine.loaded()
    turn(shell)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.controller.on_run_to(20)
    turn(shell, 10)
    assert len(shell.models.timeline) == 21
    engine.sent.clear()
    return shell


def pixel(widget: QWidget, x: int, y: int) -> str:
    return QImage(widget.grab().toImage()).pixelColor(x, y).name()


def test_a_layout_that_is_no_more_is_the_usual_one(shell: Shell) -> None:
    shell.window.arrange("learn")
    shell.window.arrange("compare")
    assert shell.window.docks.layout_name == "inspect"
    assert "layout.compare" not in set(shell.window.actions_.keys())


def test_the_status_line_says_nothing_that_never_changes(running: Shell) -> None:
    words = [label.text() for label in running.window.status.findChildren(QLabel)]
    assert any("thread" in word for word in words)
    assert not any("offline" in word for word in words)


def test_a_wide_window_gives_pages_and_the_newest_row_a_column_of_their_own(shell: Shell) -> None:
    def left(name: str) -> int:
        return shell.window.docks.docks[name].geometry().left()

    shell.window.arrange("inspect")
    shell.window.resize(1600, 1000)
    turn(shell)
    assert left("attention") == left("inspector")
    assert left("pages") == left("prompt")
    shell.window.resize(2560, 1440)
    turn(shell)
    assert left("wall") < left("attention") < left("inspector")
    assert left("pages") == left("attention")
    shell.window.resize(1600, 1000)
    turn(shell)
    assert left("attention") == left("inspector")


def test_truth_opens_on_why_rows_went_where_the_cache_drops_rows(shell: Shell, engine: FakeEngine) -> None:
    def in_front() -> list[str]:
        docks = shell.window.docks.docks  # one behind a tab waits outside
        return [name for name in ("sweep", "evicted") if docks[name].geometry().right() >= 0]

    engine.loaded()
    turn(shell)
    shell.window.arrange("truth")
    turn(shell)
    assert in_front() == ["sweep"]
    engine.emit(StateChanged(replace(samples.status(1), cache=cache_preset("h2o").spec)))
    turn(shell)
    shell.window.arrange("truth")
    turn(shell)
    assert in_front() == ["evicted"]


# ---- the grid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1280, 800), (1600, 1000), (3840, 2160)])
@pytest.mark.parametrize("layout", ["learn", "inspect"])
def test_panels_never_overlap_and_gaps_are_even(shell: Shell, size: tuple[int, int], layout: str) -> None:
    shell.window.resize(*size)
    shell.window.docks.arrange(layout)
    turn(shell)
    assert (shell.window.width(), shell.window.height()) == size
    frames = [dock.geometry() for dock in shell.window.docks.docks.values() if dock.isVisible()]
    frames = [frame for frame in frames if frame.right() >= 0]  # one behind a tab waits outside
    for index, one in enumerate(frames):
        assert one.width() >= 200
        assert one.height() >= 90
        for other in frames[index + 1 :]:
            assert not one.intersects(other)
            assert not one.adjusted(-4, -4, 4, 4).intersects(other), "gaps are six pixels wide"
    assert min(frame.left() for frame in frames) == 6
    assert max(frame.right() for frame in frames) == shell.window.docks.width() - 7


def test_the_side_columns_stay_narrow_on_a_small_screen(shell: Shell) -> None:
    shell.window.resize(1280, 800)
    turn(shell)
    assert shell.window.docks.docks["prompt"].width() <= 262
    assert shell.window.docks.docks["wall"].width() >= 700


def test_an_arrangement_is_remembered(shell: Shell) -> None:
    docks = shell.window.docks
    assert docks.save() == b""
    docks.docks["bytes"].setFloating(True)
    docks.docks["bytes"].setFloating(False)
    docks.docks["timings"].hide()
    state = docks.save()
    docks.arrange("inspect")
    assert docks.docks["timings"].isVisible()
    docks.restore(state)
    assert not docks.docks["timings"].isVisible()
    docks.restore(b"nonsense")
    assert not docks.docks["timings"].isVisible()


def test_the_theme_reaches_the_last_pixel(running: Shell) -> None:
    window = running.window
    for name in ("light", "dark"):
        window.actions_[f"theme.{name}"].trigger()
        turn(running)
        theme = window.theme
        assert theme.name == name == running.settings.theme
        assert pixel(window.docks, 2, 2) == theme.ground
        assert pixel(window.tokens, 30, window.tokens.height() - 12) == theme.panel
        assert window.actions_[f"theme.{name}"].isChecked()


def test_an_empty_window_invites(shell: Shell) -> None:
    for panel in shell.window.panels.values():
        if panel is not shell.window.prompt:
            assert panel._empty.text(), panel.accessibleName()


# ---- keys --------------------------------------------------------------------------------------------------------


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


def test_arrows_walk_layers_and_heads_in_a_picture_only(running: Shell, qtbot: QtBot) -> None:
    window = running.window
    window.activateWindow()
    window.head.setFocus()
    qtbot.keyClick(window.head, Qt.Key.Key_Down)
    qtbot.keyClick(window.head, Qt.Key.Key_Right)
    qtbot.keyClick(window.head, Qt.Key.Key_V)
    now = running.models.selection.now
    assert (now.layer, now.kv_head, now.tensor) == (1, 1, "values")
    qtbot.keyClick(window.head, Qt.Key.Key_PageDown)
    assert running.models.selection.now.layer == samples.LAYERS - 1
    window.prompt.edit.setFocus()
    qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Up)
    assert running.models.selection.now.layer == samples.LAYERS - 1


def test_space_replays_on_the_timeline(running: Shell, qtbot: QtBot) -> None:
    running.window.activateWindow()
    running.window.timeline.setFocus()
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_Space)
    assert running.models.selection.now.step == 0
    qtbot.waitUntil(lambda: (running.models.selection.now.step or 0) >= 2, timeout=3000)
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_Space)
    assert not running.navigator.is_replaying
    qtbot.keyClick(running.window.timeline, Qt.Key.Key_End)
    assert running.models.selection.now.step is None


# ---- looking back ------------------------------------------------------------------------------------------------


def test_dragging_the_timeline_moves_every_panel(running: Shell, qtbot: QtBot) -> None:
    bar, strip = running.window.timeline, running.window.tokens.strip
    middle = QPoint(bar.width() // 2, bar.height() // 2)
    qtbot.mousePress(bar, Qt.MouseButton.LeftButton, pos=middle)
    turn(running)
    assert running.models.selection.now.step == 10
    assert len(strip._tokens) == 14
    qtbot.mouseMove(bar, QPoint(bar.width() - 2, 10))
    qtbot.mouseRelease(bar, Qt.MouseButton.LeftButton, pos=QPoint(bar.width() - 2, 10))
    running.navigator.on_live()
    turn(running)
    assert len(strip._tokens) == 24


def test_rewind_here_appears_only_while_looking_back(running: Shell) -> None:
    past = running.window.top._past
    assert not past.isVisible()
    running.controller.on_step_back()
    turn(running)
    assert past.isVisible()
    assert not [button for button in past.findChildren(QAbstractButton) if "Not now" in button.toolTip()]
    assert "looking back" in running.window.top._counter.accessibleName()
    running.window.actions_["run.rewind"].trigger()
    turn(running)
    assert not past.isVisible()
    assert running.models.timeline.latest.step == 19


def test_running_is_unmistakable(running: Shell, engine: FakeEngine) -> None:
    run = running.window.actions_["run.run"]
    assert run.text() == "Run"
    engine.emit(StateChanged(replace(engine.status, running=True)))
    turn(running)
    assert run.text() == "Pause"
    assert "running" in running.window.top._counter.accessibleName()


# ---- tokens ------------------------------------------------------------------------------------------------------


def test_clicking_a_chip_selects_its_position(running: Shell, qtbot: QtBot) -> None:
    strip = running.window.tokens.strip
    left, width, row = strip._rects[7]
    point = QPoint(round(left + width / 2), row * 22 + 11)
    assert strip.index_at(point) == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position is None


def test_find_goes_round(running: Shell, qtbot: QtBot) -> None:
    running.window.tokens.open_find()
    line = running.window.tokens._find
    line.setText("She LO")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    first = running.models.selection.now.position
    tokens = running.models.timeline.tokens(0)
    assert tokens[first].text == " She"
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert running.models.selection.now.position == first
    line.setText("nothing like it")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert "not in the tokens" in running.window.status._note.text()
    qtbot.keyClick(line, Qt.Key.Key_Escape)
    assert not line.isVisible()


def test_many_tokens_stay_fast(shell: Shell, engine: FakeEngine) -> None:
    """Painting what is visible of forty thousand tokens costs about what it costs for four hundred."""
    engine.loaded()

    def cost(num_prompt: int) -> float:
        shell.models.timeline.clear()
        shell.models.timeline.append([samples.step_record(0, num_prompt)])
        turn(shell)
        strip = shell.window.tokens.strip
        began = time.perf_counter()
        for step in range(1, 6):
            shell.models.timeline.append([samples.step_record(step, num_prompt)])
            strip.viewport().repaint()
        return time.perf_counter() - began

    few, many = min(cost(400) for _ in range(3)), min(cost(40_000) for _ in range(3))
    assert many < 12 * few


HOSTILE = (
    "<b>x</b>", "<img src=x>", "&amp;", "\x00", "\ud800", "\u202e", "\u200b", "\x1b[31m", "%s{0}", "\n\r\t", "é\ufffd"
)  # fmt: skip


def hostile(seed: int) -> str:
    rng = random.Random(seed)
    pool = [
        "<b>x</b>",
        "<img src=x>",
        "&amp;",
        "\x00",
        "\ud800",
        "\u202e",
        "\u200b",
        "\x1b[31m",
        "%s{0}",
        "\n\r\t",
        "é\ufffd",
    ]
    return "".join(rng.choice(pool) for _ in range(rng.randint(0, 6)))


def test_token_texts_are_inert_everywhere(running: Shell, engine: FakeEngine) -> None:
    for seed in range(60):
        record = samples.step_record(20)
        text = hostile(seed)
        part = replace(record.sequences[0], texts=(text,), sampled_text=text)
        part = replace(
            part, candidates=tuple(replace(c, text=hostile(seed + i)) for i, c in enumerate(part.candidates))
        )
        running.models.timeline.rewind(19)
        running.models.timeline.append([replace(record, sequences=(part,))])
        running.models.selection.update(position=23, step=None)
        running.window.tokens.strip._tip(running.models.timeline.tokens(0)[-1])
        turn(running, 1)
        running.window.grab()


# ---- the prompt --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["word " * 210_000, "x" * 1_050_000, "\ufffd" * 1_050_000], ids=["text", "line", "fffd"]
)
def test_a_megabyte_paste_is_survivable_and_whole(shell: Shell, engine: FakeEngine, text: str) -> None:
    engine.loaded()
    turn(shell)
    prompt = shell.window.prompt
    prompt.edit.set_text("before ")
    mime = QMimeData()
    mime.setText(text)
    began = time.perf_counter()
    prompt.edit.insertFromMimeData(mime)
    prompt.edit.edited.emit()
    turn(shell)
    assert time.perf_counter() - began < 2.0
    assert prompt.edit.text() == "before " + text
    assert "shown in part" in prompt._detail.text()
    assert all(len(asked.text) <= MAX_COUNTED_CHARS for asked in engine.of(Tokenize))  # not a megabyte while typing
    shell.window.actions_["prompt.send"].trigger()
    assert engine.of(SubmitPrompt)[0].prompt.text == "before " + text
    prompt._clear.click()
    assert not prompt.edit.isReadOnly()


def test_tokens_are_counted_after_a_pause(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    engine.loaded()
    turn(shell)
    shell.window.prompt.edit.set_text("Hello there")
    qtbot.waitUntil(lambda: any(c.text == "Hello there" for c in engine.of(Tokenize)), timeout=2000)
    stamp = engine.of(Tokenize)[-1].stamp
    engine.emit(Tokenized(stamp, (1, 2, 3), ("Hel", "lo", " there")))
    turn(shell)
    assert shell.window.prompt._detail.text() == "3 of 1,024 tokens"


def test_sampling_is_said_on_its_button(shell: Shell) -> None:
    sampling = shell.window.prompt._sampling
    assert sampling.text() == "greedy"
    sampling._popup.temperature.setValue(0.8)
    sampling._popup.top_k.setValue(40)
    sampling._popup.top_p.setValue(0.9)
    assert sampling.text() == "T 0.8 · k 40 · p 0.9"
    params = shell.window.prompt.sampling
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.9, None)


# ---- models, caches, failures, work ------------------------------------------------------------------------------


def test_a_failure_is_a_banner_that_can_be_dismissed(running: Shell, engine: FakeEngine) -> None:
    banner = running.window.banner
    engine.emit(Failed("LoadModel", "<b>The folder</b> holds no config.json: choose another."))
    turn(running)
    assert banner.isVisible()
    assert banner._label.textFormat() == Qt.TextFormat.PlainText
    banner._close.click()
    assert not banner.isVisible()
    assert running.models.timeline.latest is not None


def test_a_banner_moves_nothing(running: Shell, engine: FakeEngine) -> None:
    docks = running.window.docks
    before = {name: dock.geometry() for name, dock in docks.docks.items()}
    engine.emit(Failed("LoadModel", "The folder holds no config.json: choose another. " * 8))
    turn(running)
    assert running.window.banner.isVisible()
    assert {name: dock.geometry() for name, dock in docks.docks.items()} == before
    assert docks.rect().contains(running.window.banner.geometry())
    running.window.resize(1600, 1000)
    turn(running)
    assert docks.rect().contains(running.window.banner.geometry())
    assert running.window.banner._label.height() >= running.window.banner._label.heightForWidth(
        running.window.banner._label.width()
    )


def test_work_shows_progress_and_can_be_cancelled(running: Shell, engine: FakeEngine) -> None:
    work = running.window.status._work
    engine.emit(StateChanged(replace(engine.status, work=Work("Downloading", 3 << 30, 6 << 30))))
    turn(running)
    assert work.isVisible()
    assert "50.0 %" in work.label.text()
    work._button.click()
    assert engine.of(Cancel)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert not work.isVisible()


def test_dropping_a_folder_loads_it(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(tmp_path))])
    event = QDropEvent(
        QPointF(5, 5), Qt.DropAction.CopyAction, mime, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    )
    shell.window.dropEvent(event)
    assert [c.model for c in engine.of(LoadModel)] == [ModelSpec(str(tmp_path))]


def test_found_and_recent_models_can_be_chosen(shell: Shell, engine: FakeEngine) -> None:
    selector = shell.window.top.model
    selector.set_recent(["/models/<b>&one"])
    selector.set_found((LocalModel("org/two", "org/two", "LlamaForCausalLM", 1 << 28, 23_040),))
    selector._fill()
    found = [action for action in selector._menu.actions() if isinstance(action.data(), ModelSpec)]
    assert [action.data().source for action in found] == ["/models/<b>&one", "org/two"]
    found[1].trigger()
    assert engine.of(LoadModel)[0].model == ModelSpec("org/two")


def test_caches_can_be_chosen_by_menu_and_by_action(running: Shell, engine: FakeEngine) -> None:
    running.window.actions_["cache.static"].trigger()
    assert engine.of(SetCache)[-1] == SetCache(cache_preset("static").spec)
    assert running.window.actions_["cache.growing"].isChecked()  # until the engine says otherwise
    assert not running.window.actions_["cache.static"].isChecked()


def test_the_parameters_of_a_cache_are_asked_for(shell: Shell) -> None:
    heard: list[object] = []
    dialog = CacheDialog(cache_preset("static").spec, shell.window)
    dialog.chosen.connect(heard.append)
    dialog._fields["max_length"].setValue(512)
    dialog.accept()
    assert [spec.max_length for spec in heard] == [512]


def test_a_hub_name_that_is_empty_is_refused_inside_the_dialog(shell: Shell) -> None:
    dialog = HubDialog(shell.window)
    dialog.accept()
    assert "no name" in dialog._problem.text()
    dialog.reject()


# ---- keeping -----------------------------------------------------------------------------------------------------


def test_the_table_and_a_picture_are_written(running: Shell, tmp_path: Path) -> None:
    running.export_table(tmp_path / "steps.csv")
    running.export_picture(tmp_path / "window.png")
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 22
    assert not QImage(str(tmp_path / "window.png")).isNull()


def test_nowhere_to_write_is_a_banner_and_the_old_file_stays(running: Shell, tmp_path: Path) -> None:
    running.export_table(tmp_path / "no" / "steps.csv")
    assert "cannot be written" in running.models.status.failure
    running.export_picture(tmp_path / "no" / "x.png")
    assert "cannot be written" in running.models.status.failure


def test_what_the_window_writes_follows_links_and_leaves_devices_alone(running: Shell, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    running.export_table(link)
    assert link.is_symlink()
    assert len(real.read_text().splitlines()) == 22
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    for write in (running.export_table, running.export_picture):
        running.models.status.fail("")
        write(device)
        assert "no regular file" in running.models.status.failure
    assert device.is_symlink()
    dialog = ExportDialog(running.models, tmp_path, running.window)
    dialog._path.setText(str(device))
    dialog.accept()
    assert "no regular file" in dialog._problem.text()


def test_the_export_dialog_checks_before_it_closes(running: Shell, tmp_path: Path) -> None:
    dialog = ExportDialog(running.models, tmp_path, running.window)
    dialog._path.setText(str(tmp_path / "missing" / "a.safetensors"))
    dialog.accept()
    assert "does not exist" in dialog._problem.text()
    heard: list[object] = []
    dialog.table_chosen.connect(heard.append)
    dialog._kinds.button(1).setChecked(True)
    dialog._path.setText(str(tmp_path / "a.csv"))
    dialog.accept()
    assert heard == [tmp_path / "a.csv"]


def test_copying_a_picture(running: Shell) -> None:
    running.window.head.setFocus()
    running.window._on_focus(None, running.window.head)
    running.window.actions_["picture.copy"].trigger()
    assert QApplication.clipboard().image().width() == running.window.docks.docks["head"].width()
    assert "copied" in running.window.status._note.text()


def test_what_is_remembered(running: Shell) -> None:
    running.window.prompt.edit.set_text("remember me")
    running.window.actions_["layout.learn"].trigger()
    running.remember()
    assert running.settings.prompt == "remember me"
    assert running.settings.layout == "learn"
    assert running.settings.geometry


# ---- quiet, reachable, tidy --------------------------------------------------------------------------------------


class PaintCounter(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.count += event.type() == QEvent.Type.Paint
        return False


def test_nothing_is_painted_while_nothing_changes(running: Shell, qtbot: QtBot) -> None:
    running.window.timeline.setFocus()  # the editor's cursor blinks
    qtbot.wait(400)
    counter = PaintCounter()
    QApplication.instance().installEventFilter(counter)
    for _ in range(20):
        running.controller.tick()
        qtbot.wait(10)
    QApplication.instance().removeEventFilter(counter)
    assert counter.count == 0


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
    assert all(isinstance(panel, Panel) for panel in running.window.panels.values())


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


MODAL = {"model.open", "model.shape", "picture.save", "quit", "view.full"}


def test_a_monkey_breaks_nothing(running: Shell, engine: FakeEngine) -> None:
    """Two thousand actions in any order: no exception, no warning, and the window still answers."""
    rng = random.Random(7)
    actions = [running.window.actions_[key] for key in running.window.actions_.keys() if key not in MODAL]  # noqa: SIM118
    running.settings.theme = "dark"
    for turn_number in range(2000):
        action: QAction = rng.choice(actions)
        if action.data().startswith(("theme.", "layout.")) and rng.random() < 0.9:
            continue  # slow, and the same each time
        if len(running.models.timeline) > 60:
            running.controller.on_rewind_here() if running.models.selection.now.step else running.controller.on_step()
        action.trigger()
        if turn_number % 5 == 0:
            running.controller.tick()
        if turn_number % 25 == 0:
            QApplication.processEvents()
            for widget in QApplication.topLevelWidgets():
                if widget is not running.window and isinstance(widget, QDialog):
                    widget.reject()
            engine.emit(rng.choice([Failed("Step", "no"), StateChanged(engine.status)]))
    turn(running)
    running.window.actions_["run.live"].trigger()
    running.window.grab()


def test_what_is_painted_piece_by_piece_is_what_a_whole_paint_shows(
    shell: Shell, engine: FakeEngine, qapp: QApplication
) -> None:
    """Panels paint only what changed, strips scroll: nothing old may stay behind on the screen."""
    qapp.setCursorFlashTime(0)
    window, models = shell.window, shell.models
    window.resize(1600, 1000)
    engine.loaded()
    turn(shell)
    window.actions_["prompt.send"].trigger()
    turn(shell)
    for number in range(40):
        shell.controller.on_run_to(1 + number % 3)
        turn(shell, 1)
        if number % 9 == 8:
            models.selection.update(position=number, layer=number % 3)
        if number % 14 == 13:
            models.selection.update(step=number)
            turn(shell, 1)
            models.selection.update(step=None, position=None)
        turn(shell, 1)
    turn(shell)
    on_screen = window.screen().grabWindow(window.winId()).toImage().convertToFormat(QImage.Format.Format_RGB32)
    whole = window.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    assert on_screen.size() == whole.size()
    one, two = (
        np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), -1, 4) for image in (on_screen, whole)
    )
    rows, columns = np.nonzero((one[..., :3] != two[..., :3]).any(axis=2))
    assert not len(rows), f"{len(rows)} pixels differ, from {columns.min(), rows.min()} to {columns.max(), rows.max()}"
