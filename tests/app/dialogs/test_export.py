"""What the export dialog writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.dialogs.export import KINDS as ROWS
from app.dialogs.export import ExportDialog, records_between
from app.draw.format import byte_size
from app.shell import Shell
from engine.wire.encoding import packed
from engine.wire.events import EngineLost, Event, Failed
from engine.wire.exporting import EstimateExport, Export, ExportCancelled, Exported, ExportEstimate
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button, field

KINDS = {row.name: row.endings[0] for row in ROWS}

pytestmark = pytest.mark.one_window


@pytest.fixture
def dialog(running: Shell) -> ExportDialog:
    """The dialog as the action opens it, in a window with twenty steps behind it."""
    running.window.actions_["export"].trigger()
    dialog = running.window.findChild(ExportDialog)
    assert dialog is not None
    return dialog


def give(dialog: ExportDialog, kind: str, path: Path) -> None:
    dialog.set_kind(kind)
    dialog.path.setText(str(path))
    dialog.accept()


def test_the_table_is_written_and_said(running: Shell, dialog: ExportDialog, tmp_path: Path) -> None:
    give(dialog, "table", tmp_path / "steps.csv")
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 22
    assert running.window.status.note.text() == f"Step table written to {tmp_path / 'steps.csv'}"
    assert not dialog.isVisible()


def test_the_picture_is_that_of_the_whole_window(running: Shell, dialog: ExportDialog, tmp_path: Path) -> None:
    give(dialog, "picture", tmp_path / "window.png")
    assert QImage(str(tmp_path / "window.png")).size() == running.window.size()


def test_the_snapshot_is_asked_of_the_engine(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, tmp_path: Path
) -> None:
    dialog.notes.setText("before the change")
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
    assert running.models.status.folder != tmp_path
    give(dialog, "table", tmp_path / "steps.csv")
    running.window.actions_["export"].trigger()
    offered = [found.path.text() for found in running.window.findChildren(ExportDialog) if found.isVisible()]
    assert offered == [str(tmp_path / "kvloupe-step20.safetensors")]


def test_nowhere_to_write_is_said_inside_and_the_dialog_stays(
    dialog: ExportDialog, engine: FakeEngine, tmp_path: Path
) -> None:
    for kind in KINDS:
        dialog.problem.setText("")
        give(dialog, kind, tmp_path / "no" / "file")
        assert "does not exist" in dialog.problem.text(), kind
        assert dialog.isVisible(), kind
        assert not engine.of(Export), kind


def test_links_are_followed(dialog: ExportDialog, tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    give(dialog, "table", link)
    assert link.is_symlink()
    assert len(real.read_text().splitlines()) == 22


def test_a_device_is_left_alone(dialog: ExportDialog, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    for kind in KINDS:
        dialog.problem.setText("")
        give(dialog, kind, device)
        assert "no regular file" in dialog.problem.text(), kind
        assert device.is_symlink(), kind


def test_a_name_is_needed(dialog: ExportDialog) -> None:
    dialog.path.setText("  ")
    dialog.accept()
    assert dialog.problem.text() == "Give a file name."


def test_another_kind_has_another_ending(dialog: ExportDialog, tmp_path: Path) -> None:
    dialog.path.setText(str(tmp_path / "mine.safetensors"))
    for kind, ending in KINDS.items():
        dialog.set_kind(kind)
        assert dialog.path.text() == str(tmp_path / f"mine{ending}")
        assert dialog.notes.isVisible() == (kind == "snapshot")


def test_only_a_name_that_nobody_gave_follows_the_steps(dialog: ExportDialog, tmp_path: Path) -> None:
    """One like ours in a folder of one's own was given, and so was another one in our folder."""
    ours = Path(dialog.path.text())
    for given in (tmp_path / ours.name, ours.with_stem("mine"), tmp_path / "mine.json"):
        dialog.path.setText(str(given))
        dialog.steps.changed.emit()
        assert dialog.path.text() == str(given)
        dialog.set_kind("table")
        assert dialog.path.text() == str(given.with_suffix(".csv"))
        dialog.set_kind("snapshot")
    dialog.path.setText(str(ours.with_stem("kvloupe-step3")))
    dialog.steps.changed.emit()
    assert dialog.path.text() == str(ours)


# ---- what of it --------------------------------------------------------------------------------------------------


def asked(engine: FakeEngine) -> EstimateExport:
    """The newest estimate that was asked for."""
    found = engine.of(EstimateExport)[-1]
    assert isinstance(found, EstimateExport)
    return found


