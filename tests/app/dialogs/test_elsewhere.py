"""An engine on another machine: its address is asked for, and its files are chosen there."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QFileDialog, QLabel

from app.dialogs.export import ExportDialog
from app.dialogs.loading import LoadingDialog
from app.dialogs.questions import AddressDialog
from app.kit.dialog import FilesThere
from app.panels.compare.view import FILE
from app.shell import Shell
from engine.files.text import SEQUENCE_MAGIC
from engine.spec.model import ModelSpec
from engine.wire.commands import ListFolder, LoadModel, OpenSnapshot, StartComparison
from engine.wire.comparison import OtherFile
from engine.wire.events import EngineLine, Failed, FolderListed, StateChanged
from engine.wire.exporting import Export
from engine.wire.status import OpenedFile
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button, texts_in


def test_an_address_is_asked_for_until_it_is_one(shell: Shell) -> None:
    wanted: list[str] = []
    shell.engine_wanted.connect(wanted.append)
    shell.actions["engine.elsewhere"].trigger()
    dialog = shell.window.findChild(AddressDialog)
    assert dialog is not None
    for text, heard in (("-oProxyCommand=x", []), ("me@rack:22/opt/kv", ["ssh://me@rack:22/opt/kv"])):
        dialog.host.setText(text)
        dialog.accept()
        assert wanted == heard
        assert "is no address of an engine: give ssh://" in dialog.problem.text(), "of the first one"


def test_models_and_files_are_chosen_on_the_machine_of_the_engine(shell: Shell, engine: FakeEngine) -> None:
    shell.models.status.set_engine("ssh://rack")
    shell.actions["snapshot.open"].trigger()
    dialog = shell.window.findChild(FilesThere)
    assert dialog is not None

    def listed(path: str, folders: tuple[str, ...], files: tuple[str, ...] = ()) -> None:
        engine.emit(FolderListed(path, folders, files, reply_to=engine.id_of(ListFolder)))
        turn(shell)

    def names() -> list[str]:
        return [dialog.names.item(row).text() for row in range(dialog.names.count())]

    listed("/home/me", ("runs",), ("notes.txt", "a.safetensors"))
    assert names() == ["../", "runs/", "a.safetensors"]
    dialog.names.itemActivated.emit(dialog.names.item(1))
    assert engine.of(ListFolder)[-1] == ListFolder("/home/me/runs")
    engine.emit(Failed("The folder '/home/me/runs' cannot be listed.", reply_to=engine.id_of(ListFolder)))
    turn(shell)
    assert "cannot be listed" in dialog.problem.text()
    dialog.accept()
    assert not engine.of(OpenSnapshot), "a folder is no snapshot"
    dialog.names.itemActivated.emit(dialog.names.item(2))
    assert [str(command.path) for command in engine.of(OpenSnapshot)] == ["/home/me/a.safetensors"]


def test_the_model_of_a_state_file_there_is_asked_for_unless_one_lies_beside_it(
    shell: Shell, engine: FakeEngine
) -> None:
    shell.models.status.set_engine("ssh://rack")
    for beside, is_asked in ((("q4.bin", "m.gguf"), False), (("q4.bin", "config.json"), False), (("q4.bin",), True)):
        shell.actions["snapshot.open"].trigger()
        (dialog,) = visible(shell)
        engine.emit(FolderListed("/slots", (), ("q4.bin",), reply_to=engine.id_of(ListFolder)))
        turn(shell)
        dialog.names.itemActivated.emit(dialog.names.item(1))
        assert engine.of(ListFolder)[-1] == ListFolder("/slots")
        engine.emit(FolderListed("/slots", (), beside, reply_to=engine.id_of(ListFolder)))
        turn(shell)
        if is_asked:
            (dialog,) = visible(shell)
            engine.emit(FolderListed("/slots", (), ("other.gguf",), reply_to=engine.id_of(ListFolder)))
            turn(shell)
            dialog.names.itemActivated.emit(dialog.names.item(1))
        model = Path("/slots/other.gguf") if is_asked else None
        assert engine.of(OpenSnapshot)[-1] == OpenSnapshot(Path("/slots/q4.bin"), model)


def visible(shell: Shell) -> list[FilesThere]:
    return [each for each in shell.window.findChildren(FilesThere) if each.isVisible()]


def test_files_of_this_machine_are_sent_there_and_its_models_are_not(
    shell: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is dropped, or chosen by a button of the dialog."""
    shell.models.status.set_engine("ssh://rack")
    path = tmp_path / "a.safetensors"
    shell.window.file_dropped.emit(path)
    assert engine.of(OpenSnapshot)[-1] == OpenSnapshot(path, is_here=True)
    shell.actions["snapshot.open"].trigger()
    (dialog,) = visible(shell)
    other = tmp_path / "b.session.json"
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(other), ""))
    button(dialog, "On this machine…").click()
    assert not visible(shell)
    assert engine.of(OpenSnapshot)[-1] == OpenSnapshot(other, is_here=True)
    shell.window.dropped.emit(ModelSpec(str(tmp_path)))
    assert not engine.of(LoadModel)
    assert "lies on this machine, and the engine runs on rack" in shell.models.status.failure


