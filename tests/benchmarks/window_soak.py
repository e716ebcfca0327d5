"""A long session in the whole program on a real engine with a tiny model: what it holds stays the same.

    python -m tests.benchmarks.window_soak --steps 100000 [--short] [--engine process]

Every cache mode in turn: a prompt, steps with all pictures watched, looking back, going on from a step before, an edit
undone and made again, a fork, pages and layouts. After each round through the modes the window is brought to one and
the same state, and its widgets, timers, threads, handles and resident memory are counted: a line each. At the end the
growth of the memory is told, in bytes a step over the second half of the rounds, with its standard error. The exit
status is 1 where widgets, timers, threads or handles grew, or memory did by more than its noise explains.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from PySide6.QtWidgets import QApplication

from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.edit import Rows, Scale
from engine.wire.commands import BeginBranch, Fork, GoTo, MakeEdit, RedoEdit, RemoveSequence, UndoEdit
from tests.benchmarks.live_program import Census, LiveProgram, nobody_waits
from tests.benchmarks.random_commands import write_models

HOME = CacheSpec("growing")
LAYOUTS = ("learn", "inspect", "truth")
STEPS = 24  # of one mode in one round
MODES = [
    tuned(preset.spec, group=16, residual=16) if preset.spec.codec.keys.is_kivi else preset.spec  # of 16 channels
    for preset in PRESETS.values()
    if "compiled" not in preset.name and not preset.name.startswith("transformers-")  # they need a GPU or a compiler
]  # fmt: skip
ALLOWED = 256.0  # bytes a step that count as none: Python's allocator gives memory back in arenas


@dataclass(frozen=True)
class Round:
    """What the window held after so many steps, and for how many seconds it had run."""

    num_steps: int
    seconds: float
    census: Census

    def line(self) -> str:
        now = self.census
        return (
            f"{self.num_steps:>9,} steps {self.seconds:>7.0f} s {now.num_widgets:>7,} widgets "
            f"{now.num_timers:>4} timers {sum(now.threads.values()):>3} threads "
            f"{now.num_handles:>4} handles {now.resident / 2**20:>8,.1f} MiB"
        )


@dataclass(frozen=True)
class Slope:
    """Growth of the resident memory in bytes a step, with its standard error."""

    value: float
    error: float

    @property
    def is_growth(self) -> bool:
        """Whether it is more than four standard errors, and more than `ALLOWED`."""
        return self.value > max(ALLOWED, 4 * self.error)


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """The slope of the line of least squares through points (x, y), and its standard error; infinite for fewer than
    three."""
    count = len(points)
    if count < 3:
        return Slope(0.0, math.inf)
    middle_x, middle_y = (sum(each) / count for each in zip(*points, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    value = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    rest = sum((y - middle_y - value * (x - middle_x)) ** 2 for x, y in points)
    return Slope(value, math.sqrt(rest / (count - 2) / spread))


@dataclass(frozen=True)
class Outcome:
    """The rounds, what grew, and the slope of the memory."""

    rounds: list[Round]
    grown: list[str]
    slope: Slope


def soak(
    app: QApplication, num_steps: int, engine: str = "thread", modes: Sequence[CacheSpec] = MODES,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """At least so many steps, in whole rounds through the modes, at least three; raises where anything goes wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        live = LiveProgram(app, folder, write_models(folder)["llama"], engine)
        began, done, rounds = time.monotonic(), 0, list[Round]()
        try:
            with nobody_waits(lambda: ""):
                while done < num_steps or len(rounds) < 3:
                    for number, mode in enumerate(modes):
                        live.window.arrange(LAYOUTS[number % len(LAYOUTS)])
                        done += _live_in(live, mode)
                        assert not live.faults, live.faults
                    live.settle(HOME)
                    rounds.append(Round(done, time.monotonic() - began, live.census()))
                    say(rounds[-1].line())
        finally:
            live.close()
        assert not live.faults, live.faults
    steady = rounds[len(rounds) // 2 :] if len(rounds) > 6 else rounds[1:]
    slope = slope_of([(each.num_steps, each.census.resident) for each in steady])
    return Outcome(rounds, rounds[-1].census.growth_since(rounds[0].census), slope)


def _live_in(live: LiveProgram, mode: CacheSpec) -> int:
    """What a person does in one mode; returns how many steps were done. A mode may refuse an edit or a way back."""
    models, intents = live.models, live.shell.intents
    live.settle(mode)
    seq_id = models.status.now.sequences[0].seq_id
    for count in (1, 1, STEPS // 2):
        intents.on_run_to(count)
        live.wait_until_idle("steps")
    for step in (2, 5, None):
        models.selection.update(step=step, position=3)
        live.wait_until_idle("a look back")
    for command in (
        MakeEdit(Scale(seq_id, Rows(1, 3), 0.5)), UndoEdit(), RedoEdit(), GoTo(4),
        BeginBranch(seq_id, None, token_ids=(77,)), Fork(seq_id),
    ):  # fmt: skip
        live.post(command)
        live.wait_until_idle(type(command).__name__)
    intents.on_run_to(STEPS // 2)
    live.wait_until_idle("steps of a branch")
    if len(models.status.now.sequences) > 1:
        live.post(RemoveSequence(models.status.now.sequences[-1].seq_id))
        live.wait_until_idle("a sequence less")
    models.status.fail("")
    return len(models.history)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--engine", choices=("thread", "process"), default="thread")
    parser.add_argument("--short", action="store_true", help="2,000 steps")
    arguments = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    app = QApplication(sys.argv[:1])
    outcome = soak(app, 2000 if arguments.short else arguments.steps, arguments.engine, say=print)
    for line in outcome.grown:
        print(line)
    print(f"memory: {outcome.slope.value:+,.0f} ± {outcome.slope.error:,.0f} bytes a step")
    return 1 if outcome.grown or outcome.slope.is_growth else 0


if __name__ == "__main__":
    sys.exit(main())
