"""Kills a window or its engine while it runs, edits and takes notes: the next start must offer all that was shown.

    python -m tests.benchmarks.session_kills --kills 100 --seed 7 [--short]

A window runs offscreen and does what a person does, at random: prompts, steps, runs, going back, other tokens, edits,
names, drafts. Whatever its models show is told on its standard output. It, or its engine, is killed (SIGKILL) at a
random moment. The next start must offer each moment with the tokens that were shown, the draft, the names, bookmarks
and notes; it takes the session up, which its model does once more, and goes on from there until it is killed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0  # processor seconds that a window and its engine may take to start; they need some 10
MOST_S = 900.0  # seconds of wall time that the start may take on a busy machine
LONGEST_LIFE_S = 4.0  # seconds until the kill, from when the window began to work


@dataclass
class Shown:
    """What was acknowledged: the tokens that each moment computed and chose, the draft, the names of branches, and
    notes by their places (empty for a mere bookmark)."""

    moments: dict[int, Any] = field(default_factory=dict)
    draft: str = ""
    names: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    renaming: dict[str, str] = field(default_factory=dict)  # new names not shown yet: they may be offered
    is_replaced: bool = False  # another session was begun, and is not shown yet: it may be offered

    def take(self, told: dict[str, Any]) -> None:
        match told["what"]:
            case "sending":
                self.is_replaced = True
            case "restarted":
                self.is_replaced = False
                self.moments.clear()
                self.names.clear()
                self.notes.clear()
            case "moment":
                self.is_replaced = self.is_replaced and bool(self.moments)
                self.moments[told["step"]] = told["parts"]
            case "gone":
                for step in told["steps"]:
                    self.moments.pop(step, None)
            case "draft":
                self.draft = told["text"]
            case "names":
                self.names = told["names"]
                self.renaming.clear()
            case "renaming":
                self.renaming[told["first"]] = told["name"]
            case "notes":
                self.notes = told["notes"]

    def is_told_by(self, offered: dict[str, Any]) -> None:
        """Take over the one of two possible sessions that was offered: it must be offered from now on."""
        self.is_replaced = False
        self.moments = {int(step): parts for step, parts in offered.get("moments", {}).items()}
        self.names, self.notes = offered.get("names", {}), offered.get("notes", {})

    def missing_in(self, offered: dict[str, Any]) -> list[str]:
        """Everything that was shown and is not offered, in words."""
        words = ["the draft"] if self.draft and offered["draft"] != self.draft else []
        if self.is_replaced:
            return words
        moments = {int(step): parts for step, parts in offered["moments"].items()}
        words += [f"moment {step}" for step, parts in self.moments.items() if moments.get(step) != parts]
        for first, name in self.names.items():
            if (there := offered["names"].get(first)) != name and (there is None or there != self.renaming.get(first)):
                words.append(f"the name {name!r} of branch {first}, which is {there!r} there")
        words += [f"the note on {place}" for place, text in self.notes.items() if offered["notes"].get(place) != text]
        return words


class Window:
    """A window in a process of its own, and the lines that it prints."""

    def __init__(self, folder: Path, seed: int) -> None:
        environment = os.environ | {"QT_QPA_PLATFORM": "offscreen", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "tests.benchmarks.session_kills", "--window", str(folder), "--seed", str(seed)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.told.put(json.loads(line))

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self.told.get(timeout=max(0.001, timeout_s))
        except queue.Empty:
            return None

    @property
    def processor_s(self) -> float:
        """Processor seconds of the window and its engine so far."""
        if self.process.poll() is not None:
            return PATIENCE_S
        try:
            process = psutil.Process(self.process.pid)
            times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        except psutil.NoSuchProcess:  # one of them just ended
            return 0.0
        return sum(each.user + each.system for each in times)

    def kill(self) -> list[dict[str, Any]]:
        """Kill the window; return the lines that were not read yet."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        rest = []
        while not self.told.empty():
            rest.append(self.told.get())
        return rest


@dataclass
class Tally:
    """How the kills ended."""

    fates: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    num_steps: int = 0
    num_notes: int = 0


