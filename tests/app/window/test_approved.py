"""What the bars, the menus and the dialogs say in the states that an engine can be in, as approved
(`approved/*.txt`; `KVLOUPE_APPROVE=1` writes them anew)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QDialog,
    QDoubleSpinBox,
    QLineEdit,
    QPlainTextEdit,
    QRadioButton,
    QSpinBox,
    QWidget,
)

from app.kit.segments import Segments
from app.shell import Shell
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.spec.stops import Stop
from engine.wire.commands import TakeSlice, Tokenize, Watch
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
from engine.wire.stopping import StopState
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.made import made, of_action, tab_walk
from tests.app.on_screen import assert_repainted
from tests.app.page_story import PageStory
from tests.app.placed import placed
from tests.app.rich import status as rich_status
from tests.app.shown import approve, changes, kind_of, shown

APPROVED = Path(__file__).parent / "approved"
DIALOGS = (
    "cache.tune", "cache.calculator", "cache.max", "run.to", "run.kept", "note.add", "edit.bias", "edit.typed",
    "edit.scale", "edit.noise", "edit.overwrite", "edit.replace", "model.compute",
    "export", "export.npz", "export.table", "export.trace", "export.session", "export.picture", "model.hub",
    "help.keys", "view.outliers",
)  # fmt: skip


def told(shell: Shell) -> list[str]:
    """The bars around the panels, and every action: its text, its key, and whether it is enabled or why not."""
    window = shell.window
    parts: tuple[QWidget, ...] = (
        window.top, window.recovery, window.opened, window.banner, window.phases, window.timeline, window.status
    )  # fmt: skip
    lines = [line for part in parts for line in shown(part) if "thread" not in line]
    for name in sorted(shell.actions.names()):
        action = shell.actions[name]
        mark = " (on)" if action.isChecked() else ""
        why = "" if action.isEnabled() else f" · not now: {shell.actions.reason(name)}"
        lines.append(f"{name}: {action.text()} [{action.shortcut().toString()}]{mark}{why}")
    return lines


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
        "a stop": (StateChanged(replace(now, stops=(StopState(Stop(1, "step = 20"), 2),))),),
        "an opened file": (StateChanged(replace(now, opened=file)),),
        "no model": (StateChanged(replace(now, model=None, sequences=(), step=None)),),
        "models on this computer": (ModelsFound((LocalModel("One", "org/one", "Llama", 5 << 20, 4096),)),),
        "it failed": (StateChanged(now), Failed("It cannot be: choose another.")),
        "busy": (EngineBusy("a step", 12),),
        "lost": (EngineLost("the engine was killed"),),
        "back": (EngineBack(), StateChanged(now)),
    }


def test_bars_and_actions_in_every_state_are_as_approved(running: Shell, engine: FakeEngine) -> None:
    seen = told(running)
    lines = ["== after twenty steps", *seen]
    for moment, events in moments(engine).items():
        engine.emit(*events)
        turn(running, 2)
        assert_repainted(running.window, moment)
        found = told(running)
        lines += ["", f"== {moment}", *changes(seen, found)]
        seen = found
    lines += in_little_room(running, engine)
    approve(APPROVED / "bars.txt", lines)


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
    window.status._drop_news()
    bars = window.top, window.banner, window.phases, window.timeline, window.status
    for moment, wide in (("the smallest window", 1), ("a wide one", 1700)):
        window.resize(wide, 1)
        turn(running, 2)
        assert_repainted(window, moment)
        for part in bars:
            yield from ("", f"== {moment}: {kind_of(part)}", *shown(part), *placed(part))


def test_the_window_is_made_as_approved(running: Shell) -> None:
    """Every panel, bar and menu: cursors, focus, alignment, size policies, and the tab order of the whole window."""
    window = running.window
    window.need_all()
    parts: dict[str, QWidget] = {
        "top": window.top, "recovery": window.recovery, "opened": window.opened, "banner": window.banner,
        "phases": window.phases, "timeline": window.timeline, "status": window.status, "menus": window.menuBar(),
        **window.docks.docks,
    }  # fmt: skip
    lines = []
    for name, part in parts.items():
        lines += [f"== {name}", *made(part), *(placed(part) if name not in window.docks.docks else ()), ""]
    lines += [
        "== actions",
        *(
            f"{action.text()}: {of_action(action)}"
            for action in map(running.actions.__getitem__, sorted(running.actions.names()))
        ),
    ]
    lines += ["", "== window", *tab_walk(window)]
    approve(APPROVED / "made.txt", lines)


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
    seen = shown(dialog)
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
        yield from changes(seen, found)
        seen = found


def is_portable(line: str) -> bool:
    """Whether a text names no folder of this computer."""
    return "/tmp" not in line and str(Path.home()) not in line


def test_dialogs_are_as_approved(running: Shell, engine: FakeEngine) -> None:
    """Each dialog as it opens, after a change of each of its fields, and the commands that it then sends."""
    running.models.selection.update(layer=3, kv_head=1, position=9)
    lines: list[str] = []
    told_of: list[int] = []

    def answer() -> None:
        """What the engine says to a dialog that asks it."""
        turn(running, 1)
        if engine.of(FindDevices):
            engine.emit(DEVICES)
        for asked in [one for one in engine._numbered if isinstance(one, ForecastLoad)][len(told_of) :]:
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
                found = [*shown(dialog), *made(dialog), *placed(dialog), *turned_up(dialog, answer)]
                lines += [
                    "",
                    f"== {name}: {type(dialog).__name__} {dialog.windowTitle()!r}",
                    *filter(is_portable, found),
                ]
                if name in ACCEPTED:
                    engine.sent.clear()
                    dialog.accept()
                    turn(running, 1)
                    sent = (command for command in engine.sent if not isinstance(command, Watch | TakeSlice))
                    lines += [f"sends {command}" for command in sent]
        for dialog in QApplication.topLevelWidgets():
            if isinstance(dialog, QDialog):
                dialog.reject()
        turn(running, 1)
    approve(APPROVED / "dialogs.txt", lines[1:])
