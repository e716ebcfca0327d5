"""What the export dialog writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from app.dialogs.export import ExportDialog
from app.dialogs.export_kinds import KINDS as ROWS
from app.shell import Shell
from engine.wire.commands import Export
from tests.app.fake_engine import FakeEngine

KINDS = {row.name: row.endings[0] for row in ROWS}


@pytest.fixture
def dialog(running: Shell) -> ExportDialog:
    """The dialog as the action opens it, in a window with twenty steps behind it."""
    running.window.actions_["export"].trigger()
    dialog = running.window.findChild(ExportDialog)
    assert dialog is not None
    return dialog


def give(dialog: ExportDialog, kind: str, path: Path) -> None:
    dialog.set_kind(kind)
    dialog._path.setText(str(path))
    dialog.accept()


def test_the_table_is_written_and_said(running: Shell, dialog: ExportDialog, tmp_path: Path) -> None:
    give(dialog, "table", tmp_path / "steps.csv")
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 22
    assert running.window.status._note.text() == f"Step table written to {tmp_path / 'steps.csv'}"
    assert not dialog.isVisible()


def test_the_picture_is_that_of_the_whole_window(running: Shell, dialog: ExportDialog, tmp_path: Path) -> None:
    give(dialog, "picture", tmp_path / "window.png")
    assert QImage(str(tmp_path / "window.png")).size() == running.window.size()


def test_the_snapshot_is_asked_of_the_engine(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, tmp_path: Path
) -> None:
    dialog._notes.setText("before the change")
    give(dialog, "snapshot", tmp_path / "a.safetensors")
    (command,) = engine.of(Export)
    assert isinstance(command, Export)
    assert (command.path, command.num_tokens, command.notes) == (tmp_path / "a.safetensors", None, "before the change")
    assert [record.step for record in command.records] == list(range(21))
    assert json.loads(command.view)["layout"] == "inspect"
    assert list(tmp_path.iterdir()) == []


def test_the_next_export_is_offered_where_the_last_one_went(
    running: Shell, dialog: ExportDialog, tmp_path: Path, qtbot: QtBot
) -> None:
    assert running.export_folder != tmp_path
    give(dialog, "table", tmp_path / "steps.csv")
    running.window.actions_["export"].trigger()
    offered = [found._path.text() for found in running.window.findChildren(ExportDialog) if found.isVisible()]
    assert offered == [str(tmp_path / "kvloupe-step20.safetensors")]


@pytest.mark.parametrize("kind", KINDS)
def test_nowhere_to_write_is_said_inside_and_the_dialog_stays(
    dialog: ExportDialog, engine: FakeEngine, kind: str, tmp_path: Path
) -> None:
    give(dialog, kind, tmp_path / "no" / "file")
    assert "does not exist" in dialog._problem.text()
    assert dialog.isVisible()
    assert not engine.of(Export)


def test_links_are_followed(dialog: ExportDialog, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    give(dialog, "table", link)
    assert link.is_symlink()
    assert len(real.read_text().splitlines()) == 22


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_left_alone(dialog: ExportDialog, kind: str, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    give(dialog, kind, device)
    assert "no regular file" in dialog._problem.text()
    assert device.is_symlink()


def test_a_name_is_needed(dialog: ExportDialog) -> None:
    dialog._path.setText("  ")
    dialog.accept()
    assert dialog._problem.text() == "Give a file name."


def test_another_kind_has_another_ending(dialog: ExportDialog, tmp_path: Path) -> None:
    dialog._path.setText(str(tmp_path / "mine.safetensors"))
    for kind, ending in KINDS.items():
        dialog.set_kind(kind)
        assert dialog._path.text() == str(tmp_path / f"mine{ending}")
        assert dialog._notes.isVisible() == (kind == "snapshot")
