"""How every speed is measured here: as a ratio, in pairs, in one run.

A and B are measured in turn, the order swapped with each pair, because the speed of a machine varies; the median of
the pairs' ratios is the answer and their spread says how far to trust it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.device import DeviceTime, device_now
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

    def row(self, name: str, unit: str, sides: tuple[str, str] | None = None) -> str:
        """The line to print. The pairs are also noted for the table of all scripts: see `note_ratios`."""
        note_ratios(name, unit, self.a, self.b, sides)
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


def note_ratios(
    name: str, unit: str, a: Sequence[float], b: Sequence[float], sides: tuple[str, str] | None = None
) -> None:
    """Add the pairs to the file of whoever runs several scripts, if somebody does; `sides` are what A and B are, where
    that is not what they are in the script's other rows."""
    path = os.environ.get("KVLOUPE_BENCHMARK_ROWS")
    if path:
        with open(path, "a", encoding="utf-8") as rows:
            rows.write(
                json.dumps(
                    {"name": name, "unit": unit, "a": list(map(float, a)), "b": list(map(float, b)), "sides": sides}
                )
                + "\n"
            )


def header(a: str, b: str) -> str:
    return f"{'':<34} {a:>9} {b:>9} {'':<6} {'ratio':>7}"


# ---- where it is measured --------------------------------------------------------------------------------------------

GPU_DTYPE = "bfloat16"


@dataclass(frozen=True)
class Place:
    """A device, and the dtype that it computes in."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None

    def named(self, row: str) -> str:
        """The name of a row, with device and dtype unless these are the CPU and float32."""
        return row if (self.device, self.dtype) == ("cpu", "float32") else f"{row} · {self.device} {self.dtype}"

    def words(self) -> str:
        if self.device == "cpu":
            return f"SmolLM2-135M's shape, {self.dtype}, CPU, {self.threads} threads"
        name = torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device
        return f"SmolLM2-135M's shape, {self.dtype}, {name}"

    def model(self) -> LoadedModel:
        """A random-weight model of SmolLM2-135M's shape."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(SMOLLM2_135M), "utf-8")
            spec = ModelSpec(f"shape:{path}", self.dtype, self.device, num_threads=self.threads)  # type: ignore[arg-type]
            return load(spec)


def smollm_shape(threads: int) -> LoadedModel:
    """A random-weight model of SmolLM2-135M's shape, in float32 on the CPU."""
    return Place(threads=threads).model()


def add_places(parser: argparse.ArgumentParser, threads: int = os.cpu_count() or 1) -> None:
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--device", help="cpu, cuda, mps (the CPU, and behind it the GPU where there is one)")
    parser.add_argument("--dtype", help="(float32 on a CPU, else bfloat16)")


def places_of(args: argparse.Namespace) -> list[Place]:
    """Where a script measures: on the device that was asked for, else on the CPU and on a GPU if there is one."""
    gpus = ["cuda"] * torch.cuda.is_available() or ["mps"] * torch.backends.mps.is_available()
    devices = [args.device] if args.device else ["cpu", *gpus]
    return [Place(name, args.dtype or ("float32" if name == "cpu" else GPU_DTYPE), args.threads) for name in devices]


def seconds_since(began: DeviceTime, device: torch.device) -> float:
    """Seconds since a mark until the device has finished all launched work."""
    return device_now(device).ms_since(began) / 1e3


GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}  # arguments of transformers' generate


@contextmanager
def native_attention(model: LoadedModel) -> Iterator[None]:
    """Inside, the model uses transformers' own attention instead of the observed one."""
    captured = model.model.config._attn_implementation
    model.model.set_attn_implementation(model.native_attention)
    try:
        yield
    finally:
        model.model.set_attn_implementation(captured)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
