"""Sessions that a killed window left behind are offered in the window, opened, or kept as files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.control.recovering import Recovering
from app.shell import Shell
from app.start.arguments import parse
from engine.saved.document import read_session
from engine.saved.journal import JournalFolder
from engine.saved.session import SavedSession, entries_of, spec_of
from engine.spec.condition import Breakpoint
from engine.spec.sampling import Chat, Turn
from engine.wire.commands import Continue, OpenSnapshot
from engine.wire.events import Failed, Restarted, SessionOpened, StateChanged
from engine.wire.status import OpenedFile
from engine.wire.tree import Node
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def left_by_another(folder: JournalFolder, session_of: Shell) -> Path:
    """A journal whose window was killed: its lock is gone with it, and nothing was ended."""
    return left_in(folder, replace(session_of.controller.saving.session, draft="a fox in the"), 1000.0)


def left_in(folder: JournalFolder, session: SavedSession, used: float) -> Path:
    """A journal of a window that is gone, written so many seconds after the epoch."""
    file = folder.new()
    file.append(*entries_of(session))
    file.close()
    os.utime(file.path, (used, used))
    return file.path


@pytest.fixture
def recovering(running: Shell, folder: JournalFolder) -> Recovering:
    left_by_another(folder, running)
    found = Recovering(folder, running.models, running.controller, "", running)
    found.draft_found.connect(running.window.prompt.take_draft)
    found.draft_found_again.connect(running.take_draft)
    running.window.recovery.accepted.connect(found.on_accepted)
    running.window.recovery.dismissed.connect(found.on_dismissed)
    return found


def test_what_was_left_is_offered_and_taken_up(
    running: Shell, engine: FakeEngine, folder: JournalFolder, recovering: Recovering, qtbot: QtBot
) -> None:
    (path,) = folder.left()
    bar = running.window.recovery
    running.controller.saving.begin_in(folder, running.window.prompt.draft)  # nobody has typed in this window
    running.window.prompt.edit.edited.emit()  # the pause after the text was put in may end only now
    assert not bar.isVisible()
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    assert bar.isVisible()
    assert "ended without being closed · Tales · steps 0–20" in bar.accessibleName()
    bar.accepted.emit()
    assert not bar.isVisible()
    assert running.window.prompt.edit.text() == "a fox in the"
    assert engine.sent[-1] == OpenSnapshot(path, is_here=True)
    assert folder.left() == []  # it is claimed
    live = engine.status
    file = OpenedFile(path, 100, "Tiny", 21, "", "", "", "", has_rows=False)
    engine.status = replace(live, opened=file)
    engine.emit(Restarted(), StateChanged(engine.status))
    turn(running)
    assert Continue(live.model and spec_of(live.model), may_open_files=True) in engine.sent
    assert not running.window.opened.isVisible(), "nobody has opened a file to look at it"
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


def test_what_is_typed_while_a_session_is_taken_up_is_in_its_file_at_once_and_stays(
    running: Shell, engine: FakeEngine, folder: JournalFolder, recovering: Recovering, qtbot: QtBot
) -> None:
    """A kill meanwhile leaves the session with what was typed; and its draft of before does not come over it at the
    end. A line that the former window had no time to write whole is in the way of nothing."""
    (path,) = folder.left()
    with path.open("ab") as torn:
        torn.write(b'5f0a11c3 {"draft": "a fox in the w')
    edit, saving = running.window.prompt.edit, running.controller.saving
    saving.begin_in(folder, "")
    with qtbot.waitSignal(running.models.recovery.changed):
        recovering.look()
    running.window.recovery.accepted.emit()
    edit.set_text("a fox in the snow")
    edit.edited.emit()
    saving.set_draft_chat(Chat((Turn("user", "a cat"),)))
    left = read_session(path)
    assert (left.session.draft, left.session.draft_chat) == ("a fox in the snow", Chat((Turn("user", "a cat"),)))
    assert [node.step for node in left.session.nodes] == [*range(21)]
    assert left.problem == ""
    live = engine.status
    engine.status = replace(live, opened=OpenedFile(path, 100, "Tiny", 21, "", "", "", "", has_rows=False))
    engine.emit(Restarted(), StateChanged(engine.status))
    turn(running)
    engine.status = live
    engine.loaded()
    edit.set_text("a fox in the night")  # the pause in typing comes later
    engine.emit(samples.step_record(0), SessionOpened("a fox in the", live.sampling, reply_to=3))
    turn(running)
    assert edit.text() == "a fox in the night"


def test_a_draft_alone_is_in_a_file_before_the_one_that_had_it_is_gone(
    shell: Shell, folder: JournalFolder, qtbot: QtBot
) -> None:
    written = SavedSession(draft="a fox", draft_chat=Chat((Turn("user", "a cat"),)))
    path = left_in(folder, written, 1000.0)
    shell.controller.saving.begin_in(folder, "")
    found = Recovering(folder, shell.models, shell.controller, "", shell)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    found.on_accepted()
    (own,) = folder.folder.iterdir()
    assert own != path
    session = read_session(own).session
    assert (session.draft, session.draft_chat) == (written.draft, written.draft_chat)


def test_a_session_that_is_taken_up_while_a_model_is_loaded_is_said_to_come(
    shell: Shell, engine: FakeEngine, folder: JournalFolder, qtbot: QtBot
) -> None:
    """From the click on *Restore* until the replay begins, nothing else would tell that it was heard."""
    left_in(folder, SavedSession(nodes=(Node.of(samples.step_record(0)),)), 1000.0)
    found = Recovering(folder, shell.models, shell.controller, "", shell)
    shell.window.recovery.accepted.connect(found.on_accepted)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    shell.window.recovery.accepted.emit()
    turn(shell)
    assert shell.window.status.note.text() == "The session without a prompt is restored as soon as the model is loaded"
    assert isinstance(engine.sent[-1], OpenSnapshot)


def test_stops_that_were_set_without_a_step_are_offered_and_come_back(
    shell: Shell, engine: FakeEngine, folder: JournalFolder, qtbot: QtBot
) -> None:
    shell.intents.on_breakpoints_changed((Breakpoint(1, "entropy > 2"),))
    left_in(folder, replace(shell.controller.saving.session, draft=""), 1000.0)
    shell.intents.on_breakpoints_changed(())
    found = Recovering(folder, shell.models, shell.controller, "", shell)
    shell.window.recovery.accepted.connect(found.on_accepted)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    assert shell.window.recovery.accessibleName().endswith("ended without being closed: 1 breakpoint")
    shell.window.recovery.accepted.emit()
    assert shell.models.breakpoints.listed == (Breakpoint(1, "entropy > 2"),)
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
    assert engine.of(OpenSnapshot) == []
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


def test_a_file_that_is_none_is_kept_and_not_offered(running: Shell, folder: JournalFolder, qtbot: QtBot) -> None:
    folder.folder.mkdir()
    (folder.folder / "session x.running.jsonl").write_bytes(b"what is this")
    found = Recovering(folder, running.models, running.controller, "", running)
    found.look()
    words = "A session that was not closed cannot be read: it is kept as session x.jsonl"
    qtbot.waitUntil(lambda: running.models.status.notice == words)
    assert running.models.recovery.offered is None
    assert [path.read_bytes() for path in folder.ended()] == [b"what is this"]


def test_of_several_the_newest_is_offered_the_others_are_kept_and_what_nobody_would_miss_is_gone(
    running: Shell, folder: JournalFolder, qtbot: QtBot
) -> None:
    contents = ("old", "", "mine", "new", "oldest")
    found = Recovering(folder, running.models, running.controller, "mine", running)
    paths = {
        draft: left_in(folder, SavedSession(draft=draft), used)
        for draft, used in zip(contents, (200, 500, 400, 300, 100), strict=True)
    }
    found.look()
    qtbot.waitUntil(lambda: running.models.recovery.offered is not None and len(folder.ended()) == 2)
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


def test_a_conversation_that_was_typed_is_offered_and_comes_back(
    shell: Shell, engine: FakeEngine, folder: JournalFolder, qtbot: QtBot
) -> None:
    chat = Chat((Turn("user", "a fox"),))
    left_in(folder, SavedSession(draft_chat=chat), 1000.0)
    found, taken = Recovering(folder, shell.models, shell.controller, "", shell), list[object]()
    found.chat_found.connect(taken.append)
    shell.window.recovery.accepted.connect(found.on_accepted)
    with qtbot.waitSignal(shell.models.recovery.changed):
        found.look()
    shell.window.recovery.accepted.emit()
    assert taken == [chat]
    assert folder.left() == []
