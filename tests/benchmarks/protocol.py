"""How every speed is measured here: as a ratio, in pairs, in one run.

A and B are measured in turn, the order swapped with each pair, because a machine is never twice the same; the median of
the pairs' ratios is the answer and their spread says how far to trust it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.model.loader import LoadedModel, load
from engine.seeds.published import SMOLLM2_CONFIG
from engine.spec.model import ModelSpec

SMOLLM2_135M = {**SMOLLM2_CONFIG, "max_position_embeddings": 16384, "eos_token_id": None}  # room for long contexts


@dataclass(frozen=True)
class Paired:
    """Values of A and B, pair by pair."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """B over A."""
        return [b / a for a, b in zip(self.a, self.b, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def row(self, name: str, unit: str) -> str:
        """As a line to print; it is noted for whoever collects them."""
        note_ratios(name, unit, self.a, self.b)
        low, high = min(self.ratios), max(self.ratios)
        a, b = statistics.median(self.a), statistics.median(self.b)
        spread = f"({low:.2f} … {high:.2f}, {len(self.a)} pairs)"
        return f"{name:<34} {a:>9.2f} {b:>9.2f} {unit:<6} {self.ratio:>6.2f}x  {spread}"


def paired(a: Callable[[], float], b: Callable[[], float], pairs: int) -> Paired:
    """Measure A and B `pairs` times in turn, after one warm-up each."""
    a(), b()
    values_a, values_b = [], []
    for number in range(pairs):
        first, second = (a, b) if number % 2 == 0 else (b, a)
        one, two = first(), second()
        values_a.append(one if number % 2 == 0 else two)
        values_b.append(two if number % 2 == 0 else one)
    return Paired(tuple(values_a), tuple(values_b))


def note_ratios(name: str, unit: str, a: Sequence[float], b: Sequence[float]) -> None:
    """Add the pairs to the file of whoever runs several scripts, if somebody does."""
    path = os.environ.get("KVLOUPE_BENCHMARK_ROWS")
    if path:
        with open(path, "a", encoding="utf-8") as rows:
            rows.write(
                json.dumps({"name": name, "unit": unit, "a": list(map(float, a)), "b": list(map(float, b))}) + "\n"
            )


def header(a: str, b: str) -> str:
    return f"{'':<34} {a:>9} {b:>9} {'':<6} {'ratio':>7}"


def smollm_shape(threads: int) -> LoadedModel:
    """A random-weight model of SmolLM2-135M's shape, in float32 on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(SMOLLM2_135M), "utf-8")
        return load(ModelSpec(f"shape:{path}", dtype="float32", device="cpu", num_threads=threads))


GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}  # what transformers' generate is told


@contextmanager
def native_attention(model: LoadedModel) -> Iterator[None]:
    """Inside, the model uses transformers' own attention and not the one that is looked into."""
    captured = model.model.config._attn_implementation
    model.model.set_attn_implementation(model.native_attention)
    try:
        yield
    finally:
        model.model.set_attn_implementation(captured)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
