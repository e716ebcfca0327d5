"""Random commands to the engine: mostly such as a window would send, sometimes such as nobody should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from engine.errors import InputError
from engine.spec.codec import uniform
from engine.spec.condition import Breakpoint, TokenSpan
from engine.spec.grid import SweepMode, SweepText
from engine.spec.model import CaptureLevel, PagedAttentionName
from engine.wire import breakpoints, commands, devices, exporting, measurements, serving
from engine.wire.message import Command
from engine.wire.records import SequenceAdded
from engine.wire.tree import Node, PlannedPart, PlannedStep
from tests.benchmarks.arguments import TEXTS, Arguments

RUNNER_NAMES: tuple[Any, ...] = ("auto", "transformers", "fused", "graph", "fast")
Extent = Literal["all", "newest", "fixed"]


@dataclass
class Chance(Arguments):
    """Draws commands: mostly such as a window would send, sometimes such as nobody should."""

    def command(self) -> Command:
        """One command; arguments that a message refuses by itself are drawn again."""
        while True:
            makers = list(self.makers())
            make = self.random.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]
            try:
                return make()
            except InputError:
                continue

    def makers(self) -> list[tuple[Callable[[], Command], float]]:
        chance = self.random
        return [
            (lambda: commands.SubmitPrompt(self.prompt(), self.often(0.25), self.number(0, 2)), 8),
            (lambda: commands.Step(self.number(1, 4)), 22),
            (lambda: commands.Run(None if self.often(0.3) else self.number(1, 20), self.until()), 4),
            (commands.NextPhase, 9),
            (commands.Pause, 1),
            (commands.Cancel, 1),
            (lambda: commands.Force(self.sequence, self.token_ids(6)), 5),
            (lambda: commands.ForceText(self.sequence, chance.choice(TEXTS)), 1),
            (lambda: commands.GoTo(self.step), 7),
            (self.branch, 3),
            (lambda: commands.DeleteBranch(self.step), 1),
            (lambda: commands.MakeEdit(self.edit()), 4),
            (commands.UndoEdit, 1.5),
            (lambda: commands.SetKeptLimit(self.number(0, 10**6)), 0.5),
            (commands.RedoEdit, 1),
            (lambda: commands.Fork(self.sequence, None if self.often(0.5) else self.step), 4),
            (lambda: commands.JoinBranches((self.step, self.step)), 1),
            (lambda: commands.StopSequence(self.sequence), 1.5),
            (lambda: commands.RemoveSequence(self.sequence), 1),
            (lambda: commands.SetCache(self.cache()), 6),
            (lambda: commands.SetSampling(self.sampling(), None if self.often(0.2) else self.sequence), 3),
            (lambda: commands.TakePicture(self.picture()), 26),
            (self.watch, 4),
            (self.pace, 1),
            (self.stops, 1),
            (self.attention, 1),
            (lambda: commands.Tokenize(chance.choice(TEXTS)), 1),
            (self.export, 1.5),
            (lambda: exporting.EstimateExport(self.export()), 0.5),
            (lambda: measurements.WhatIf(self.sequence, self.cache()), 2),
            (lambda: measurements.CheckParity(self.sequence, None if self.often(0.7) else self.cache()), 3),
            (self.damage, 0.7),
            (
                lambda: measurements.MeasureRegret(self.sequence, self.cache(), self.number(4, 20)),
                0.7,
            ),
            (self.sweep, 0.15),
            (self.bench, 0.1),
            (lambda: commands.StartComparison(self.sequence, self.opponent()), 1),
            (commands.EndComparison, 0.7),
            (self.redo, 0.5),
            (commands.FindModels, 0.2),
            (lambda: commands.ListFolder(chance.choice(("", "/", "/no/such/folder"))), 0.2),
            (lambda: serving.TakePrefixTree(words=chance.choice(("", *TEXTS))), 0.5),
            (lambda: serving.ExplainPrefix(chance.choice(TEXTS), chance.choice((None, self.token_ids(9)))), 0.5),
            (
                lambda: serving.AttachServer(serving.ServerSpec("tcp://127.0.0.1:9")),
                0.2,
            ),  # the window's, not the engine's
            (lambda: serving.DetachServer("tcp://127.0.0.1:9"), 0.2),
            (lambda: serving.RecordServer("tcp://127.0.0.1:9", self.random.choice((None, self.folder / "x"))), 0.2),
            (devices.FindDevices, 0.2),
            (
                lambda: devices.ForecastLoad(
                    self.spec(), self.cache(), None if self.often(0.5) else self.number(1, 99)
                ),
                0.3,
            ),
            (devices.UnloadModel, 0.1),
            (self.model, 0.4 if self.has_model else 30),
            (lambda: commands.ChooseRunner(chance.choice(RUNNER_NAMES)), 1),
            (lambda: commands.ChoosePagedAttention(chance.choice(get_args(PagedAttentionName))), 0.7),
            (lambda: commands.SetCapture(chance.choice(get_args(CaptureLevel)), self.often(0.3)), 0.7),
            (lambda: commands.PreviewPrompt(self.prompt(), None if self.often(0.4) else self.sequence), 0.7),
            (lambda: commands.OpenSnapshot(self.written()), 0.6),
            (lambda: commands.Continue(self.spec()), 12 if self.is_file_open else 0.3),
            (lambda: commands.CloseSnapshot(self.spec()), 4 if self.is_file_open else 0.3),
        ]

    def branch(self) -> Command:
        """Mostly what a click sends: one other token from a step."""
        step = None if self.often(0.2) else self.step
        if self.often(0.6):
            return commands.BeginBranch(self.sequence, step, token_ids=self.token_ids(3))
        text = self.random.choice(TEXTS) if self.often(0.5) else ""
        return commands.BeginBranch(
            self.sequence, step, text=text, sampling=self.sampling() if self.often(0.6) else None
        )

    def watch(self) -> Command:
        """None to four pictures, at times one of them twice."""
        extents: tuple[Extent, ...] = ("all", "newest", "fixed")
        count = self.random.randint(0, 4)
        watched = [
            commands.Watched(self.picture(), self.random.choice(extents), 10**6 + self.number(0, 9))
            for _ in range(count)
        ]
        return commands.Watch((*watched, *watched[: self.often(0.1)]))

    def pace(self) -> Command:
        """Mostly without a limit: a run at a slow pace lasts until it is paused."""
        slow = self.odd_pace() if self.often(0.15) else None
        return commands.SetPace(
            self.random.choice((None, 300.0, 1e6, slow)), self.random.choice((None, 25.0, self.odd_pace()))
        )

    def stops(self) -> Command:
        """Breakpoints, few of which hold often: otherwise every run would end at once."""
        ids = range(self.random.choice((0, 0, 1, 2, 3, 70)))
        return breakpoints.SetBreakpoints(
            tuple(Breakpoint(number, self.condition(), self.often(0.5)) for number in ids)
        )

    def attention(self) -> Command:
        places = tuple(
            breakpoints.AttentionPlace(self.step, self.sequence, self.number(1, 40))
            for _ in range(self.random.randint(0, 3))
        )
        return breakpoints.MeasureAttention(places, (TokenSpan(newest=4), TokenSpan(2, 7))[: self.random.randint(0, 2)])

    def damage(self) -> Command:
        codec = uniform(self.random.choice(("exact", "fp8", "int8", "kivi-4", "kivi-2")))
        budget = None if self.often(0.7) else self.number(1000, 100_000)
        return measurements.MapDamage(self.sequence, codec, self.number(1, 64), budget)

    def redo(self) -> Command:
        """A plan to replay, as after a restart; mostly refused, since there is a session already."""
        ids, cache, seq_id = self.token_ids(6), self.cache(), self.number(0, 2)
        part = PlannedPart(seq_id, 0, self.number(1, len(ids)), self.number(3, self.vocab - 1), False, None)
        added = SequenceAdded(seq_id, ids, self.sampling())
        node = Node(0, None, (added,), cache, PlannedStep(0, cache, (part,), ()))
        return commands.Redo((node,) if self.often(0.7) else (), self.step if self.often(0.2) else 0, (added,))

    def bench(self) -> Command:
        modes = tuple((f"mode {n}", self.cache()) for n in range(self.random.randint(0, 2)))
        return measurements.Bench(modes, (self.number(1, 20),), self.number(1, 3), (self.number(1, 2),))

    def sweep(self) -> Command:
        modes = tuple(SweepMode(f"mode {n}", self.cache()) for n in range(self.random.randint(0, 2)))
        text = SweepText("text", self.prompt(), self.random.choice(("greedy", "given", "recall")))
        return measurements.Sweep((text,), self.number(1, 4), modes)

    def model(self) -> Command:
        return commands.LoadModel(self.spec(), self.cache())
