"""Arguments for random commands: mostly such as a window would send, sometimes such as nobody should."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.capture import CaptureLevel
from engine.spec.codec import uniform
from engine.spec.condition import TokenSpan
from engine.spec.edit import (
    AddNoise,
    BiasLogits,
    Drop,
    Edit,
    Mask,
    Overwrite,
    Pin,
    ReplaceTokens,
    Rows,
    Scale,
    Zero,
)
from engine.spec.grid import SweepMode
from engine.spec.model import ModelSpec
from engine.spec.presets import PRESETS, cache_preset
from engine.spec.runners import PagedAttentionName
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.stops import Stop
from engine.spec.texts import SweepText
from engine.spec.tuning import tuned
from engine.wire import commands, devices, exporting, measuring, opponents, requests, stopping
from engine.wire.changes import SequenceAdded
from engine.wire.status import EngineStatus
from engine.wire.tree import Node, PlannedPart, PlannedStep

ODD_NUMBERS = (-(2**63), -7, -1, 0, 1, 2, 3, 7, 129, 4096, 10**6, 2**40)
RUNNER_NAMES: tuple[Any, ...] = ("auto", "transformers", "fused", "graph", "fast")
Extent = Literal["all", "newest", "fixed"]
TEXTS = ("Once upon a time", "\N{ZERO WIDTH SPACE}", "a" * 3000, "\x00", "日本語 العربية", "")
CONDITIONS = (
    "entropy > 4.6", "token = 7", "norm > 1.5", "pages_allocated", "pages_evicted or preempted", "nonfinite",
    "attention(0-3) > 90%", "peak_attention(last 2) > 0.99", "differs", 'text ~ "(a+)+$"', "step = 20", "tokens >= 30",
    "not (tokens > 0)", "rows_dropped and surprisal > 6", "stored > 1 MiB", "step < 0",
)  # fmt: skip


@dataclass
class Chance:
    """Arguments for commands: mostly such as a window would send, sometimes such as nobody should."""

    random: random.Random
    sources: dict[str, str]
    folder: Path
    status: EngineStatus | None = None

    def often(self, probability: float) -> bool:
        return self.random.random() < probability

    def odd(self) -> int:
        return self.random.choice(ODD_NUMBERS)

    def number(self, low: int, high: int) -> int:
        """Between two numbers, or now and then an odd one."""
        return self.odd() if self.often(0.05) else self.random.randint(low, max(low, high))

    @property
    def sequence(self) -> int:
        known = [info.seq_id for info in self.status.sequences] if self.status is not None else []
        return self.odd() if not known or self.often(0.04) else self.random.choice(known)

    @property
    def step(self) -> int:
        last = self.status.step if self.status is not None else None
        return self.number(0, last or 0)

    def tokens_of(self, seq_id: int) -> int:
        infos = self.status.sequences if self.status is not None else ()
        return next((info.num_tokens for info in infos if info.seq_id == seq_id), 5)

    @property
    def vocab(self) -> int:
        model = self.status.model if self.status is not None else None
        return (model.geometry.vocab_size if model is not None else None) or 128

    def token_ids(self, most: int) -> tuple[int, ...]:
        if self.often(0.03):
            return self.random.choice(((), (-1,), (self.vocab,), (2**40,), (5,) * 400))
        vocab = self.random.choice((8, self.vocab))  # few tokens share prefixes
        return tuple(self.random.randrange(vocab) for _ in range(self.random.randint(1, most)))

    def sampling(self) -> SamplingParams:
        if self.often(0.4):
            return SamplingParams()
        return SamplingParams(
            temperature=self.random.choice((0.0, 1e-30, 0.7, 1.0, 5.0, 1e30, -1.0)),
            top_k=self.random.choice((None, 1, 40, 10**9, 0)),
            top_p=self.random.choice((None, 1e-9, 0.9, 1.0, 1.5)),
            min_p=self.random.choice((None, 0.0, 0.05, 1.0, -0.1)),
            seed=self.random.choice((0, 1, 2**63 - 1, -1)),
            stop=self.random.choice(((), (), ("a",), ("zz", " the"), ("",))),
        )

    def prompt(self) -> Prompt:
        sampling = self.sampling() if self.often(0.8) else None
        if self.often(0.1):
            return Prompt(text=self.random.choice(TEXTS), sampling=sampling)
        most = 40 if self.often(0.9) else 140
        return Prompt(token_ids=self.token_ids(most), sampling=sampling)

    def cache(self) -> CacheSpec:
        """Any mode, often with small sizes, so that things fill up and are dropped."""
        name = self.random.choice((*PRESETS, *("paged", "growing", "static") * 3))
        spec = cache_preset(name).spec
        wished: dict[str, Any] = {}
        if spec.is_paged:
            wished = {"page_size": self.random.choice((1, 2, 4, 8, 16)), "num_pages": self.number(2, 40)}
        elif spec.layout == "static" and self.often(0.8):
            wished = {"max_length": self.number(4, 128)}
        if not spec.retention.keeps_all and self.often(0.8):
            wished |= {"sinks": self.random.randint(0, 3), "window": self.number(1, 8)}
            if name not in ("sliding", "streamingllm"):
                wished["budget"] = self.number(4, 30)
            if name == "sliding":
                del wished["sinks"]
            if name == "streamingllm" and self.often(0.3):
                wished["rerotate"] = True
            if name != "pyramidkv" and self.often(0.3):
                wished |= {"layout": "paged", "page_size": 4, "num_pages": 40}
        if name.startswith("kivi"):
            wished = {"group": self.random.choice((4, 8, 16, 32)), "residual": self.random.choice((0, 8, 16, 32))}
        if spec.host_gib is not None and self.often(0.5):
            wished["host_gib"] = self.random.choice((1e-5, 1e-3, 1e9, -1.0))
        return tuned(spec, **wished)

    def path(self) -> Path:
        names = ("a.safetensors", "b.safetensors", "", "no/such/folder/c.safetensors", "link.safetensors", "\x00")
        return self.folder / self.random.choice(names)

    def written(self) -> Path:
        """A snapshot that was written before, where there is one; at times any path."""
        files = sorted(path for path in self.folder.glob("*.safetensors") if not path.is_symlink())
        return self.path() if not files or self.often(0.2) else self.random.choice(files)

    @property
    def is_file_open(self) -> bool:
        return self.status is not None and self.status.opened is not None

    @property
    def has_model(self) -> bool:
        return self.status is None or self.status.model is not None

    def export(self) -> exporting.Export:
        count = None if self.often(0.5) else self.number(0, 40)
        layers = None if self.often(0.7) else (self.number(0, 2),)
        kind = self.random.choice(get_args(exporting.ExportKind)) if self.often(0.4) else "snapshot"
        path = self.path() if self.often(0.5) else self.folder / "a.safetensors"
        form: Literal["stored", "rows"] = "rows" if self.often(0.3) else "stored"
        return exporting.Export(
            path, self.sequence, count, form=form, layers=layers, kind=kind, with_script=self.often(0.2)
        )

    def picture(self) -> requests.SliceRequest:
        seq_id = self.sequence
        held = self.tokens_of(seq_id)
        count = self.number(0, held)
        tensor = self.random.choice(("keys", "values"))
        layer, head = self.number(0, 1), self.number(0, 1)
        match self.random.randrange(6):
            case 0:
                sizes = self.number(1, 64), self.number(1, 16)
                return requests.WallRequest(seq_id, count, self.number(0, count), tensor, self.often(0.4), *sizes)
            case 1:
                start = self.number(0, count)
                columns = self.number(1, 64)
                return requests.HeadRequest(
                    seq_id, count, tensor, layer, head, start, self.number(start, count), columns
                )
            case 2:
                return requests.AttentionRequest(seq_id, self.step, layer, self.number(1, 64))
            case 3:
                return requests.RowRequest(seq_id, count, self.number(0, count))
            case 4:
                return requests.OutliersRequest(seq_id, count, self.step, self.number(1, 10))
            case _:
                return requests.TableRequest(seq_id, count)

    def command(self) -> commands.Command:
        """One command; arguments that a message refuses by itself are drawn again."""
        while True:
            makers = list(self.makers())
            make = self.random.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]
            try:
                return make()
            except InputError:
                continue

    def makers(self) -> list[tuple[Callable[[], commands.Command], float]]:
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
            (lambda: commands.TakeSlice(self.picture()), 26),
            (self.watch, 4),
            (self.pace, 1),
            (self.stops, 1),
            (self.attention, 1),
            (lambda: commands.Tokenize(chance.choice(TEXTS)), 1),
            (self.export, 1.5),
            (lambda: exporting.EstimateExport(self.export()), 0.5),
            (lambda: measuring.WhatIf(self.sequence, self.cache(), self.often(0.5)), 2),
            (lambda: measuring.CheckParity(self.sequence, None if self.often(0.7) else self.cache()), 3),
            (self.damage, 0.7),
            (
                lambda: measuring.MeasureRegret(self.sequence, self.cache(), self.number(4, 20), self.often(0.5)),
                0.7,
            ),
            (self.sweep, 0.15),
            (self.bench, 0.1),
            (lambda: commands.StartDuel(self.sequence, self.opponent()), 1),
            (commands.EndDuel, 0.7),
            (self.redo, 0.5),
            (commands.FindModels, 0.2),
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

    def branch(self) -> commands.Command:
        """Mostly what a click sends: one other token from a step."""
        step = None if self.often(0.2) else self.step
        if self.often(0.6):
            return commands.BeginBranch(self.sequence, step, token_ids=self.token_ids(3))
        text = self.random.choice(TEXTS) if self.often(0.5) else ""
        return commands.BeginBranch(
            self.sequence, step, text=text, sampling=self.sampling() if self.often(0.6) else None
        )

    def edit(self) -> Edit:
        """Of a row or some, of what attention sees, of the tokens or of the logits."""
        seq_id = self.sequence
        start = self.number(0, max(0, self.tokens_of(seq_id) - 1))
        rows = Rows(start, start + self.number(1, 4), layers=None if self.often(0.6) else (self.number(0, 1),))
        choice = self.random.randrange(8)
        if choice == 0:
            return Zero(seq_id, rows)
        if choice == 1:
            return Scale(seq_id, rows, self.random.choice((0.0, 2.0, -1.0, 1e30)))
        if choice == 2:
            return AddNoise(seq_id, rows, self.random.choice((0.1, 10.0)), self.number(0, 9))
        if choice == 3:
            return Overwrite(seq_id, rows, from_step=self.step)
        if choice == 4:
            return Mask(seq_id, rows, self.often(0.7))
        if choice == 5:
            return Drop(seq_id, rows) if self.often(0.5) else Pin(seq_id, rows, self.often(0.7))
        if choice == 6:
            how: Literal["overwrite", "re-prefill"] = "overwrite" if self.often(0.5) else "re-prefill"
            return ReplaceTokens(seq_id, start, self.token_ids(3), how)
        return BiasLogits(seq_id, ((self.number(0, self.vocab - 1), self.random.choice((-1e9, 5.0))),))

    def watch(self) -> commands.Command:
        """None to four pictures, at times one of them twice."""
        extents: tuple[Extent, ...] = ("all", "newest", "fixed")
        count = self.random.randint(0, 4)
        watched = [
            commands.Watched(self.picture(), self.random.choice(extents), self.number(0, 9)) for _ in range(count)
        ]
        return commands.Watch((*watched, *watched[: self.often(0.1)]))

    def pace(self) -> commands.Command:
        """Mostly as fast as it can: a slow run is paused in the end, and takes its time till then."""
        slow = self.odd_pace() if self.often(0.15) else None
        return commands.SetPace(
            self.random.choice((None, 300.0, 1e6, slow)), self.random.choice((None, 25.0, self.odd_pace()))
        )

    def until(self) -> str:
        return "" if self.often(0.7) else self.random.choice((self.condition(), "entropy >"))

    def condition(self) -> str:
        return self.random.choice(CONDITIONS)

    def stops(self) -> commands.Command:
        """Few of them hold often: a run shall come to something."""
        ids = range(self.random.choice((0, 0, 1, 2, 3, 70)))
        return stopping.SetStops(tuple(Stop(number, self.condition(), self.often(0.5)) for number in ids))

    def attention(self) -> commands.Command:
        places = tuple(
            stopping.AttentionPlace(self.step, self.sequence, self.number(1, 40))
            for _ in range(self.random.randint(0, 3))
        )
        return stopping.MeasureAttention(places, (TokenSpan(newest=4), TokenSpan(2, 7))[: self.random.randint(0, 2)])

    def odd_pace(self) -> float:
        return self.random.choice((0.0, -1.0, 5e-324, 1e-9, 1e300, float("inf"), float("nan")))

    def damage(self) -> commands.Command:
        codec = uniform(self.random.choice(("exact", "fp8", "int8", "kivi-4", "kivi-2")))
        budget = None if self.often(0.7) else self.number(1000, 100_000)
        return measuring.MapDamage(self.sequence, codec, self.number(1, 64), budget, self.often(0.5))

    def opponent(self) -> opponents.Opponent:
        kind = self.random.random()
        if kind < 0.6:
            return opponents.OtherRun(self.cache())
        return opponents.OtherStep(self.step) if kind < 0.9 else opponents.OtherFile(self.path())

    def redo(self) -> commands.Command:
        """What an engine that is gone may have done: mostly refused, since there is a session already."""
        ids, cache, seq_id = self.token_ids(6), self.cache(), self.number(0, 2)
        part = PlannedPart(seq_id, 0, self.number(1, len(ids)), self.number(3, self.vocab - 1), False, None)
        added = SequenceAdded(seq_id, ids, self.sampling())
        node = Node(0, None, (added,), cache, PlannedStep(0, cache, (part,), ()))
        return commands.Redo((node,) if self.often(0.7) else (), self.step if self.often(0.2) else 0, (added,))

    def bench(self) -> commands.Command:
        modes = tuple((f"mode {n}", self.cache()) for n in range(self.random.randint(0, 2)))
        return measuring.Bench(modes, (self.number(1, 20),), self.number(1, 3), (self.number(1, 2),))

    def sweep(self) -> commands.Command:
        modes = tuple(SweepMode(f"mode {n}", self.cache()) for n in range(self.random.randint(0, 2)))
        text = SweepText("text", self.prompt(), self.random.choice(("greedy", "given", "recall")))
        return measuring.Sweep((text,), self.number(1, 4), modes)

    def model(self) -> commands.Command:
        return commands.LoadModel(self.spec(), self.cache())

    def spec(self) -> ModelSpec:
        sources = [*self.sources.values(), "/no/such/model", "shape:/no/such/config.json", str(self.folder), "shape:"]
        dtype = self.random.choice(("auto", "float32", "bfloat16")) if self.often(0.3) else "auto"
        return ModelSpec(self.random.choice(sources), dtype=dtype, device="cpu", num_threads=1)
