"""What the bars, the menus and the dialogs say in the states that an engine can be in, as approved
(`approved/*.txt`; `KVLOUPE_APPROVE=1` writes them anew)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QCheckBox,
    QComboBox,
    QDialog,
    QDoubleSpinBox,
    QLabel,
    QLineEdit,
    QMainWindow,
    QMenu,
    QPlainTextEdit,
    QRadioButton,
    QSpinBox,
    QWidget,
)

from app.kit.widgets import Segments
from app.shell import Shell
from app.window import status_line
from engine.spec.cache import cache_preset
from engine.spec.condition import Breakpoint
from engine.spec.model import ModelSpec
from engine.wire.breakpoints import BreakpointState
from engine.wire.commands import TakePicture, Tokenize, Watch
from engine.wire.devices import Device, DevicesFound, FindDevices, ForecastLoad, FormatHere, LoadForecast
from engine.wire.events import (
    EngineBack,
    EngineBusy,
    EngineLost,
    Event,
    Failed,
    LocalModel,
    ModelsFound,
    StateChanged,
    Tokenized,
)
from engine.wire.status import OpenedFile, RunnerState, SequenceInfo, Work
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.on_screen import assert_repainted
from tests.app.page_story import PageStory
from tests.app.rich import status as rich_status
from tests.app.shown import kind_of, plain, shown
from tests.approve import approve, changes

APPROVED = Path(__file__).parent / "approved"
DIALOGS = (
    "cache.tune", "cache.calculator", "cache.max", "run.to", "run.kept", "note.add", "edit.bias", "edit.typed",
    "edit.scale", "edit.noise", "edit.overwrite", "edit.replace", "model.compute",
    "export", "export.npz", "export.table", "export.trace", "export.session", "export.picture", "model.hub",
    "help.keys", "view.outliers",
)  # fmt: skip


def bars(shell: Shell) -> list[str]:
    """What the bars around the panels say."""
    window = shell.window
    parts: tuple[QWidget, ...] = (
        window.top, window.recovery, window.opened, window.banner, window.phases, window.timeline, window.status
    )  # fmt: skip
    return [line for part in parts if part.isVisible() for line in shown(part) if "thread" not in line]


def actions(shell: Shell) -> dict[str, str]:
    """Why each action is not possible now, or that it is; and whether it is on."""
    found = {}
    for name in sorted(shell.actions.names()):
        action = shell.actions[name]
        reason = "possible" if action.isEnabled() else f"not now: {shell.actions.reason(name)}"
        found[name] = f"on, {reason}" if action.isChecked() else reason
    return found


def by_reason(found: dict[str, str]) -> Iterator[str]:
    for reason in sorted(set(found.values())):
        yield f"{reason}: {', '.join(name for name, each in found.items() if each == reason)}"


def menus(window: QMainWindow) -> Iterator[str]:
    """Every menu with its entries: those of the bar and those of buttons."""
    for menu in window.findChildren(QMenu):
        entries = [_entry(action) for action in menu.actions()]
        if entries and "" not in entries:
            yield f"{plain(menu.title()) or name_of(menu.parentWidget())}: {' | '.join(entries)}"


def _entry(action: QAction) -> str:
    if action.isSeparator():
        return action.text() or "—"
    return f"{plain(action.text())}{' ▸' if action.menu() is not None else ''}"


def tab_walk(window: QWidget) -> Iterator[str]:
    """The widgets in the order in which Tab walks."""
    widget = window.nextInFocusChain()
    while widget is not window:
        if window.isAncestorOf(widget) and widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield name_of(widget)
        widget = widget.nextInFocusChain()


def name_of(widget: QWidget) -> str:
    text = widget.text() if isinstance(widget, QAbstractButton | QLabel) else ""
    return f"{kind_of(widget)} {plain(widget.accessibleName() or text)!r}"


def moments(engine: FakeEngine) -> dict[str, tuple[Event, ...]]:
    """The engine's messages of each moment, one after the other."""
    now = engine.status
    model = replace(
        samples.model_info("Other"), random_weights=True, note="a note", why_device="no GPU", device="cuda:0"
    )
    rich = rich_status()
    info = SequenceInfo(0, "finished", 24, 4, 11, "length")
    file = OpenedFile(Path("/a/b.safetensors"), 3 << 20, "Tales 5M", 21, "no room", "a note", "2026-01-02", "kvloupe 1")
    work = Work("Measuring", 3, 12, left_s=4.2)
    return {
        "running": (StateChanged(replace(now, running=True)),),
        "at work": (StateChanged(replace(now, work=work)),),
        "finished": (StateChanged(replace(now, sequences=(info,))),),
        "two sequences, h2o, stops": (StateChanged(replace(rich, model=now.model, step=now.step)),),
        "coded": (StateChanged(replace(now, cache=cache_preset("kivi-4").spec)),),
        "paged": (
            StateChanged(replace(now, cache=cache_preset("paged").spec, sequences=PageStory().infos() or (info,))),
        ),
        "another model": (StateChanged(replace(now, model=model, runner=RunnerState("eager", (), "a note of it"))),),
        "a stop": (StateChanged(replace(now, breakpoints=(BreakpointState(Breakpoint(1, "step = 20")),))),),
        "an opened file": (StateChanged(replace(now, opened=file)),),
        "no model": (StateChanged(replace(now, model=None, sequences=(), step=None)),),
        "models on this computer": (ModelsFound((LocalModel("One", "org/one", "Llama", 5 << 20, 4096),)),),
        "it failed": (StateChanged(now), Failed("It cannot be: choose another.")),
        "busy": (EngineBusy("a step", 12),),
        "lost": (EngineLost("the engine was killed"),),
        "back": (EngineBack(), StateChanged(now)),
    }


