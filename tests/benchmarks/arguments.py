"""Random arguments for commands: mostly such as a window would send, sometimes such as nobody should."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engine.spec.cache import PRESETS, CacheSpec, cache_preset, tuned
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
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire import comparison, exporting, pictures
from engine.wire.status import EngineStatus

ODD_NUMBERS = (-(2**63), -7, -1, 0, 1, 2, 3, 7, 129, 4096, 10**6, 2**40)
TEXTS = ("Once upon a time", "\N{ZERO WIDTH SPACE}", "a" * 3000, "\x00", "日本語 العربية", "")
CONDITIONS = (
    "entropy > 4.6", "token = 7", "norm > 1.5", "pages_allocated", "pages_evicted or preempted", "nonfinite",
    "attention(0-3) > 90%", "peak_attention(last 2) > 0.99", "differs", 'text ~ "(a+)+$"', "step = 20", "tokens >= 30",
    "not (tokens > 0)", "rows_evicted and surprisal > 6", "stored > 1 MiB", "step < 0",
)  # fmt: skip


@dataclass
class Arguments:
    """Draws arguments that fit what the engine last said of itself (`status`), and now and then odd ones."""

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

    def picture(self) -> pictures.PictureRequest:
        seq_id = self.sequence
        held = self.tokens_of(seq_id)
        count = self.number(0, held)
        tensor = self.random.choice(("keys", "values"))
        layer, head = self.number(0, 1), self.number(0, 1)
        match self.random.randrange(6):
            case 0:
                sizes = self.number(1, 64), self.number(1, 16)
                return pictures.WallRequest(seq_id, count, self.number(0, count), tensor, self.often(0.4), *sizes)
            case 1:
                start = self.number(0, count)
                columns = self.number(1, 64)
                return pictures.HeadRequest(
                    seq_id, count, tensor, layer, head, start, self.number(start, count), columns
                )
            case 2:
                return pictures.AttentionRequest(seq_id, self.step, layer, self.number(1, 64))
            case 3:
                return pictures.RowRequest(seq_id, count, self.number(0, count))
            case 4:
                return pictures.OutliersRequest(seq_id, count, self.step, self.number(1, 10))
            case _:
                return pictures.TableRequest(seq_id, count)

    def edit(self) -> Edit:
        """An edit of rows, of what attention sees, of the tokens or of the logits."""
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

    def until(self) -> str:
        return "" if self.often(0.7) else self.random.choice((self.condition(), "entropy >"))

    def condition(self) -> str:
        return self.random.choice(CONDITIONS)

    def odd_pace(self) -> float:
        return self.random.choice((0.0, -1.0, 5e-324, 1e-9, 1e300, float("inf"), float("nan")))

    def opponent(self) -> comparison.Opponent:
        kind = self.random.random()
        if kind < 0.6:
            return comparison.OtherRun(self.cache())
        return comparison.OtherStep(self.step) if kind < 0.9 else comparison.OtherFile(self.path())

    def spec(self) -> ModelSpec:
        sources = [*self.sources.values(), "/no/such/model", "shape:/no/such/config.json", str(self.folder), "shape:"]
        dtype = self.random.choice(("auto", "float32", "bfloat16")) if self.often(0.3) else "auto"
        return ModelSpec(self.random.choice(sources), dtype=dtype, device="cpu", num_threads=1)
