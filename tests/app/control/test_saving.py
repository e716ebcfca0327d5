"""Steps, drafts, stops and names are written to the journal of the session as soon as the window knows them."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from app.control import saving as saving_module
from app.shell import Shell
from engine.saved.document import read_session
from engine.saved.journal import JournalFile, JournalFolder
from engine.saved.session import SavedSession, SessionRecorder
from engine.spec.condition import Breakpoint
from engine.wire.breakpoints import SetBreakpoints
from engine.wire.events import BranchDeleted, Restarted, SessionOpened, WentTo
from tests.app import samples
from tests.app.conftest import take_steps, turn
from tests.app.fake_engine import FakeEngine


def written(folder: JournalFolder) -> SavedSession:
    """What the one journal has."""
    (path,) = folder.folder.iterdir()
    return read_session(path).session


def test_every_step_and_the_draft_are_in_the_journal_at_once(
    shell: Shell, engine: FakeEngine, folder: JournalFolder
) -> None:
    shell.controller.saving.begin_in(folder, shell.window.prompt.edit.text())
    engine.loaded()
    turn(shell)
    assert not folder.folder.exists()  # nothing was done yet
    shell.window.prompt.edit.set_text("A fox")
    shell.window.prompt.edit.edited.emit()
    assert written(folder).draft == "A fox"
    take_steps(shell, engine, 5)
    session = written(folder)
    assert session == shell.controller.saving.session
    assert [node.step for node in session.nodes] == [record.step for record in shell.models.timeline]
    assert session.live == shell.models.timeline.latest.step
    assert session.model == samples.status().model
    assert (
        session.texts[session.nodes[1].work.parts[0].token_id] == shell.models.timeline.records[1].sequences[0].texts[0]
    )
    assert folder.left() == []  # its window lives


def test_going_back_names_and_deleting_are_written(running: Shell, engine: FakeEngine, folder: JournalFolder) -> None:
    running.controller.saving.begin_in(folder, "")
    running.models.history.rename(0, "the first branch")
    assert written(folder).names == ((0, "the first branch"),)
    engine.emit(WentTo(5, "swapped", 0.1))
    turn(running)
    assert written(folder).live == 5
    engine.emit(BranchDeleted((19, 20)))
    turn(running)
    assert [node.step for node in written(folder).nodes] == list(range(19))


def test_stops_are_written_and_come_back(running: Shell, engine: FakeEngine, folder: JournalFolder) -> None:
    running.controller.saving.begin_in(folder, "")
    running.intents.on_breakpoints_changed((Breakpoint(1, "entropy > 2"),))
    assert written(folder).stops == ("entropy > 2",), "a kill before the first step would lose it"
    running.controller.saving.set_draft("a")
    running.intents.on_breakpoints_changed(
        (Breakpoint(1, "entropy > 2"), Breakpoint(2, 'token = " cat"', is_enabled=False))
    )
    texts = written(folder).stops
    assert texts == ("entropy > 2", '# token = " cat"')
    stops = running.models.breakpoints.listed
    running.intents.on_breakpoints_changed((Breakpoint(1, "step = 40"),))
    assert engine.status is not None
    engine.emit(SessionOpened("", engine.status.sampling, stops=(*texts, "entropy >> 2")))
    turn(running)
    assert running.models.breakpoints.listed == stops
    assert engine.sent[-1] == SetBreakpoints(stops)
    assert written(folder).stops == texts
    assert running.models.status.notice == "A breakpoint of this session cannot be read and is left out: entropy >> 2"
    engine.emit(SessionOpened("", engine.status.sampling))
    turn(running)
    assert running.models.breakpoints.listed == stops, "a session without stops takes none away"


def test_a_new_prompt_begins_a_file_of_its_own(running: Shell, engine: FakeEngine, folder: JournalFolder) -> None:
    saving = running.controller.saving
    saving.begin_in(folder, "")
    saving.set_draft("another")
    before = saving.session
    running.window.actions_["prompt.send"].trigger()
    turn(running)
    assert len(saving.session.nodes) == 1
    (ended,) = folder.ended()
    assert read_session(ended).session == before
    saving.end()
    assert len(folder.ended()) == 2
    assert not list(folder.folder.glob("*.running.*"))


def test_what_is_being_written_stays_in_a_file_when_another_session_begins(
    running: Shell, engine: FakeEngine, folder: JournalFolder
) -> None:
    """A kill comes between the word that another session begins and its first moment."""
    running.window.prompt.take_draft("another")  # on a slow machine the editor's pause ends in between, and tells it
    running.controller.saving.begin_in(folder, "")
    running.controller.saving.set_draft("another")
    engine.emit(Restarted())
    turn(running)
    (left,) = folder.folder.glob("*.running.*")
    assert read_session(left).session.draft == "another"
    assert not read_session(left).session.nodes


def test_what_was_typed_while_saving_rested_is_written_when_it_goes_on(shell: Shell, folder: JournalFolder) -> None:
    """Nothing else was done; what stood in the editor before is remembered elsewhere, and makes no file."""
    saving = shell.controller.saving
    saving.begin_in(folder, "Once")
    for draft, files in (("Once", 0), ("A fox", 1)):
        saving.pause(folder.folder / "left")
        saving.set_draft(draft)
        assert not folder.folder.exists()
        saving.resume()
        assert len(list(folder.folder.glob("*"))) == files
    assert written(folder).draft == "A fox"


def test_a_full_disk_is_told_once_and_the_session_lives_on(
    running: Shell, engine: FakeEngine, folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, now, line = running.controller.saving, [100.0], running.window.status
    monkeypatch.setattr(saving, "_clock", lambda: now[0])
    saving.begin_in(folder, "")
    saving.set_draft("a")
    whole = written(folder)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JournalFile, "_put", full)
    saving.set_draft("b")
    assert "(No space left on device)" in running.models.status.failure
    running.models.status.fail("")
    now[0] += saving_module.RETRY_S
    saving.set_draft("c")
    assert running.models.status.failure == ""
    assert written(folder) == whole
    assert saving.session.draft == "c"
    why = "The journal of this session cannot be written (No space left on device): a crash would lose what comes."
    line.refresh()
    assert (line.state.warnings, line.state.listed) == ("1 warning", (why,)), "the failure went, and this stays"
    monkeypatch.undo()
    monkeypatch.setattr(saving, "_clock", lambda: now[0])
    now[0] += saving_module.RETRY_S - 1
    saving.set_draft("more")
    assert written(folder) == whole, "it is not tried with every step"
    now[0] += 1
    saving.set_draft("d")
    assert written(folder) == saving.session, "all of it, what could not be written as well"
    assert running.models.status.notice == "The journal of this session is written again, all of it"
    line.refresh()
    assert line.state.listed == ()


def test_a_folder_that_cannot_be_made_is_a_sentence(running: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    running.controller.saving.begin_in(JournalFolder(tmp_path / "file" / "sessions"), "")
    running.controller.saving.set_draft("a")
    assert running.models.status.failure.startswith("The journal of this session cannot be written (Not a directory)")


def test_a_session_that_is_not_written_is_not_put_together_at_every_step(
    running: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, session = running.controller.saving, SessionRecorder.session
    counted: list[int] = []
    monkeypatch.setattr(SessionRecorder, "session", lambda recorder: counted.append(1) or session(recorder))
    take_steps(running, engine, 20)
    assert counted == [], "nobody asked for a journal"
    (tmp_path / "file").write_text("")
    saving.begin_in(JournalFolder(tmp_path / "file" / "sessions"), running.window.prompt.draft)
    running.window.prompt.edit.edited.emit()  # the pause after the text was put in may end only now
    take_steps(running, engine, 20)
    assert len(counted) == 1, "it failed, and is not tried again at once"


def test_the_session_is_saved_as_a_file(running: Shell, tmp_path: Path) -> None:
    running.save_session(tmp_path / "s.json")
    assert read_session(tmp_path / "s.json").session == running.controller.saving.session
    assert running.settings.recent_snapshots == [str(tmp_path / "s.json")]
    running.save_session(tmp_path / "missing" / "s.json")
    assert "does not exist" in running.models.status.failure
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_journal_of_many_old_drafts_gives_way_to_one_that_has_the_session_once(
    running: Shell, folder: JournalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "REWRITTEN_BYTES", 20_000)
    running.controller.saving.end()
    running.controller.saving.begin_in(folder, "")
    sizes = []
    for letter in "abcdefghij":
        running.controller.saving.set_draft(letter * 5_000)
        (path,) = folder.folder.iterdir()
        sizes.append(path.stat().st_size)
    assert any(after < before for before, after in pairwise(sizes))
    assert written(folder).draft == "j" * 5_000
    assert written(folder) == running.controller.saving.session
