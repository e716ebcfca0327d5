"""The tour on an engine that answers at once: its script, moment by moment, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app import tour as module
from app.shell import Shell
from app.start.arguments import parse
from app.tour import Tour
from engine.spec.model import BUNDLED_NAME
from engine.wire.commands import Continue, Fork, Run, SetCache, SubmitPrompt, TakePicture, Tokenize, Watch
from engine.wire.events import Failed, ForkMade, Restarted, StateChanged
from engine.wire.exporting import Export, Exported
from engine.wire.message import Command
from engine.wire.status import OpenedFile, Work
from tests.app import samples
from tests.app.conftest import new_shell, sweep, turn
from tests.app.control.story import told
from tests.app.fake_engine import FakeEngine
from tests.approve import approve

APPROVED = Path(__file__).parent / "approved"
FILE = OpenedFile(Path("/a/b.safetensors"), 3 << 20, BUNDLED_NAME, 21, "", "", "2026-01-02", "kvloupe 1")


class TourEngine(FakeEngine):
    """One that also changes its cache, adds sequences, exports and goes on from a file."""

    def respond(self, command: Command) -> None:
        match command:
            case SetCache(cache):
                self.status = replace(self.status, cache=cache)
                self.emit(StateChanged(self.status))
            case SubmitPrompt(alone=False) | Fork():
                number = len(self.status.sequences)
                one = replace(self.status.sequences[0], seq_id=number)
                self.status = replace(self.status, sequences=(*self.status.sequences, one))
                made = ForkMade(number, 0, self.live, 4, "copied", reply_to=command.id)
                self.emit(made, StateChanged(self.status))
            case Export(path=path):
                path.write_bytes(b"rows")
                self.emit(Exported(path, 4, 1.0, reply_to=command.id))
            case Continue():
                self.status = replace(self.status, opened=None)
                self.emit(StateChanged(self.status))
            case _:
                super().respond(command)

    def tell(self) -> None:
        others = self.status.sequences[1:] if self.num_computed[self.live] > 1 else ()
        super().tell()
        self.status = replace(self.status, sequences=(*self.status.sequences, *others))
        self.emit(StateChanged(self.status))


class Driven:
    """A tour whose timer never rings: it is polled by hand, and what it does is noted."""

    def __init__(self, shell: Shell, engine: FakeEngine, *argv: str) -> None:
        self.shell, self.engine = shell, engine
        self.arguments = parse(list(argv))
        self.folder = str(self.arguments.tour)
        self.tour = Tour(shell, self.arguments, shell)
        self.tour.prepare()
        self.tour.start()
        self.lines: list[str] = []

    def poll(self, times: int = 400) -> None:
        """Until it ends, with what is waited for, what was sent and what each picture shows."""
        before: Any = None
        for _ in range(times):
            self.tour.poll()
            until = self.tour.until
            if until is not before and until is not None:
                self.lines.append(f"waits for {until.what}, {until.patience_s:g} s at most")
            before = until
            sent = [one for one in self.engine.sent if not isinstance(one, Watch | TakePicture | Tokenize)]
            self.engine.sent.clear()
            self.lines += [f"  sends {told(one)}".replace(self.folder, "FOLDER")[:160] for one in sent]
            if until is None:
                return
            turn(self.shell, 1)

    def look(self, name: str) -> None:
        now = self.shell.models.selection.now
        tabs = [
            key for key in ("pages", "sequences") if not self.shell.window.docks.docks[key].visibleRegion().isEmpty()
        ]
        chosen = self.shell.window.pages.choice
        self.lines.append(f"  picture {name}: {told(now)} {tabs} {chosen}")


@pytest.fixture
def engine() -> FakeEngine:
    return TourEngine()


@pytest.fixture
def driven(
    qapp: QApplication, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Driven]]:
    shell = new_shell(qapp, engine, (900, 700))
    monkeypatch.setattr(module, "POLL_MS", 1 << 30)

    def drive(*argv: str) -> Driven:
        made = Driven(shell, engine, "--tour", str(tmp_path / "deep" / "t"), "--size", "1100x720", *argv)
        monkeypatch.setattr(module, "save_picture", lambda _, path: made.look(path.name))
        return made

    yield drive
    sweep(shell)


def test_the_script_is_as_approved(
    driven: Callable[..., Driven], engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tour = driven("--cache", "paged+h2o", "--steps", "9")
    engine.status = replace(engine.status, cache=tour.arguments.cache, work=Work("Loading", 1, 2))
    engine.loaded()
    turn(tour.shell, 1)
    tour.poll(5)
    assert tour.tour.until is not None
    assert tour.tour.until.what == "the model to load"
    engine.status = replace(engine.status, work=None)
    engine.loaded()
    turn(tour.shell, 1)
    assert tour.tour.exit_status == 1, "it has not ended"
    tour.poll()
    folder = tmp_path / "deep" / "t"
    tour.lines = [line.replace(str(folder), "FOLDER") for line in tour.lines]
    said = capsys.readouterr().out.replace(str(folder), "FOLDER")
    tour.lines += [f"says {said!r}", f"exit status {tour.tour.exit_status}"]
    tour.lines += sorted(path.name for path in folder.iterdir())
    size = tour.shell.window.size()
    approve(APPROVED / "tour.txt", [*tour.lines, f"window {size.width()} × {size.height()}"])
    assert not tour.shell.window.isVisible()


def test_the_script_of_a_file_is_as_approved(driven: Callable[..., Driven], engine: FakeEngine, tmp_path: Path) -> None:
    """Its steps are looked at, and its model goes on; no session is saved of what a file has."""
    (tmp_path / "b.safetensors").touch()
    tour = driven(str(tmp_path / "b.safetensors"), "--steps", "2")
    engine.emit(Restarted(), *map(samples.step_record, range(5)))
    engine.status = replace(
        engine.status, opened=FILE, sequences=(replace(samples.status(4, num_tokens=8)).sequences), step=4
    )
    engine.loaded()
    turn(tour.shell, 2)
    tour.poll()
    left = sorted(path.name for path in Path(tour.folder).iterdir())
    approve(APPROVED / "tour_of_a_file.txt", [*tour.lines, f"exit status {tour.tour.exit_status}", *left])


@pytest.mark.parametrize(("steps", "one_by_one", "runs"), [(3, 3, []), (4, 3, [Run(1)])])
def test_few_steps_are_taken_one_by_one_and_an_exact_cache_shrinks_not(
    driven: Callable[..., Driven], engine: FakeEngine, steps: int, one_by_one: int, runs: list[Run]
) -> None:
    tour = driven("--steps", str(steps))
    engine.loaded()
    turn(tour.shell, 1)
    tour.poll()
    names = "".join(line.split()[1][2:-5] for line in tour.lines if line.startswith("  picture"))
    running = "-running" if runs else ""
    assert names == f"-ready-prompt-keys-values-change-another-head{running}-ran-looking-back"
    assert tour.lines.count("  sends Step()") == one_by_one
    assert [line for line in tour.lines if "Run(" in line] == [f"  sends {told(run)}" for run in runs]


def test_a_failure_ends_it_with_one_line(
    driven: Callable[..., Driven],
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tour = driven()
    engine.loaded()
    engine.emit(Failed("It cannot be."))
    turn(tour.shell, 1)
    tour.poll()
    assert (tour.tour.exit_status, tour.shell.window.isVisible()) == (2, False)
    assert capsys.readouterr().err == "kvloupe: It cannot be.\n"


def test_what_never_comes_is_waited_for_as_long_as_was_said(
    driven: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    tour = driven()
    for now, status in ((5.0, 1), (905.0, 1), (905.1, 2)):  # it waits since the first look
        clock[0] = now
        tour.tour.poll()
        assert tour.tour.exit_status == status, now
    assert capsys.readouterr().err == "kvloupe: Waited too long for the model to load.\n"


@pytest.mark.parametrize("problem", ["The disk is full.", ""])
def test_a_picture_that_cannot_be_written_ends_it(
    driven: Callable[..., Driven], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    tour = driven()
    monkeypatch.setattr(module, "save_picture", lambda *_: problem)
    engine.loaded()
    turn(tour.shell, 2)
    tour.tour.poll()
    turn(tour.shell, 1)
    tour.tour.poll()
    turn(tour.shell, 1)
    tour.tour.poll()
    assert (tour.tour.exit_status, tour.shell.window.isVisible()) == ((2, False) if problem else (1, True))


def test_a_folder_that_cannot_be_made_is_said(shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a file").touch()
    tour = Tour(shell, parse(["--tour", str(tmp_path / "a file" / "t")]), shell)
    tour.start()
    assert (tour.exit_status, shell.window.isVisible()) == (2, False)
    said = f"kvloupe: The folder {tmp_path}/a file/t cannot be made (Not a directory): give another one.\n"
    assert capsys.readouterr().err == said