def kills(count: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Tally:
    """So many kills, one after the other, each of a window that took up what the one before left."""
    chance, tally, shown = random.Random(seed), Tally(), Shown()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(count + 1):
            window, known = Window(folder, chance.randrange(2**31)), len(tally.problems)
            try:
                is_last = number == count
                _live(window, chance, tally, shown, is_first=number == 0, is_last=is_last)
            finally:
                for told in window.kill():
                    shown.take(told)
            error = window.process.stderr.read().decode() if window.process.stderr is not None else ""
            if "Traceback" in error:
                tally.problems.append(f"kill {number}: {error.strip().splitlines()[-1]}")
            say(f"{number}: {len(shown.moments)} moments, {len(shown.notes)} notes; {dict(tally.fates)}")
            for problem in tally.problems[known:]:
                say(f"{number}: {problem}")
    return tally


def _live(window: Window, chance: random.Random, tally: Tally, shown: Shown, *, is_first: bool, is_last: bool) -> None:
    """Run one window: compare what it offers at its start, and kill it at a random moment."""
    end = time.monotonic() + MOST_S
    state = "it said nothing"
    dies_early = chance.random() < 0.15  # killed while the session is being replayed
    while time.monotonic() < end and window.processor_s < PATIENCE_S:
        told = window.next(1.0)
        if told is None:
            continue
        if told["what"] == "offered":
            tally.num_steps += len(shown.moments)
            tally.num_notes += len(shown.notes)
            if missing := shown.missing_in(told):
                tally.problems.append(f"not offered: {', '.join(missing)}")
            if shown.is_replaced:
                shown.is_told_by(told)
            if is_last:
                return
            if dies_early:
                time.sleep(chance.random() * 3)
                tally.fates["a window that was taking a session up"] += 1
                return
        elif told["what"] == "nothing is offered":
            was_there = shown.moments and not shown.is_replaced
            if not is_first and (was_there or shown.draft not in ("", told["draft"])):
                tally.problems.append(
                    f"nothing was offered of {len(shown.moments)} moments and the draft {shown.draft!r}; "
                    f"the editor has {told['draft']!r}"
                )
            if shown.is_replaced:
                shown.is_told_by(told)
            if is_last:
                return
        elif told["what"] == "problem":
            tally.problems.append(told["words"])
        elif told["what"] == "waits":
            state = told["words"]
        elif told["what"] == "works":
            if told["imported"]:
                tally.problems.append(f"a window beside its engine imported {told['imported']}")
            _work(window, chance, tally, shown)
            return
        else:
            shown.take(told)
    tally.problems.append(f"a window did not get to work in {window.processor_s:.0f} s of processor time: {state}")


def _work(window: Window, chance: random.Random, tally: Tally, shown: Shown) -> None:
    """Let the window work for a while; maybe kill its engine meanwhile."""
    end = time.monotonic() + chance.uniform(0.05, LONGEST_LIFE_S)
    engine_dies = time.monotonic() + chance.uniform(0.1, LONGEST_LIFE_S) if chance.random() < 0.4 else None
    if engine_dies is not None:
        end += LONGEST_LIFE_S
    while (left := end - time.monotonic()) > 0:
        if (told := window.next(min(left, 0.02))) is not None:
            if told["what"] == "problem":
                tally.problems.append(told["words"])
            shown.take(told)
        if engine_dies is not None and time.monotonic() > engine_dies:
            engine_dies = None
            for child in _children(window.process.pid):
                os.kill(child, signal.SIGKILL)
                tally.fates["an engine"] += 1
    tally.fates["a window at work"] += 1


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


# ---- the window -----------------------------------------------------------------------------------------------------


def run_window(folder: Path, seed: int) -> int:
    """The child process: a window in which a random person takes up the offered session and works."""
    import app.main
    from app.start.arguments import parse
    from engine.saved.journal import JournalFolder
    from tests.benchmarks.session_person import Person

    arguments = parse(
        ["--settings", str(folder / "settings.ini"), "--sessions", str(folder / "sessions"), "--engine", "process"]
    )
    opened = app.main.Program.open

    def open_with_person(program: app.main.Program) -> None:
        program._person = Person(program.shell, seed, JournalFolder(folder / "sessions"))  # type: ignore[attr-defined]
        opened(program)

    app.main.Program.open = open_with_person  # type: ignore[method-assign]
    return app.main.run(arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="6 kills")
    parser.add_argument("--window", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.window is not None:
        return run_window(arguments.window, arguments.seed)
    tally = kills(6 if arguments.short else arguments.kills, arguments.seed, print)
    for fate, count in sorted(tally.fates.items()):
        print(f"{count:>6,}  {fate}")
    for problem in tally.problems:
        print(problem)
    print(f"{tally.num_steps:,} moments and {tally.num_notes:,} notes were looked for, {len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
