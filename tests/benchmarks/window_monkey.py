"""Random actions in the whole program on a real engine with tiny models: nothing breaks, and nothing is left over.

    python -m tests.benchmarks.window_monkey --actions 100000 --seed 7 [--short] [--engine process]

Every action of the menus and the palette, every command that a window may send, sometimes such as nobody should,
selections, prompts, modes and models, in bursts and while the engine works; dialogs that open are accepted or closed,
and whoever asks for a file is given one, none, or one that is no good. After every 25 actions what must hold is
checked; every 1,000 the window is brought to rest, and its widgets, timers, threads and handles are counted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from msgspec import structs
from PySide6.QtWidgets import QApplication

from engine.errors import InputError
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.model import ModelSpec
from engine.wire import commands
from tests.benchmarks.chance import Chance
from tests.benchmarks.live_program import PROMPT, Census, LiveProgram, nobody_waits
from tests.benchmarks.random_commands import write_models

NOT_TRIED = {"quit", "view.full"}  # the first ends the test, the second needs a window manager
SLOW = ("theme.", "layout.", "engine.", "measure.bench", "measure.sweep")  # mostly left out: the same each time
# What the window alone sends, because it keeps account of the answers.
OWN = (commands.Watch, commands.TakePicture, commands.Redo, commands.Tokenize, commands.PreviewPrompt)
CHECKED_EVERY, COUNTED_EVERY, LATEST = 25, 1000, 40


@dataclass
class Monkey:
    """Acts at random in a program; `done` counts what it did by name, and `latest` are the last actions."""

    live: LiveProgram
    makes: Chance
    done: Counter[str] = field(default_factory=Counter)
    latest: list[str] = field(default_factory=list)

    def act(self) -> None:
        """One random action; now and then the window gets time to live, mostly it gets none."""
        chance = self.makes.random
        self.makes.status = self.live.models.status.now
        kinds: list[tuple[Callable[[], str], float]] = [
            (self._trigger, 60), (self._select, 14), (self._command, 10), (self._answer_dialog, 12), (self._write, 3),
            (self._choose_cache, 3), (self._choose_model, 0.3),
        ]  # fmt: skip
        kind = chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        name = kind()
        self.done[name] += 1
        self.latest = [*self.latest[-LATEST:], name]
        if chance.random() < 0.3:
            self.live.live(chance.choice((0.001, 0.005, 0.02)))

    def _trigger(self) -> str:
        chance, actions = self.makes.random, self.live.shell.actions
        names = sorted(set(actions.names()) - NOT_TRIED)
        name = chance.choice(names)
        while name.startswith(SLOW) and chance.random() < 0.97:
            name = chance.choice(names)
        actions[name].trigger()  # a disabled action does nothing
        return name

    def _select(self) -> str:
        """What a click in a picture selects."""
        chance, models = self.makes.random, self.live.models
        model, history = models.status.now.model, models.history
        steps = [node.step for node in history.nodes() if node.step in models.timeline.nodes]
        wanted: dict[str, int | None] = {}
        if steps and chance.random() < 0.5:
            wanted["step"] = None if chance.random() < 0.4 else chance.choice(steps)
        if chance.random() < 0.5:
            count = models.timeline.num_tokens(models.selection.now.seq_id, wanted.get("step"))
            wanted["position"] = chance.randrange(count) if count else None
        if model is not None and model.geometry.attention_layers and chance.random() < 0.5:
            layer = chance.choice(model.geometry.attention_layers)
            wanted |= {"layer": layer.index, "kv_head": chance.randrange(layer.num_kv_heads)}
        models.selection.update(**wanted)
        return "a selection"

    def _command(self) -> str:
        command = self.makes.command()
        while isinstance(command, (*OWN, commands.Shutdown)):
            command = self.makes.command()
        self.live.shell.intents._sender.post(structs.replace(command, id=0))
        return f"command {type(command).__name__}"

    def _answer_dialog(self) -> str:
        chance, open_ones = self.makes.random, self.live.dialogs()
        if not open_ones:
            return "no dialog"
        dialog = chance.choice(open_ones)
        name = type(dialog).__name__
        if chance.random() < 0.6:
            dialog.accept()
            return f"{name} accepted"
        dialog.reject()
        return f"{name} closed"

    def _write(self) -> str:
        prompt = self.live.window.prompt
        prompt.edit.set_text(self.makes.random.choice((PROMPT, "a", "", "1 2 3", "random tokens: 9", "\N{DRAGON}" * 9)))
        return "a prompt is written"

    def _choose_cache(self) -> str:
        spec = None
        while spec is None:
            with suppress(InputError):  # sizes that no mode has
                spec = self.makes.cache()
        self.live.window.top.cache.choose(spec)
        return f"cache {cache_label(spec)}"

    def _choose_model(self) -> str:
        self.live.shell.intents.on_model_chosen(self.makes.spec())
        return "another model"

    def path(self) -> str:
        """What a dialog of the system answers: nothing, a file that was written here, or any other."""
        roll = self.makes.random.random()
        if roll < 0.4:
            return ""
        return str(self.makes.written() if roll < 0.7 else self.makes.folder / f"session{int(roll * 100)}.json")


@dataclass(frozen=True)
class Outcome:
    """What was done, and what the window held at rest: before, and after every so many actions."""

    done: Counter[str]
    counts: list[Census]


def play(
    app: QApplication, seed: int, num_actions: int, engine: str = "thread", say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """So many actions; raises an `AssertionError` with the last ones where something breaks or is left over."""
    chance, exact = random.Random(seed), CacheSpec("growing")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = write_models(folder)
        makes = Chance(chance, sources, folder)
        live = LiveProgram(app, folder, sources["llama"], engine)
        live.shell.models.status.folder = folder
        monkey = Monkey(live, makes)
        began = time.monotonic()

        def check(problems: list[str]) -> None:
            if problems:
                last = "\n".join(f"  {each}" for each in monkey.latest)
                raise AssertionError(f"seed {seed}, {monkey.done.total()} actions:\n{problems}\nafter\n{last}")

        def counted() -> Census:
            _return_home(live, sources["llama"])
            live.settle(exact)
            return live.census()

        try:
            with nobody_waits(monkey.path):
                counts = [_opened_everywhere(live, counted)]
                for number in range(1, num_actions + 1):
                    monkey.act()
                    check(live.faults)
                    if number % CHECKED_EVERY == 0:
                        live.until(lambda: live.models.refreshes.is_empty, "what is shown to follow")
                        check(live.problems())
                    if number % COUNTED_EVERY == 0 or number == num_actions:
                        counts.append(counted())
                        check(live.faults)
                        check(counts[-1].growth_since(counts[0]))
                        say(
                            f"{number:>9,} actions, {time.monotonic() - began:>6.0f} s, {counts[-1].num_widgets:>6,} "
                            f"widgets, {counts[-1].num_timers:>4} timers, {sum(counts[-1].threads.values()):>3} "
                            f"threads, {counts[-1].num_handles:>4} handles, {counts[-1].resident >> 20:>6,} MiB"
                        )
        finally:
            live.close()
        check(live.faults)
    return Outcome(monkey.done, counts)


def _return_home(live: LiveProgram, source: str) -> None:
    """The first model, in place of another one, of none, and of an opened file."""
    live.rest()
    status, wanted = live.models.status, ModelSpec(source, device="cpu", num_threads=1)
    if status.has_file:  # closed, the model of before is there, which may be another one
        live.post(commands.CloseSnapshot(wanted))
        live.until(lambda: not status.has_file and live.is_idle, "a file closed")
    if status.now.model is None or status.now.model.source != source:
        live.post(commands.LoadModel(wanted, CacheSpec("growing")))
        model = lambda: status.now.model is not None and status.now.model.source == source  # noqa: E731
        live.until(lambda: model() and live.is_idle, "the first model again")


def _opened_everywhere(live: LiveProgram, counted: Callable[[], Census]) -> Census:
    """What there is once every panel, menu and layout has been open: they are made when they are first needed."""
    for name in live.shell.actions.names():
        if name.startswith(("layout.", "view.", "panel.")) and name not in NOT_TRIED:
            live.shell.actions[name].trigger()
            live.live(0.002)
    for name in live.window.docks.docks:
        live.window.show_panel(name)
        live.live(0.002)
    live.window.top.model._menu.aboutToShow.emit()
    live.window.sessions.aboutToShow.emit()
    counted()
    return counted()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("thread", "process"), default="thread")
    parser.add_argument("--short", action="store_true", help="1,000 actions")
    arguments = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    app = QApplication(sys.argv[:1])
    from app.kit.theme import load_fonts

    load_fonts()
    outcome = play(app, arguments.seed, 1000 if arguments.short else arguments.actions, arguments.engine, print)
    for name, count in sorted(outcome.done.items()):
        print(f"{count:>9,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
