"""Closes the window at a random moment of whatever it does, with the engine in a process of its own: it must end.

    python -m tests.benchmarks.closings --closings 200 --seed 7 [--short]

Each window starts, comes to one of the moments below, goes on for a random time, and is closed: by its title bar, by
*Quit*, by SIGTERM or by Ctrl+C. It must end with exit status 0; no process of it may be left, no half-written or
temporary file, no traceback and no complaint of Qt; an export is there whole or not at all. How long each took to end
is printed, and the longest at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.files.atomic import PART_SUFFIX

if TYPE_CHECKING:
    from app.main import Program

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = ("start", "load", "prefill", "decode", "run", "export", "bench", "sweep", "tokenising", "engine restart")
WAYS = ("close", "quit", "SIGTERM", "SIGINT")
LONGEST_S = {"start": 0.6, "load": 3.0, "export": 0.1, "decode": 0.05}  # after the moment began; else a second
HANGS_S = 300.0  # a window that has not ended after so long, from its start, hangs
GONE_WITHIN_S = 30.0  # an engine that lost its window ends by itself
LONG_TEXT = ("Once upon a time there was a little dragon. " * 25_000)[:1_000_000]
COMPLAINTS = ("Traceback", "QThread", "Destroyed while", "Fatal", "Segmentation")


@dataclass(frozen=True)
class Closing:
    """How one window ended: what was wrong, and the seconds from its closing to its end."""

    moment: str
    way: str
    problems: tuple[str, ...]
    seconds: float


def close_at(moment: str, way: str, seed: int) -> Closing:
    """Start a window, have it close itself, and look at what is left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        environment = os.environ | {
            "QT_QPA_PLATFORM": "offscreen", "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder / "tmp"), "HOME": str(folder),
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.benchmarks.closings", "--window", str(folder), moment, way, str(seed)]
        window = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, error = window.communicate(timeout=HANGS_S)
        except subprocess.TimeoutExpired:
            window.kill()
            out, error = window.communicate()
            return Closing(moment, way, (f"it hangs: {out} {error[-500:]}",), HANGS_S)
        ended = time.time()
        told = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
        problems = [] if window.returncode == 0 else [f"exit status {window.returncode}"]
        problems += [line for line in error.splitlines() if any(words in line for words in COMPLAINTS)]
        if "closing" not in told:
            problems.append(f"it never came to the moment: {out} {error[-500:]}")
        problems += [f"process {pid} is left" for pid in map(int, told.get("engines", "").split()) if not _ends(pid)]
        problems += [f"{path.name} is left" for path in folder.rglob("*") if _is_stray(path, folder)]
        if (exported := folder / "out.safetensors").exists():
            with safe_open(exported, framework="np") as file:
                problems += [] if file.metadata()["format"] == "kvloupe-snapshot" else ["the export is none"]
        return Closing(moment, way, tuple(problems), ended - float(told.get("closing", ended)))


def _ends(pid: int) -> bool:
    """Whether a process is gone, or goes within `GONE_WITHIN_S`."""
    end = time.monotonic() + GONE_WITHIN_S
    while psutil.pid_exists(pid) and time.monotonic() < end:
        if "engine.client.child" not in " ".join(_command_of(pid)):
            return True  # another process has its number by now
        time.sleep(0.05)
    return not psutil.pid_exists(pid)


def _command_of(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _is_stray(path: Path, folder: Path) -> bool:
    in_tmp = folder / "tmp" in path.parents and path.is_file()
    return in_tmp or PART_SUFFIX in path.name or ".running." in path.name


def closings(cases: list[tuple[str, str]], seed: int, say: Callable[[str], None] = lambda _: None) -> list[Closing]:
    """One window for each moment and way."""
    chance, found = random.Random(seed), []
    for number, (moment, way) in enumerate(cases):
        one = close_at(moment, way, chance.randrange(2**31))
        found.append(one)
        told = "; ".join(one.problems) or "fine"
        say(f"{number + 1:>4} {moment:<15} {way:<8} {one.seconds:>6.2f} s to the end  {told}")
    return found


# ---- the window -----------------------------------------------------------------------------------------------------


def run_window(folder: Path, moment: str, way: str, seed: int) -> int:
    """The child process: a window that closes itself at a moment."""
    import app.main
    from app.start.arguments import parse

    arguments = parse(
        ["--settings", str(folder / "settings.ini"), "--sessions", str(folder / "sessions"), "--engine", "process"]
    )
    opened = app.main.Program.open

    def open_and_close(program: Program) -> None:
        program._closer = _closer(program, folder, moment, way, random.Random(seed))  # type: ignore[attr-defined]
        opened(program)

    app.main.Program.open = open_and_close  # type: ignore[method-assign]
    return app.main.run(arguments)


def _closer(program: Program, folder: Path, moment: str, way: str, chance: random.Random) -> object:
    from PySide6.QtCore import QTimer

    from engine.spec.cache import cache_preset
    from engine.spec.grid import SweepMode, SweepText
    from engine.spec.sampling import Prompt, SamplingParams
    from engine.wire.exporting import Export
    from engine.wire.measurements import Bench, Sweep

    shell, models = program.shell, program.shell.models
    wait_ms = int(1000 * chance.uniform(0, LONGEST_S.get(moment, 1.0)))
    modes = {name: cache_preset(name).spec for name in ("growing", "int8", "h2o")}
    state = {"at": "waiting"}

    def end() -> None:
        engines = [child.pid for child in psutil.Process().children(recursive=True)]
        sys.stdout.write(f"engines {' '.join(map(str, engines))}\nclosing {time.time()}\n")
        sys.stdout.flush()
        if way == "close":
            shell.window.close()
        elif way == "quit":
            shell.actions["quit"].trigger()
        else:
            os.kill(os.getpid(), getattr(signal, way))

    def begin() -> None:
        """Begin what is interrupted, once a model is there."""
        post, sampling = shell.intents._sender.post, SamplingParams()
        match moment:
            case "prefill":
                shell.intents.on_prompt_submitted(tuple(range(5, 1000)), sampling)
            case "tokenising":
                shell.intents.on_prompt_submitted(LONG_TEXT, sampling)
            case "engine restart":
                shell.engine_wanted.emit("")
            case "decode":
                shell.intents.on_step()
            case "run":
                shell.intents.on_run_to(None)
            case "export":
                post(Export(folder / "out.safetensors", 0))
            case "bench":
                post(Bench(tuple(modes.items()), (256,), 64, (1,)))
            case "sweep":
                text = SweepText("text", Prompt(token_ids=tuple(range(5, 200))))
                post(Sweep((text,), 32, tuple(SweepMode(*each) for each in modes.items())))

    def look() -> None:
        if state["at"] == "waiting":
            has_come = moment == "start" or models.status.is_loading
            if moment not in ("start", "load"):
                has_come = models.status.now.model is not None and not models.status.now.work
            if has_come:
                state["at"] = "sent" if moment in ("start", "load", "prefill", "tokenising") else "reading"
                if moment in ("start", "load"):
                    timer.stop()
                    QTimer.singleShot(wait_ms, end)
                elif state["at"] == "reading":
                    shell.intents.on_prompt_submitted("Once upon a time", SamplingParams(max_new_tokens=None))
        if state["at"] == "reading" and len(models.timeline):
            state["at"] = "sent"
        if state["at"] == "sent" and moment not in ("start", "load"):
            timer.stop()
            begin()
            QTimer.singleShot(wait_ms, end)

    timer = QTimer(program)
    timer.timeout.connect(look)
    timer.start(2)
    return timer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--closings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="one closing at each moment")
    parser.add_argument("--window", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.window is not None:
        folder, moment, way, seed = arguments.window
        return run_window(Path(folder), moment, way, int(seed))
    count = len(MOMENTS) if arguments.short else arguments.closings
    chance = random.Random(arguments.seed)
    cases = [(MOMENTS[number % len(MOMENTS)], chance.choice(WAYS)) for number in range(count)]
    found = closings(cases, arguments.seed, print)
    num_bad = sum(bool(one.problems) for one in found)
    print(f"{len(found)} closings, {num_bad} with problems; the longest took {max(one.seconds for one in found):.2f} s")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