def test_layers_heads_and_steps_go_into_the_command(dialog: ExportDialog, engine: FakeEngine, tmp_path: Path) -> None:
    for name, text in (("Layers", "0-2, 5"), ("KV heads", "1"), ("File", str(tmp_path / "x.safetensors"))):
        field(dialog, name).setText(text)
    field(dialog, "Steps").setCurrentIndex(2)
    field(dialog, "First step").setValue(12)
    field(dialog, "Last step").setValue(4)  # the other way round is the same range
    dialog.script.setChecked(True)
    dialog.accept()
    (command,) = engine.of(Export)
    assert isinstance(command, Export)
    assert (command.layers, command.kv_heads, command.with_script) == ((0, 1, 2, 5), (1,), True)
    assert [record.step for record in command.records] == list(range(4, 13))
    assert command.num_tokens == samples.PROMPT + 12


def test_looking_back_the_step_that_is_looked_at_is_offered(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    running.models.selection.update(step=7)
    running.window.actions_["export"].trigger()
    dialog = running.window.findChild(ExportDialog)
    assert dialog is not None
    assert field(dialog, "Steps").currentText() == "step 7 alone, which is viewed"
    give(dialog, "snapshot", tmp_path / "x.safetensors")
    (command,) = engine.of(Export)
    assert isinstance(command, Export)
    assert [record.step for record in command.records] == [7]
    assert command.num_tokens == running.models.timeline.num_tokens(0, 7)
    assert json.loads(command.view)["selection"]["step"] == 7


def test_the_size_is_that_of_the_engine_and_of_the_steps(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, qtbot: QtBot
) -> None:
    assert asked(engine).export.records == ()
    steps = sum(len(packed(record)) for record in records_between(running.models.timeline.records, None, None))
    engine.emit(ExportEstimate(5 << 20, 24, 6, "", reply_to=engine.id_of(EstimateExport)))
    turn(running)
    size = byte_size((5 << 20) + steps)
    assert dialog.size_words.text() == f"About {size}: 6 layers, 24 tokens, 21 steps\nDecoding can go on from it"
    field(dialog, "Steps").setCurrentIndex(1)
    qtbot.waitUntil(lambda: len(engine.of(EstimateExport)) > 1)
    engine.emit(ExportEstimate(1 << 20, 1, 1, "<b>layers</b> are missing", reply_to=engine.id_of(EstimateExport)))
    turn(running)
    assert dialog.size_words.text().endswith("To be viewed only: <b>layers</b> are missing")
    assert dialog.size_words.textFormat() == Qt.TextFormat.PlainText


@pytest.mark.parametrize(("num_bytes", "is_too_much"), [(1, False), (1 << 60, True)])
def test_more_than_is_free_is_said(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, num_bytes: int, is_too_much: bool
) -> None:
    engine.emit(ExportEstimate(num_bytes, 24, 6, "", reply_to=engine.id_of(EstimateExport)))
    turn(running)
    assert bool(re.search(r"\nOnly .*B are free there$", dialog.size_words.text())) == is_too_much
    assert dialog.size_words.property("textRole") == ("warning" if is_too_much else "muted")


def test_what_the_engine_refuses_is_said_in_the_dialog_and_nowhere_else(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, qtbot: QtBot
) -> None:
    first = engine.id_of(EstimateExport)
    dialog.layers.setText("9")
    qtbot.waitUntil(lambda: asked(engine).export.layers == (9,))
    engine.emit(ExportEstimate(7, 7, 7, "", reply_to=first))  # of what was chosen before
    engine.emit(Failed("There is no layer 9: choose another.", reply_to=engine.id_of(EstimateExport)))
    turn(running)
    assert dialog.size_words.text() == "There is no layer 9: choose another."
    assert running.models.status.failure == ""
    dialog.layers.setText("x")
    qtbot.waitUntil(lambda: dialog.size_words.text().startswith("'x' names no layers"))
    dialog.accept()
    assert dialog.problem.text().startswith("'x' names no layers")
    assert dialog.isVisible()


@pytest.mark.parametrize("end", ["written", "cancelled", "failed", "lost"])
def test_two_exports_to_one_name(running: Shell, engine: FakeEngine, tmp_path: Path, end: str) -> None:
    path = tmp_path / "x.safetensors"
    dialogs = []
    for _ in range(2):
        running.window.actions_["export"].trigger()
        dialogs.append(next(d for d in running.window.findChildren(ExportDialog) if d.isVisible() and d not in dialogs))
        give(dialogs[-1], "snapshot", path)
    assert len(engine.of(Export)) == 1
    expected = f"'{path}' is being written by another export: wait for it, or give another name."
    assert dialogs[1].problem.text() == expected
    number = engine.id_of(Export)
    ends: dict[str, Event] = {
        "written": Exported(path, 5 << 20, 120.0, path.with_suffix(".py"), reply_to=number),
        "cancelled": ExportCancelled(path, reply_to=number),
        "failed": Failed("The disk is full: free some space.", reply_to=number),
        "lost": EngineLost("It was killed"),
    }
    engine.emit(ends[end])
    turn(running)
    assert not running.controller.requests.exports.is_writing(path)
    note = running.window.status.note.text()
    match end:
        case "written":
            assert note == f"Written to {path}: 5.0 MiB in 120 ms · x.py beside it"
        case "cancelled":
            assert note == f"Export cancelled: nothing was written to {path}"
        case "failed":
            assert running.models.status.failure == "The disk is full: free some space."


def test_a_file_that_is_there_will_be_replaced(dialog: ExportDialog, tmp_path: Path) -> None:
    (tmp_path / "old.safetensors").write_text("old")
    dialog.path.setText(str(tmp_path / "old.safetensors"))
    assert dialog.there.text() == "A file of that name is there, and will be replaced."
    for text in (str(tmp_path / "new.safetensors"), "~\x00", "", str(tmp_path)):
        dialog.path.setText(text)
        assert dialog.there.text() == ""


@pytest.mark.parametrize("kind", ["npz", "trace", "session"])
def test_other_kinds_are_asked_of_the_engine_too(
    dialog: ExportDialog, engine: FakeEngine, kind: str, tmp_path: Path
) -> None:
    give(dialog, kind, tmp_path / "x")
    (command,) = engine.of(Export)
    assert isinstance(command, Export)
    assert (command.kind, command.path, len(command.records)) == (kind, tmp_path / "x", 21)


def test_parquet_is_asked_of_the_engine(dialog: ExportDialog, engine: FakeEngine, tmp_path: Path) -> None:
    give(dialog, "table", tmp_path / "x.parquet")
    assert [command.kind for command in engine.of(Export)] == ["table"]  # type: ignore[attr-defined]
    assert not (tmp_path / "x.parquet").exists()


def test_without_an_engine_tables_and_pictures_are_written(
    running: Shell, dialog: ExportDialog, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.emit(EngineLost("It was killed"))
    turn(running)
    give(dialog, "snapshot", tmp_path / "x.safetensors")
    assert dialog.problem.text() == "The engine is gone, and only it can write this: restart it under Run · Engine."
    give(dialog, "table", tmp_path / "x.csv")
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 22


def test_a_panel_as_a_drawing(running: Shell, dialog: ExportDialog, tmp_path: Path) -> None:
    dialog.set_kind("picture")
    dialog.picture.setCurrentIndex(dialog.picture.findText("Cache wall"))
    give(dialog, "picture", tmp_path / "wall.svg")
    drawing = QSvgRenderer(str(tmp_path / "wall.svg"))
    assert drawing.isValid()
    size, text = running.window.wall.frame.size(), (tmp_path / "wall.svg").read_text()
    assert drawing.viewBox().size() == size
    width = re.search(r'width="([\d.]+)mm"', text)
    assert width is not None
    assert float(width[1]) == pytest.approx(size.width() / 96 * 25.4, rel=1e-4), "a browser has 96 pixels to the inch"
    assert "Cache wall" in text


def test_the_folded_maps_of_pages_stay_here(running: Shell) -> None:
    """The wire does not carry them, and whoever reads the records folds them anew."""
    records = running.models.timeline.records
    mapped = [replace(records[0], page_maps=(object(),)), *records[1:]]  # type: ignore[arg-type]
    assert [record.page_maps for record in records_between(mapped, 0, 1)] == [(), ()]


@pytest.mark.parametrize(
    ("kind", "chosen", "filters", "name"),
    [
        ("table", ("/a/steps", "*.parquet"), "*.csv;;*.parquet", "/a/steps.parquet"),
        ("table", ("/a/steps.csv", "*.parquet"), "*.csv;;*.parquet", "/a/steps.csv"),
        ("snapshot", ("/a/b.npz", "*.safetensors"), "*.safetensors", "/a/b.npz.safetensors"),
        ("npz", ("", ""), "*.npz", None),
    ],
)
def test_a_name_that_is_browsed_for_ends_as_its_kind_does(
    dialog: ExportDialog, monkeypatch: pytest.MonkeyPatch, kind: str, chosen: tuple[str, str], filters: str, name: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *given: (asked.append(given[3]), chosen)[1])
    dialog.set_kind(kind)
    before = dialog.path.text()
    button(dialog, "Browse…").click()
    assert (asked, dialog.path.text()) == ([filters], before if name is None else name)
    dialog.reject()