def test_a_recent_file_is_opened_on_the_machine_that_it_lies_on_or_said_to_lie_there(
    shell: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    here, there = tmp_path / "a.safetensors", Path("/home/me/b.safetensors")
    status, recent, folder = shell.models.status, shell.window.recent, shell.models.status.folder

    def opened(path: Path) -> None:
        turn(shell)
        engine.emit(StateChanged(replace(samples.status(), opened=OpenedFile(path, 9, "m", 1, "", "", "", ""))))
        turn(shell)

    status.set_engine("ssh://me@rack:22/~/kvloupe-engine")
    opened(there)
    assert status.folder == folder, "dialogs of this machine do not begin in a folder of another one"
    shell.window.file_dropped.emit(here)
    opened(here)
    assert status.folder == tmp_path
    texts = [action.text() for action in recent.actions()]
    assert texts == ["a.safetensors", "b.safetensors\ton rack"]
    on_rack, on_this = OpenSnapshot(there), OpenSnapshot(here, is_here=True)
    for name, asked in (
        ("ssh://rack", (on_this, on_rack)),
        ("process", (OpenSnapshot(here),)),
        ("ssh://pi", (on_this,)),
    ):
        status.set_engine(name)
        status.fail("")
        engine.sent.clear()
        for action in recent.actions():
            action.trigger()
        assert tuple(engine.of(OpenSnapshot)) == asked, name
        where = {"process": "this machine", "ssh://pi": "pi"}.get(name)
        words = f"b.safetensors lies on rack, and the engine runs on {where}: let it run on rack (Run · Engine)."
        assert status.failure == (words if where else "")


def test_the_model_of_a_state_file_here_is_asked_for_too(
    shell: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "q4.bin"
    state.write_bytes(SEQUENCE_MAGIC)
    other = tmp_path / "models" / "m.gguf"
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(other), ""))
    shell.window.file_dropped.emit(state)
    assert engine.of(OpenSnapshot)[-1] == OpenSnapshot(state, other)
    (tmp_path / "config.json").touch()
    shell.window.file_dropped.emit(state)
    assert engine.of(OpenSnapshot)[-1] == OpenSnapshot(state)


def test_a_model_folder_there(shell: Shell, engine: FakeEngine) -> None:
    shell.models.status.set_engine("ssh://rack")
    shell.actions["model.open"].trigger()
    dialog = shell.window.findChild(FilesThere)
    assert dialog is not None
    engine.emit(FolderListed("/models", ("llama",), ("x.safetensors",), reply_to=engine.id_of(ListFolder)))
    turn(shell)
    dialog.names.setCurrentRow(1)
    dialog.accept()
    assert engine.of(LoadModel)[-1].model.source == "/models/llama"


def test_files_of_the_engine_are_browsed_there_by_every_dialog(running: Shell, engine: FakeEngine) -> None:
    """And what it will write there is not looked for here."""
    running.models.status.set_engine("ssh://rack")

    def chosen(name: str) -> None:
        there = next(each for each in running.window.findChildren(FilesThere) if each.isVisible())
        engine.emit(FolderListed("/of/rack", (name,), (f"{name}.npz",), reply_to=engine.id_of(ListFolder)))
        turn(running)
        there.names.setCurrentRow(there.names.count() - 1)
        there.accept()

    running.actions["export"].trigger()
    export = running.window.findChild(ExportDialog)
    assert export is not None
    assert export.answer().comes_here
    assert Path(export.path.text()).is_absolute(), "a folder of this machine"
    export.machine.setCurrentIndex(export.machine.findText("rack"))
    assert not Path(export.path.text()).is_absolute(), "the folder that ssh begins in"
    button(export, "Browse…").click()
    chosen("runs")
    export.accept()
    assert str(engine.of(Export)[-1].path).startswith("/of/rack/runs/kvloupe")
    assert not engine.of(Export)[-1].comes_here
    running.actions["model.compute"].trigger()
    loading = running.window.findChild(LoadingDialog)
    assert loading is not None
    loading.folder.click()
    chosen("llama")
    loading.adapter.click()
    chosen("lora")
    loading.accept()
    assert engine.of(LoadModel)[-1].model.source == "/of/rack/llama+adapter:/of/rack/lora"
    compare = running.window.compare()
    compare.opponents.choose(FILE)
    compare.compare()
    chosen("a")
    assert engine.of(StartComparison)[-1].against == OtherFile(Path("/of/rack/a.npz"))


def test_the_status_line_says_that_no_answer_has_come_yet(shell: Shell, engine: FakeEngine) -> None:
    shell.models.status.set_engine("ssh://me@rack/opt/kv")
    turn(shell)
    assert "connecting to rack" in texts_in(shell.window.status)
    shell.models.status.lose_engine("gone")
    assert "connecting to rack" not in texts_in(shell.window.status)


def test_the_status_line_names_the_machine_and_the_delay(running: Shell, engine: FakeEngine) -> None:
    running.models.status.set_engine("ssh://me@rack/opt/kv")
    turn(running)
    assert any(told.endswith("engine on rack") for told in texts_in(running.window.status))
    engine.emit(EngineLine("rack", 12.4, "kvloupe 0.1.0, torch 2.13.0"))
    turn(running)
    (line,) = (each for each in running.window.status.findChildren(QLabel) if "engine on rack · 12 ms" in each.text())
    assert "torch 2.13.0" in line.toolTip()
