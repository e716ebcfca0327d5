"""From process start to the first painted window, and to the first token; over the bare libraries in one run.

The bare window is PySide6 and pyqtgraph with one image in one plot; the bare import is torch, transformers and the
class that loads a model, and beside it the class of the bundled model itself, which any program has to import. Every
start is a process of its own, whose clock begins before it does; processor time is that of all its threads, user and
system, and says more than wall time where the machine has other work; that of an engine in a process of its own, which
starts beside the window, is not in it. The longest wait is between two beats of a 4 ms
timer in the window, from its first paint until the model is there: a typed key waits as long.

    python tests/benchmarks/start.py [--short]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE_END_S = 1.5
STARTS_PER_CASE = {"painted": 11, "token": 5}

TELL = """
import json, os, sys, time
def tell(**more):
    now = time.monotonic()
    print(json.dumps({"at": now, "cpu": time.process_time(), **more}), flush=True)
    os._exit(0)
"""

BARE_WINDOW = (
    TELL
    + """
import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QMainWindow

class Plot(pg.PlotWidget):
    def paintEvent(self, event):
        super().paintEvent(event)
        QTimer.singleShot(0, tell)

app = QApplication([])
plot = Plot()
plot.addItem(pg.ImageItem(np.random.default_rng(0).integers(0, 255, (64, 256), dtype=np.uint8)))
window = QMainWindow()
window.setCentralWidget(plot)
window.resize(1600, 1000)
window.show()
app.exec()
"""
)

# The program's own entry point; the listener is added where the window's modules are imported.
OURS = (
    TELL
    + """
sys.argv = ["kvloupe", "--settings", sys.argv[1]]
sys.path.insert(0, ".")
import app.entry as entry

looked = entry.library_problem
def look(environment):
    import app.main
    class Listening(app.main.Program):
        def __init__(self, *args):
            super().__init__(*args)
            listen(self)
    app.main.Program = Listening
    return looked(environment)
entry.library_problem = look
"""
)

PAINTED = (
    OURS
    + """
def listen(program):
    program._has_started = True  # what follows the first paint does not; the engine is starting beside it
    program.shell.window.first_painted.connect(tell)
entry.run_program()
"""
)

FIRST_TOKEN = (
    OURS
    + """
def listen(program):
    from PySide6.QtCore import QObject, QTimer, Qt
    shell, beats = program.shell, []
    class Heart(QObject):
        pass
    heart = Heart(program)
    timer = QTimer(heart)
    timer.setTimerType(Qt.TimerType.PreciseTimer)
    timer.timeout.connect(lambda: beats.append(time.monotonic()))
    shell.window.first_painted.connect(lambda: timer.start(4))
    def on_status(old, new):
        if new.model is not None and (old is None or old.model is None):
            timer.stop()
            shell.window.prompt.edit.set_text("Once upon a time")
            shell.window.prompt.submit()
    def on_record(*_):
        tell(stall=max(b - a for a, b in zip(beats, beats[1:])))
    shell.models.status.changed.connect(on_status)
    shell.models.timeline.appended.connect(on_record)
entry.run_program()
"""
)

MODEL_IMPORT = (
    TELL
    + """
import torch, transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM
tell()
"""
)

BARE_IMPORT = (
    TELL
    + """
import torch, transformers
from transformers import AutoModelForCausalLM
tell()
"""
)


def started(code: str, folder: str) -> dict[str, float]:
    """Wall and processor seconds from before the child is started until it reports."""
    environment = {**os.environ, "QT_QPA_PLATFORM": _platform(), "USE_HUB_KERNELS": "0", "HF_HUB_OFFLINE": "1"}
    # Compiled modules are kept as usual: otherwise every start would compile our sources, and only ours.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-c", code, str(Path(folder) / "settings.json")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if not child.stdout.strip():
        raise SystemExit(f"a start told nothing:\n{child.stderr[-2000:]}")
    told = json.loads(child.stdout.strip().splitlines()[-1])
    time.sleep(ENGINE_END_S)  # an engine ends by itself when its window is gone
    return {"wall": told["at"] - began, "cpu": told["cpu"], "stall": told.get("stall", 0.0)}


def _platform() -> str:
    """The display if there is one."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return os.environ.get("QT_QPA_PLATFORM", "" if has_display else "offscreen")


def pairs_of(bare: str, ours: str, count: int, folder: str) -> list[tuple[dict[str, float], dict[str, float]]]:
    """A B, B A, …; one of each before as warm-up."""
    started(bare, folder), started(ours, folder)
    pairs = []
    for number in range(count):
        order = (bare, ours) if number % 2 == 0 else (ours, bare)
        one, two = started(order[0], folder), started(order[1], folder)
        pairs.append((one, two) if number % 2 == 0 else (two, one))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return pairs


def row(name: str, pairs: list[tuple[dict[str, float], dict[str, float]]], key: str) -> str:
    ratios = [ours[key] / bare[key] for bare, ours in pairs]
    sys.path.insert(0, str(ROOT))
    from tests.benchmarks.protocol import note_ratios  # not in the processes that are measured

    note_ratios(name, "s", [bare[key] for bare, _ in pairs], [ours[key] for _, ours in pairs])
    middle: Callable[[int], float] = lambda index: statistics.median(pair[index][key] for pair in pairs)  # noqa: E731
    return (
        f"{name:<48}{middle(0):>8.2f}{middle(1):>8.2f}  s{statistics.median(ratios):>8.2f}x"
        f"  ({min(ratios):.2f} … {max(ratios):.2f}, {len(pairs)} pairs)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=tuple(STARTS_PER_CASE))
    args = parser.parse_args()
    print(f"{'process start to …':<48}{'bare':>8}{'ours':>8}{'ratio':>11}   platform {_platform() or 'display'}")
    with tempfile.TemporaryDirectory() as folder:
        for case, bare, ours in (("painted", BARE_WINDOW, PAINTED), ("token", BARE_IMPORT, FIRST_TOKEN)):
            if args.only not in (None, case):
                continue
            count = 3 if args.short else STARTS_PER_CASE[case]
            pairs = pairs_of(bare, ours, count, folder)
            name = "first painted window" if case == "painted" else "first token (bare: torch, transformers)"
            print(row(f"{name}, wall", pairs, "wall"))
            print(row(f"{name}, processor", pairs, "cpu"), flush=True)
            if case == "token":
                stalls = [ours["stall"] * 1e3 for _, ours in pairs]
                print(f"longest wait of a key until the model is there: {statistics.median(stalls):.0f} ms", end="")
                print(f"  ({min(stalls):.0f} … {max(stalls):.0f})")
                pairs = pairs_of(MODEL_IMPORT, ours, count, folder)
                print(row("the same over the model's own class, wall", pairs, "wall"))
                print(row("the same over the model's own class, processor", pairs, "cpu"))


if __name__ == "__main__":
    main()