def test_bars_and_actions_in_every_state_are_as_approved(
    running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_line, "NEWS_MS", 10**8)  # a slow machine takes longer than messages stay
    window, each = running.window, running.actions
    approve(APPROVED / "menus.txt", [*menus(window), "", "== Tab walks", *tab_walk(window)])
    names = (f"{name}: {each[name].text()} [{each[name].shortcut().toString()}]" for name in sorted(each.names()))
    approve(APPROVED / "actions.txt", [*names])
    seen, could, told = bars(running), actions(running), set[str]()
    lines = ["== after twenty steps", *seen, *by_reason(could)]
    for moment, events in moments(engine).items():
        engine.emit(*events)
        turn(running, 2)
        assert_repainted(window, moment)
        found, can = bars(running), actions(running)
        now = by_reason({name: reason for name, reason in can.items() if could[name] != reason})
        lines += ["", f"== {moment}", *changes(seen, found, told), *(f"now {line}" for line in now)]
        seen, could = found, can
    approve(APPROVED / "bars.txt", lines)
    approve(APPROVED / "bars_in_little_room.txt", [*in_little_room(running, engine)][1:])


def in_little_room(running: Shell, engine: FakeEngine) -> Iterator[str]:
    """Long names in the smallest window while every bar shows something, and in a window that is wide again."""
    window, now = running.window, engine.status
    model = replace(samples.model_info("A-model-of-a-long-name-" * 4), note="a note that says much " * 5)
    work = Work("Measuring what every layer of the model would lose", 3, 12, left_s=4.2)
    infos = tuple(SequenceInfo(n, "decode", 24 + n, 4, 11, None) for n in range(3))
    spec = cache_preset("kivi-4").spec
    engine.emit(
        StateChanged(replace(now, model=model, cache=spec, work=work, sequences=infos)), EngineBusy("a long step", 12)
    )
    window.status.withdraw(window.models.status.notice)
    parts = window.top, window.banner, window.phases, window.timeline, window.status
    for moment, wide in (("the smallest window", 1), ("a wide one", 1700)):
        window.resize(wide, 1)
        turn(running, 2)
        assert_repainted(window, moment)
        for part in parts:
            if part.isVisible():
                yield from ("", f"== {moment}: {type(part).__name__}", *shown(part))


# What is sent when the dialog of an action is accepted is listed as well.
ACCEPTED = (
    "cache.tune", "run.to", "run.kept", "note.add", "edit.bias", "edit.typed", "edit.scale", "edit.noise",
    "edit.overwrite", "edit.replace", "model.compute", "model.hub",
)  # fmt: skip
TUNED = (
    cache_preset("kivi-4").spec, replace(cache_preset("paged").spec, num_pages=64), cache_preset("offloaded").spec,
    cache_preset("streamingllm").spec, cache_preset("snapkv").spec, cache_preset("transformers-quantized").spec,
    replace(cache_preset("static").spec, max_length=96),
)  # fmt: skip
TYPED = {"Tokens": "17, 18", "Edit": "zero pos=2:4 layer=3", "Condition to run to": "entropy > 2", "Note": "a note"}
GIB = 1 << 30
DEVICES = DevicesFound(
    (
        Device("cuda:0", "A GPU", 8 * GIB, 6 * GIB, ("bfloat16",)), Device("cuda:1", "Another", 8 * GIB, 7 * GIB, ()),
        Device("cpu", "A CPU", 16 * GIB, 10 * GIB, (), 8),
    ),
    (FormatHere("stored", ""), FormatHere("int8", "it is not installed")), "it is not installed either",
)  # fmt: skip


