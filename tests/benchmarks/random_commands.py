"""Random commands to a real engine thread with tiny models: it must answer or refuse each once, and stay consistent.

Every command that there is, with sensible and with bad arguments, in bursts and while it runs. A refusal is one plain
sentence; the thread lives; and whenever it rests, the page pools, the sequences and the journal agree with each other.
Steps of lossless modes agree with the model without a cache.

    python -m tests.benchmarks.random_commands --seed 3 --commands 10000
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from engine.client.thread import ThreadClient
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire import commands
from engine.wire.comparison import ComparedStep, ComparisonScanned
from engine.wire.events import Cancelled, Done, Event, Failed, StateChanged, Tokenized
from engine.wire.measurements import ParityReport, WhatIf
from engine.wire.message import Command
from engine.wire.pages import KEPT
from engine.wire.status import EngineStatus
from tests.benchmarks.chance import Chance
from tests.engine.tiny import config_dict

ARCHITECTURES = ("llama", "mistral", "gpt2", "gemma2", "lfm2", "deepseek_v3")
DEMO = Path(__file__).resolve().parents[2] / "resources" / "demo_model"
PATIENCE_S = 120.0
LONGEST_RUN_S = 2.0
MODEL_EVERY = 400  # commands, at the latest


def write_models(folder: Path) -> dict[str, str]:
    """Shape-only sources by architecture; the first has a tokenizer beside its config."""
    sources = {}
    for name in ARCHITECTURES:
        place = folder / name
        place.mkdir()
        changes: dict[str, Any] = {}
        if name == "llama":
            shutil.copy(DEMO / "tokenizer.json", place)
            shutil.copy(DEMO / "tokenizer_config.json", place)
            changes = {"vocab_size": 4096}
        (place / "config.json").write_text(json.dumps({**config_dict(name), **changes}, default=str), "utf-8")
        sources[name] = f"shape:{place / 'config.json'}"
    return sources


@dataclass
class Story:
    """What was sent and what came back, for a report."""

    seed: int
    commands: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    parities: Counter[str] = field(default_factory=Counter)
    latest: list[Command] = field(default_factory=list)

    def fault(self, what: str) -> AssertionError:
        told = "\n".join(f"  {command!r}"[:400] for command in self.latest)
        return AssertionError(f"seed {self.seed}, after {self.commands.total()} commands: {what}\n{told}")


class Engine:
    """A loop in its own thread, and the events that it sends."""

    def __init__(self, source: str, story: Story) -> None:
        self.loop = ThreadClient()
        self.story = story
        self.status: EngineStatus | None = None
        self._barrier = 10**9
        self._sent: dict[int | None, Command] = {}  # by id, from 1 on
        self._open: set[int | None] = set()  # ids of those without their last word
        self.loop.send(commands.LoadModel(ModelSpec(source, device="cpu", num_threads=1), CacheSpec("growing")))
        self._wait(lambda event: isinstance(event, StateChanged) and event.status.model is not None)

    def send(self, command: Command) -> None:
        self.story.commands[type(command).__name__] += 1
        self.story.latest = [*self.story.latest[-25:], command]
        number = len(self._sent) + 1
        self._sent[number] = command
        self._open.add(number)
        self.loop.send(structs.replace(command, id=number))

    def wait_until_idle(self, is_paused: bool) -> None:
        """Wait until all commands are answered and no run is going. A run that does not end by itself is paused: a
        cache with a window is never full."""
        began = time.monotonic()
        if is_paused:
            self.loop.send(commands.Pause())
        self._answered()
        while self.status is not None and self.status.running:
            if time.monotonic() > began + LONGEST_RUN_S:
                self.loop.send(commands.Pause())
            self._answered()
        if silent := [self._sent[number] for number in self._open if not isinstance(self._sent[number], WhatIf)]:
            raise self.story.fault(f"no last word for {silent}")  # a trial goes on while the engine is idle

    def _answered(self) -> None:
        """Wait until every command sent so far is answered."""
        self._barrier += 1
        time.sleep(0.001)
        self.loop.send(commands.Tokenize("", id=self._barrier))
        self._wait(lambda event: isinstance(event, Tokenized | Failed) and event.reply_to == self._barrier)

    def _wait(self, is_it: Callable[[Event], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            events = self.loop.drain()
            for event in events:
                self._take(event)
            if any(map(is_it, events)):
                return
            if not self.loop._thread.is_alive():
                raise self.story.fault("the engine's thread has died")
            time.sleep(0.0005)
        raise self.story.fault("no answer")

    def _take(self, event: Event) -> None:
        asked = self._sent.get(event.reply_to)
        if asked is not None and is_last_word(asked, event):
            if event.reply_to not in self._open:
                raise self.story.fault(f"{asked} has two last words, and the second is {event}")
            self._open.remove(event.reply_to)
        match event:
            case StateChanged(status):
                self.status = status
            case Failed(message):
                what = "nothing that was sent" if asked is None else type(asked).__name__
                self.story.refusals[what] += 1
                if "Something unexpected" in message:
                    raise self.story.fault(f"{what}: {message}")
                if "\n" in message or not message or not message.rstrip().endswith((".", "?")):
                    raise self.story.fault(f"{what} is refused with what is no sentence: {message!r}")
            case ParityReport():
                self.story.parities[event.verdict] += 1
                if event.verdict == "departs":
                    raise self.story.fault(f"{event.cache} departs: {event}")

    def check(self) -> None:
        """Check that all owners of state agree, while the thread waits."""
        session = self.loop._loop.workspace.session
        if session is None:
            if self.status is None or (self.status.opened is None and self.status.model is not None):
                raise self.story.fault("there is neither a session nor an opened file, and no model was let go")
            return
        status, problems = self.status, []
        if status is None or status.sequences != session.sequences or status.step != session.last_step:
            problems.append(f"the status is not the session's: {status} {session.sequences}")
        for group in session.live.mode.store.groups if session.live.mode.store is not None else ():
            caches = [table.seq_id for table in group.tables if table.seq_id != KEPT]
            if sorted(caches) != sorted(session.live.ids):
                problems.append(f"tables of {caches}, sequences {session.live.ids}")
            group.pool.check(group.tables)
        history = session.history
        if history.path.steps != list(history.tree.path(history.last_step)):
            problems.append(f"the path {history.path.steps} is not {history.tree.path(history.last_step)}")
        if any(entry.node.step >= history.next_step for entry in history.tree):
            problems.append(f"step {history.next_step} is there before it is done")
        if any(state.step not in history.tree for state in session.kept):
            problems.append("a moment is kept that is not in the tree")
        if status is not None and status.pending != tuple(history.changes):
            problems.append(f"the status says that {status.pending} was done since, and it was {history.changes}")
        for live in session.live:
            seq_id, sequence, cache = live.seq_id, live.sequence, live.cache
            if not live.is_stale and cache.num_tokens != sequence.num_tokens:
                problems.append(f"sequence {seq_id}: {sequence.num_tokens} tokens, {cache.num_tokens} in its cache")
            if not 0 <= sequence.num_tokens <= len(sequence.token_ids):
                problems.append(f"sequence {seq_id}: {sequence.num_tokens} of {len(sequence.token_ids)} tokens")
            if sequence.has_work and cache.capacity is not None and len(sequence.token_ids) > cache.capacity:
                problems.append(f"sequence {seq_id}: {len(sequence.token_ids)} tokens for {cache.capacity} places")
        for log in (session.history.attention, session.history.logits):
            if log.num_bytes != sum(part.nbytes for entry in log._entries.values() for part in entry.values()):
                problems.append("a log counts its bytes wrongly")
        if problems:
            raise self.story.fault("; ".join(problems))


def is_last_word(asked: Command, event: Event) -> bool:
    is_answer = asked.facts.answers == "one" and not isinstance(event, ComparedStep | ComparisonScanned)
    return is_answer or isinstance(event, Done | Cancelled | Failed)


def play(seed: int, num_commands: int, report_every: int | None = None) -> Story:
    """Send random commands in bursts, checking between them; raises with the last commands where something is wrong."""
    story, chance, told = Story(seed), random.Random(seed), 0
    due = MODEL_EVERY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "link.safetensors").symlink_to(folder / "a.safetensors")
        makes = Chance(chance, write_models(folder), folder)
        engine = Engine(makes.sources[chance.choice(ARCHITECTURES)], story)
        while story.commands.total() < num_commands:
            makes.status = engine.status
            if story.commands.total() >= due:
                due += MODEL_EVERY
                source = makes.sources[chance.choice(ARCHITECTURES)]
                engine.send(commands.LoadModel(ModelSpec(source, device="cpu", num_threads=1), CacheSpec("growing")))
            for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
                engine.send(makes.command())
            engine.wait_until_idle(chance.random() < 0.15)
            if engine.status is None or engine.status.opened is None:
                engine.check()
            if report_every and story.commands.total() >= told + report_every:
                told = story.commands.total()
                print(f"{told:,} commands, {story.refusals.total():,} refused", flush=True)
        if not engine.loop.close(20.0):
            raise story.fault("the thread does not end")
    return story


def main() -> None:
    parser = argparse.ArgumentParser(description="random commands to a real engine with tiny models")
    parser.add_argument("--commands", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    story = play(arguments.seed, arguments.commands, report_every=1000)
    took = time.perf_counter() - began
    print(f"seed {story.seed}: {story.commands.total():,} commands in {took:.0f} s, no fault")
    for name, count in sorted(story.commands.items()):
        print(f"  {name:<16} {count:>6}  refused {story.refusals[name]:>5}")
    print(f"  verdicts of parity: {dict(story.parities)}")


if __name__ == "__main__":
    main()
