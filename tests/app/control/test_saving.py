"""What the window would lose is in a journal as soon as it is told, and what a killed window left is offered."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.control import saving as saving_module
from app.control.recovering import Recovering
from app.shell import Shell
from app.start.arguments import parse
from engine.saved.document import read_session
from engine.saved.folder import JournalFolder
from engine.saved.journal import JournalFile
from engine.saved.session import SavedSession, entries_of, spec_of
from engine.spec.chat import Chat, Turn
from engine.spec.stops import Stop
from engine.wire.commands import Continue, OpenSnapshot
from engine.wire.events import BranchDeleted, Failed, Restarted, SessionOpened, StateChanged, WentTo
from engine.wire.status import OpenedFile
from engine.wire.stopping import SetStops
from tests.app import samples
from tests.app.conftest import take_steps, turn
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def folder(tmp_path: Path) -> JournalFolder:
    return JournalFolder(tmp_path / "sessions")


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
    running.intents.on_stops_changed((Stop(1, "entropy > 2"),))
    assert written(folder).stops == ("entropy > 2",), "a kill before the first step would lose it"
    running.controller.saving.set_draft("a")
    running.intents.on_stops_changed((Stop(1, "entropy > 2"), Stop(2, 'token = " cat"', is_enabled=False)))
    texts = written(folder).stops
    assert texts == ("entropy > 2", '# token = " cat"')
    stops = running.models.stops.stops
    running.intents.on_stops_changed((Stop(1, "step = 40"),))
    assert engine.status is not None
    engine.emit(SessionOpened("", engine.status.sampling, stops=(*texts, "entropy >> 2")))
    turn(running)
    assert running.models.stops.stops == stops
    assert engine.sent[-1] == SetStops(stops)
    assert written(folder).stops == texts
    assert running.models.status.notice == "A stop of this session cannot be read and is left out: entropy >> 2"
    engine.emit(SessionOpened("", engine.status.sampling))
    turn(running)
    assert running.models.stops.stops == stops, "a session without stops takes none away"


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
        saving.pause()
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
    saving, recorder = running.controller.saving, running.controller.saving._recorder
    counted: list[int] = []
    session = recorder.session
    monkeypatch.setattr(recorder, "session", lambda: counted.append(1) or session())
    take_steps(running, engine, 20)
    assert counted == [], "nobody asked for a journal"
    (tmp_path / "file").write_text("")
    saving.begin_in(JournalFolder(tmp_path / "file" / "sessions"), "")
    take_steps(running, engine, 20)
    assert len(counted) == 1, "it failed, and is not tried again at once"


def left_by_another(folder: JournalFolder, session_of: Shell) -> Path:
    """A journal whose window was killed: its lock is gone with it, and nothing was ended."""
    saving = session_of.controller.saving
    saving.begin_in(folder, "")
    saving.set_draft("a fox in the")
    assert saving._file is not None
    path = saving._file.path
    saving._file.close()
    saving._folder = saving._file = None
    return path


@pytest.fixture
def recovering(running: Shell, folder: JournalFolder) -> Recovering:
    left_by_another(folder, running)
    found = Recovering(folder, running.models, running.controller, "", running)
    found.draft_found.connect(running.take_draft)
    running.window.recovery.accepted.connect(found.on_accepted)
    running.window.recovery.dismissed.connect(found.on_dismissed)
    return found


def test_what_was_left_is_offered_and_taken_up(
    running: Shell, engine: FakeEngine, folder: JournalFolder, recovering: Recovering, qtbot: QtBot
) -> None:
    (path,) = folder.left()
    bar = running.window.recovery
    running.controller.saving.begin_in(folder, "a fox in the")
    assert not bar.isVisible()
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    assert bar.isVisible()
    assert "ended without being closed · Tales · 21 steps" in bar.accessibleName()
    bar.accepted.emit()
    assert not bar.isVisible()
    assert running.window.prompt.edit.text() == "a fox in the"
    assert engine.sent[-1] == OpenSnapshot(path)
    assert folder.left() == []  # it is claimed
    live = engine.status
    file = OpenedFile(path, 100, "Tiny", 21, "", "", "", "", has_rows=False)
    engine.status = replace(live, opened=file)
    engine.emit(Restarted(), StateChanged(engine.status))
    turn(running)
    assert Continue(live.model and spec_of(live.model), may_open_files=True) in engine.sent
    assert folder.ended() == []
    engine.status = live
    engine.loaded()
    engine.emit(samples.step_record(0))
    turn(running)
    assert folder.ended() == []  # not all of it is there yet: a kill now loses nothing
    engine.emit(SessionOpened("a fox in the", live.sampling, reply_to=3))
    turn(running)
    assert [node.step for node in read_session(next(folder.folder.glob("*.running.*"))).session.nodes] == [0]
    assert folder.ended() == [path.with_name(path.name.replace(".running", ""))]


def test_stops_that_were_set_without_a_step_are_offered_and_come_back(
    shell: Shell, engine: FakeEngine, folder: JournalFolder, qtbot: QtBot
) -> None:
    saving = shell.controller.saving
    saving.begin_in(folder, "")
    shell.intents.on_stops_changed((Stop(1, "entropy > 2"),))
    assert saving._file is not None
    saving._file.close()
    saving._folder = saving._file = None
    shell.intents.on_stops_changed(())
    found = Recovering(folder, shell.models, shell.controller, "", shell)
    shell.window.recovery.accepted.connect(found.on_accepted)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    assert shell.window.recovery.accessibleName().endswith("ended without being closed: 1 stop for runs")
    shell.window.recovery.accepted.emit()
    assert shell.models.stops.stops == (Stop(1, "entropy > 2"),)
    assert folder.left() == []


def test_a_session_of_this_program_may_read_the_files_that_its_edits_name(
    running: Shell, engine: FakeEngine, folder: JournalFolder, tmp_path: Path
) -> None:
    running.intents.sessions_folder = folder.folder
    folder.folder.mkdir(parents=True, exist_ok=True)
    live = engine.status
    assert live is not None
    for path, may_open_files in ((folder.folder / "session.jsonl", True), (tmp_path / "theirs.jsonl", False)):
        file = OpenedFile(path, 100, "Tiny", 21, "", "", "", "", has_rows=False)
        engine.status = replace(live, opened=file)
        engine.emit(Restarted(), StateChanged(engine.status))
        turn(running)
        engine.sent.clear()
        running.intents.on_continued()
        (command,) = engine.of(Continue)
        assert command.may_open_files is may_open_files


def test_another_window_may_have_it_already(
    running: Shell, engine: FakeEngine, folder: JournalFolder, recovering: Recovering, qtbot: QtBot
) -> None:
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    (path,) = folder.left()
    with folder.claim(path):
        engine.sent.clear()
        running.window.recovery.accepted.emit()
    assert running.models.status.failure == "Another window has taken up this session already: go on there."
    assert engine.sent == []


def test_the_session_of_an_open_window_is_not_opened(
    running: Shell, engine: FakeEngine, folder: JournalFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    saving = running.controller.saving
    saving.begin_in(folder, "")
    saving.set_draft("a")
    (path,) = folder.folder.iterdir()
    engine.sent.clear()
    running.window.file_dropped.emit(path)
    words = f"'{path}' is the session of a window that is open: go on there, or save it there as a file."
    assert running.models.status.failure == words
    assert engine.sent == []
    with pytest.raises(SystemExit):
        parse([str(path)])
    assert words in capsys.readouterr().err
    saving.end()
    (path,) = folder.ended()
    running.window.file_dropped.emit(path)
    assert engine.sent[-1] == OpenSnapshot(path)


def test_not_now_keeps_it(running: Shell, folder: JournalFolder, recovering: Recovering, qtbot: QtBot) -> None:
    before = read_session(folder.left()[0]).session
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    running.window.recovery.dismissed.emit()
    assert not running.window.recovery.isVisible()
    assert folder.left() == []
    assert read_session(folder.ended()[0]).session == before


def test_a_file_that_is_none_is_kept_and_not_offered(running: Shell, folder: JournalFolder) -> None:
    folder.folder.mkdir()
    (folder.folder / "session x.running.jsonl").write_bytes(b"what is this")
    found = Recovering(folder, running.models, running.controller, "", running)
    found._look()
    assert running.models.recovery.offered is None
    assert [path.read_bytes() for path in folder.ended()] == [b"what is this"]
    assert running.models.status.notice == "A session that was not closed cannot be read: it is kept as session x.jsonl"


def test_of_several_the_newest_is_offered_the_others_are_kept_and_what_nobody_would_miss_is_gone(
    running: Shell, folder: JournalFolder
) -> None:
    contents = ("old", "", "mine", "new", "oldest")
    found = Recovering(folder, running.models, running.controller, "mine", running)
    paths = {
        draft: draft_left_in(folder, draft, used)
        for draft, used in zip(contents, (200, 500, 400, 300, 100), strict=True)
    }
    found._look()
    offered = running.models.recovery.offered
    assert offered is not None
    assert (offered.path, offered.session.draft, offered.written) == (paths["new"], "new", 300.0)
    assert folder.left() == [paths["new"]]
    assert [read_session(path).session.draft for path in folder.ended()] == ["old", "oldest"]
    with folder.claim(paths["new"]):
        found.on_accepted()
    assert running.models.status.failure == "Another window has taken up this session already: go on there."
    assert running.models.recovery.offered is None
    assert folder.left() == [paths["new"]]


def draft_left_in(folder: JournalFolder, draft: str, used: float) -> Path:
    """A journal of a window that is gone, written so many seconds after the epoch."""
    file = folder.new()
    file.append(*entries_of(SavedSession(draft=draft)))
    file.close()
    os.utime(file.path, (used, used))
    return file.path


def test_one_that_cannot_be_opened_is_offered_again_and_this_window_goes_on_writing(
    running: Shell, engine: FakeEngine, folder: JournalFolder, recovering: Recovering, qtbot: QtBot
) -> None:
    (path,) = folder.left()
    running.controller.saving.begin_in(folder, "")
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    running.window.recovery.accepted.emit()
    engine.emit(Failed("it is damaged", reply_to=engine.id_of(OpenSnapshot)))
    turn(running)
    assert running.window.recovery.isVisible()
    assert folder.left() == [path]
    engine.emit(samples.step_record(700))
    turn(running)
    (own,) = (each for each in folder.folder.iterdir() if each != path)
    assert 700 in [node.step for node in read_session(own).session.nodes]


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


def test_a_conversation_that_was_typed_is_offered_and_comes_back(
    shell: Shell, engine: FakeEngine, folder: JournalFolder, qtbot: QtBot
) -> None:
    chat, saving = Chat((Turn("user", "a fox"),)), shell.controller.saving
    saving.begin_in(folder, "")
    saving.set_draft_chat(chat)
    assert saving._file is not None
    saving._file.close()
    saving._folder = saving._file = None
    found, taken = Recovering(folder, shell.models, shell.controller, "", shell), list[object]()
    found.chat_found.connect(taken.append)
    shell.window.recovery.accepted.connect(found.on_accepted)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    shell.window.recovery.accepted.emit()
    assert taken == [chat]
    assert folder.left() == []
