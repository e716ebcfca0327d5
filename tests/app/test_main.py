"""The program on an engine that is none: what was remembered and what is asked for reach it, and what a person chose is
remembered."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

import app.entry as entry
import app.main as beginning
import app.main as program
from app.control import controller as clock
from app.control.requests import USUAL_PACE
from app.kit.theme import current_theme
from app.main import Program
from app.models import UnclosedSession
from app.start.arguments import Arguments, parse
from app.start.settings import Settings
from engine.garbage import garbage
from engine.saved.document import read_session
from engine.saved.journal import JournalFolder
from engine.saved.session import SavedSession, entries_of
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.condition import Breakpoint
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, Turn
from engine.wire.breakpoints import SetBreakpoints
from engine.wire.commands import SetKeptLimit, SetPace
from engine.wire.events import Event, Restarted, StateChanged
from tests.app import samples
from tests.app.conftest import sweep, turn
from tests.app.found import opened_menu

CHOSEN = Settings(
    theme="light", layout="learn", recent_models=["org/a", "/models/ü, b"], prompt='Say "hi";\n=[x]\\',
    geometry=b"\x00\x01geo", docks=b"@docks", pace="5", engine="process", recent_snapshots=["/a.npz", "/b.safetensors"],
    loading=ModelSpec(device="cpu", dtype="bfloat16", weights="int8", num_threads=3), kept_bytes=5 << 20,
    breakpoints=["step = 90", "# entropy > 9"],
)  # fmt: skip


class NoEngine:
    """Keeps what it is told, and says what a test has it say."""

    is_as_chosen = False

    def __init__(self, choice: str) -> None:
        self.choice = choice
        self.kind: str | None = None
        self.ring: Callable[[], None] = lambda: None
        self.told: list[tuple[object, ...]] = []
        self.sent: list[object] = []
        self.events: list[Event] = []

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def take(*given: Any, **named: Any) -> bool:
            self.told.append((name, *given, *named.values()))
            return True

        return take

    def start(self, *given: Any, **named: Any) -> None:
        self.kind = "thread"
        self.told.append(("start", *given, *named.values()))

    def listen(self, ring: Callable[[], None]) -> None:
        self.ring = ring

    def send(self, command: Any) -> None:
        self.sent.append(replace(command, id=0))

    def drain(self) -> list[Event]:
        said, self.events = self.events, []
        return said


@pytest.fixture
def begun(
    qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Program, NoEngine]]]:
    """A program with these settings and arguments, whose window was painted."""
    monkeypatch.setattr(beginning, "Engine", NoEngine)
    monkeypatch.setattr(program, "_import_pictures", lambda: iter(()))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(clock, "POLL_MS", 1 << 30)
    made: list[Program] = []

    def begin(settings: Settings, *argv: str) -> tuple[Program, NoEngine]:
        settings.save(tmp_path / "settings.ini")
        given = parse(["--settings", str(tmp_path / "settings.ini"), "--sessions", str(tmp_path / "s"), *argv])
        qapp.setStyleSheet("")
        begins = beginning.Beginning(given)
        made.append(Program(qapp, given, begins))
        for _ in range(2):  # painted late, after the time at which it is started anyway
            made[-1].shell.window.first_painted.emit()
        turn(made[-1].shell, 2)
        return made[-1], begins.engine  # type: ignore[return-value]

    yield begin
    for one in made:
        one.end()
        sweep(one.shell)


def say(engine: NoEngine, program: Program, *events: Event) -> None:
    engine.events.extend(events)
    engine.ring()
    for _ in range(60_000):  # milliseconds at least
        if engine.events:
            QTest.qWait(1)
    assert not engine.events, "the ring has woken the window"
    turn(program.shell, 2)


def test_every_setting_comes_back_from_the_disk(tmp_path: Path) -> None:
    usual = Settings()
    unchosen = {each.name for each in fields(Settings) if getattr(CHOSEN, each.name) == getattr(usual, each.name)}
    assert unchosen == {"set_aside", "_overruled"}, "these are no settings"
    assert CHOSEN.save(tmp_path / "deep" / "settings.ini")
    assert Settings.load(tmp_path / "deep" / "settings.ini") == CHOSEN


def test_what_was_remembered_reaches_window_and_engine_and_is_remembered_again(
    begun: Callable[..., tuple[Program, NoEngine]], tmp_path: Path
) -> None:
    found, engine = begun(CHOSEN)
    window, actions = found.shell.window, found.shell.actions
    model = ModelSpec("bundled", "bfloat16", "cpu", num_threads=3, weights="int8")
    assert engine.choice == "process"
    assert [told for told in engine.told if told[0] == "start"] == [("start", model, CacheSpec(), None, True)]
    say(engine, found, StateChanged(samples.status()), Restarted())
    settings = [
        SetPace(5, None), SetBreakpoints((Breakpoint(1, "step = 90"), Breakpoint(2, "entropy > 9", is_enabled=False))),
        SetKeptLimit(5 << 20),
    ]  # fmt: skip
    assert sorted(engine.sent[:3], key=repr) == sorted(settings, key=repr)
    checked = {name for name in actions.names() if actions[name].isChecked() and name.partition(".")[0] != "cache"}
    assert {"theme.light", "pace.5", "engine.process"} <= checked
    assert not checked & {"theme.dark", "theme.system", f"pace.{USUAL_PACE}", "engine.auto", "engine.thread"}
    assert (current_theme().name, window.docks.layout_name) == ("light", "learn")
    assert window.prompt.draft == CHOSEN.prompt
    assert [action.data() for action in window.recent.actions()] == CHOSEN.recent_snapshots
    menu = opened_menu(window.top.model)
    offered = [action.data() for action in menu.actions()]
    menu.close()
    assert [one.source for one in offered if isinstance(one, ModelSpec)] == CHOSEN.recent_models
    window.prompt.edit.set_text("other words")
    window.arrange("inspect")
    found.shell.set_pace("all")
    found.shell.set_theme("dark")
    found.shell.set_kept_limit(7 << 20)
    found.shell.intents.on_loading_chosen(ModelSpec("org/a", "float16"))
    found.shell.intents.on_breakpoints_changed((Breakpoint(4, "step = 8", is_enabled=False),))
    found.shell.actions["engine.thread"].trigger()
    say(engine, found, StateChanged(samples.status(model=replace(samples.model_info("New"), source="org/new"))))
    window.close()
    now = Settings.load(tmp_path / "settings.ini")
    assert (now.prompt, now.layout, now.pace, now.theme, now.kept_bytes) == (
        "other words", "inspect", "all", "dark", 7 << 20,
    )  # fmt: skip
    assert (now.engine, now.breakpoints, now.recent_models) == (
        "thread",
        ["# step = 8"],
        ["org/new", *CHOSEN.recent_models],
    )
    assert now.loading.dtype == "float16"
    assert now.geometry not in (b"", CHOSEN.geometry)


def test_what_is_asked_for_comes_before_what_was_remembered(begun: Callable[..., tuple[Program, NoEngine]]) -> None:
    found, engine = begun(
        CHOSEN, "--theme", "system", "--prompt", "Mine", "--engine", "thread", "--kept-mib", "9", "--device", "cpu",
        "--cache", "h2o", "--model", "org/b", "--threads", "2",
    )  # fmt: skip
    settings = found.shell.settings
    assert (settings.theme, settings.prompt, settings.kept_bytes, engine.choice) == (
        "system",
        "Mine",
        9 << 20,
        "thread",
    )
    asked = ModelSpec("org/b", device="cpu", num_threads=2)
    assert [told for told in engine.told if told[0] == "start"] == [
        ("start", asked, cache_preset("h2o").spec, None, False)
    ]
    assert settings.loading == asked
    assert found.shell.window.prompt.draft == "Mine"


def leave(folder: JournalFolder, draft: str, chat: Chat | None = None) -> Path:
    """As if a window had been killed while a prompt was being written."""
    file = folder.new()
    file.append(*entries_of(SavedSession(draft=draft, draft_chat=chat)))
    file.close()
    return file.path


def test_what_another_window_left_is_offered_and_what_this_one_did_is_kept(
    begun: Callable[..., tuple[Program, NoEngine]], tmp_path: Path, qtbot: QtBot
) -> None:
    folder, chat = JournalFolder(tmp_path / "s"), Chat((Turn("user", "Who?"),))
    leave(folder, "left behind", chat)
    found, engine = begun(Settings(prompt="mine"))
    window, models = found.shell.window, found.shell.models
    qtbot.waitUntil(lambda: models.recovery.offered is not None)
    assert window.recovery.isVisibleTo(window)
    window.recovery.accepted.emit()
    assert (window.prompt.draft, window.prompt.chat.draft) == ("left behind", chat)
    assert (folder.left(), folder.ended()) == ([], [])
    another = leave(folder, "and another")
    models.recovery.offer(UnclosedSession(another, read_session(another).session, 0.0, ""))
    window.recovery.dismissed.emit()
    assert models.status.notice == "The session is kept under File · Recent sessions"
    window.sessions.aboutToShow.emit()
    (kept,) = folder.ended()
    assert [action.data() for action in window.sessions.actions()] == [str(kept)]
    assert found.shell.intents.sessions_folder == folder.folder
    say(engine, found, StateChanged(samples.status()), samples.step_record(0))
    (own,) = folder.folder.glob("*.running.*")
    window.close()
    assert not own.exists()
    assert len(folder.ended()) == 2


def test_another_engine_begins_only_where_there_is_something_to_change(
    begun: Callable[..., tuple[Program, NoEngine]],
) -> None:
    found, engine = begun(Settings())
    shell, actions = found.shell, found.shell.actions
    h2o = cache_preset("h2o").spec
    say(engine, found, StateChanged(samples.status(cache=h2o)))
    shell.models.status.fail("it failed")
    engine.told.clear()
    engine.is_as_chosen = True
    actions["engine.thread"].trigger()
    assert (engine.choice, shell.settings.engine, engine.told) == ("thread", "thread", [])
    assert (actions["engine.thread"].isChecked(), actions["engine.auto"].isChecked()) == (True, False)
    shell.models.status.lose_engine("gone")
    actions["engine.thread"].trigger()
    assert engine.told == [("restart", h2o)]
    assert (shell.models.status.loss, shell.models.status.failure) == ("", "")
    assert shell.models.status.engine == "thread"
    assert shell.models.status.notice == "The engine begins again: there was no sequence in it"
    engine.told.clear()
    shell.cpu_wanted.emit()
    shell.reload_wanted.emit()
    actions["engine.restart"].trigger()
    assert engine.told == [("restart_on_cpu", h2o, "float32"), ("reload", h2o), ("restart", h2o)]
    assert engine.choice == "thread", "a restart chooses nothing"
    found.on_exception(ValueError, ValueError("x" * 300), None)
    text = shell.models.status.failure
    assert text == f"Something unexpected went wrong (ValueError: {'x' * 200}); the session lives on."
    assert found.exit_status == 0
    assert found.end()
    assert engine.told[-1] == ("close", program.ENGINE_END_S)


def test_the_entry_looks_before_qt_is_touched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran: list[Arguments] = []
    monkeypatch.setattr(program, "run", lambda arguments: ran.append(arguments) or 7)
    monkeypatch.setattr(entry, "_leave", lambda status: status + 100)
    monkeypatch.setattr(entry, "library_problem", lambda _: None)
    monkeypatch.setattr(entry, "has_display", lambda _: True)
    assert entry.run_program(["--steps", "5"]) == 107
    assert (ran[0].steps, ran[0].tour) == (5, None)
    monkeypatch.setattr(sys, "argv", ["kvloupe", "--steps", "6"])
    assert entry.run_program() == 107
    assert ran[1].steps == 6
    monkeypatch.setattr(entry, "has_display", lambda _: False)
    assert entry.run_program([]) == 107
    assert ran[2].tour == Path("kvloupe-tour")
    assert capsys.readouterr().out == (
        "There is no display here: running the tour offscreen into ./kvloupe-tour instead.\n"
    )
    assert entry.run_program(["--tour", "mine"]) == 107
    assert (ran[3].tour, capsys.readouterr().out) == (Path("mine"), "")
    monkeypatch.setattr(entry, "library_problem", lambda _: "It is missing.")
    assert entry.run_program([]) == 2
    assert capsys.readouterr().err == "It is missing.\n"
    asked: list[Path] = []
    monkeypatch.setattr(entry, "doctor", lambda path: (asked.append(path), ("All is well", path.name == "a"))[1])
    assert [entry.run_program(["--doctor", "--settings", str(tmp_path / name)]) for name in ("a", "b")] == [0, 1]
    assert [path.name for path in asked] == ["a", "b"]
    assert len(ran) == 4


def test_garbage_waits_for_the_window_and_is_then_its_own(
    begun: Callable[..., tuple[Program, NoEngine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    collects: list[bool] = []

    def run(_: Arguments) -> int:
        collects.append(gc.isenabled())
        return 0

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(entry, "_leave", lambda status: status)
    monkeypatch.setattr(entry, "library_problem", lambda _: None)
    gc.enable()
    assert entry.run_program([]) == 0
    assert [*collects, gc.isenabled()] == [False, True]

    window, _ = begun(Settings())
    assert garbage.is_owned
    assert not gc.isenabled()
    window.end()
    assert not garbage.is_owned
    assert gc.isenabled()