def forecast(wanted: ModelSpec, number: int) -> LoadForecast:
    """Forecasts one after the other: it does not fit, it fits later, it is impossible, it fits."""
    bits = (5 * GIB, GIB, 700)
    return (
        LoadForecast(wanted, "cuda:0", "float16", *bits, 2 * GIB, GIB, "it is there", ("a note", "another")),
        LoadForecast(wanted, "cuda:0", "float16", *bits, 5 * GIB, 2 * GIB),
        LoadForecast(wanted, problem="It cannot be."),
        LoadForecast(wanted, "cuda:0", "float16", *bits, 7 * GIB),
    )[number % 4]


def turned_up(dialog: QDialog, answer: Callable[[], None]) -> Iterator[str]:
    """Change every field of a dialog in turn; return the lines that differ afterwards."""
    seen, told = shown(dialog), set[str]()
    for field in dialog.findChildren(QWidget):
        if not (field.isVisible() and field.isEnabled()):
            continue
        match field:
            case QSpinBox() | QDoubleSpinBox():
                field.stepUp()
            case QComboBox():
                field.setCurrentIndex((field.currentIndex() + 1) % max(1, field.count()))
            case QCheckBox():
                field.toggle()
            case QRadioButton():
                field.click()
            case QLineEdit() | QPlainTextEdit() if field.accessibleName() in TYPED:
                field.setText(TYPED[field.accessibleName()]) if isinstance(field, QLineEdit) else field.setPlainText(
                    TYPED[field.accessibleName()]
                )
            case Segments():
                QTest.keyClick(field, Qt.Key.Key_Right)
            case _:
                continue
        answer()
        found = shown(dialog)
        yield f"another {type(field).__name__} {field.accessibleName()!r}"
        yield from changes(seen, found, told)
        seen = found


def is_portable(line: str) -> bool:
    """Whether a text names no folder of this computer."""
    return "/tmp" not in line and str(Path.home()) not in line


def test_dialogs_are_as_approved(running: Shell, engine: FakeEngine) -> None:
    """Each dialog as it opens, after a change of each of its fields, and the commands that it then sends."""
    running.models.selection.update(layer=3, kv_head=1, position=9)
    told_of: list[int] = []
    files: dict[str, list[str]] = {}

    def answer() -> None:
        """What the engine says to a dialog that asks it."""
        turn(running, 1)
        if engine.of(FindDevices):
            engine.emit(replace(DEVICES, reply_to=engine.id_of(FindDevices)))
        for asked in [one for one in engine.numbered if isinstance(one, ForecastLoad)][len(told_of) :]:
            engine.emit(replace(forecast(asked.model, len(told_of)), reply_to=asked.id))
            told_of.append(asked.id)
        if engine.of(Tokenize):
            engine.emit(Tokenized((17, 18), ("a", "b"), reply_to=engine.id_of(Tokenize)))
        engine.sent.clear()
        turn(running, 1)

    for name, spec in (
        *((name, cache_preset("h2o").spec) for name in DIALOGS), *(("cache.tune", spec) for spec in TUNED)
    ):  # fmt: skip
        engine.emit(StateChanged(replace(engine.status, cache=spec)))
        turn(running, 1)
        engine.sent.clear()
        running.actions[name].trigger()
        turn(running, 2)
        answer()
        for dialog in QApplication.topLevelWidgets():
            if isinstance(dialog, QDialog) and dialog.isVisible():
                found = [*shown(dialog), *turned_up(dialog, answer)]
                lines = files.setdefault(name.replace(".", "_") if spec not in TUNED else "cache_modes", [])
                lines += [f"== {name}: {dialog.windowTitle()!r}", *filter(is_portable, found)]
                if name in ACCEPTED:
                    engine.sent.clear()
                    dialog.accept()
                    turn(running, 1)
                    sent = (command for command in engine.sent if not isinstance(command, Watch | TakePicture))
                    lines += [f"sends {command}" for command in sent]
        for dialog in QApplication.topLevelWidgets():
            if isinstance(dialog, QDialog):
                dialog.reject()
        turn(running, 1)
    for name, lines in files.items():
        approve(APPROVED / "dialogs" / f"{name}.txt", lines)
