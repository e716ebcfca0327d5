"""Which model: its source, its precision, where it runs. Frozen, and checked when constructed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.runners import PagedAttentionName, RunnerName, check_paged_attention, check_runner

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
WeightFormat = Literal["stored", "int8", "int4"]

BUNDLED = "bundled"
BUNDLED_NAME = "Tales 5M"
SHAPE_PREFIX = "shape:"
RESOURCES = Path(__file__).resolve().parents[2] / "resources"
AUTO_DEVICE = "auto"
SPLIT = "split"  # over all GPUs, layer by layer
INT4_GROUP = 32  # weights of one row that share a scale and an offset


class WeightRow(Struct, frozen=True):
    """A way to hold the weights: `bits` of a number, 0 as stored; what it `needs`; how to say it behind a name."""

    name: WeightFormat
    label: str
    summary: str
    bits: int = 0
    needs: str = ""

    @property
    def mark(self) -> str:
        """What stands behind the name of a model whose weights are so."""
        return f" ({self.name} weights)" if self.bits else ""


WEIGHTS: Mapping[str, WeightRow] = {
    row.name: row
    for row in (
        WeightRow("stored", "as stored", "Every weight as the file has it, in the dtype that is computed in"),
        WeightRow("int8", "int8", "Linear layers in 8 bits, a scale a row: the logits differ", 8, "torchao"),
        WeightRow(
            "int4",
            "int4",
            f"Linear layers in 4 bits, a scale and an offset for {INT4_GROUP} weights: the logits differ much",
            4,
            "torchao",
        ),
    )
}


class ModelSpec(Struct, frozen=True):
    """Which model, in which precision, where.

    `source` is `bundled`, a folder in Hugging Face layout, the name of a hub model that is on this computer, or
    `shape:CONFIG.json`: the architecture of that config with random weights. `device` is `auto`, `split` or a name that
    torch knows; `weights` other than `stored` change the logits.
    """

    source: str = BUNDLED
    dtype: Dtype = "auto"
    device: str = "auto"
    allow_download: bool = False
    num_threads: int | None = None
    runner: RunnerName = "auto"
    weights: WeightFormat = "stored"
    paged_attention: PagedAttentionName = "auto"

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise InputError("The model has no name: give a folder, a hub name, 'bundled' or 'shape:CONFIG.json'.")
        if self.dtype not in get_args(Dtype):
            raise InputError(f"Unknown dtype '{self.dtype}': choose one of {', '.join(get_args(Dtype))}.")
        if self.weights not in WEIGHTS:
            raise InputError(f"Unknown weights '{self.weights}': choose one of {', '.join(WEIGHTS)}.")
        if self.num_threads is not None and self.num_threads < 1:
            raise InputError(f"{self.num_threads} threads cannot compute: give 1 or more.")
        check_runner(self.runner)
        check_paged_attention(self.paged_attention)

    def loaded_as(self, chosen: ModelSpec) -> ModelSpec:
        """This model, on the device, in the numbers and on the threads of another."""
        return replace(
            self,
            dtype=chosen.dtype,
            device=chosen.device,
            num_threads=chosen.num_threads,
            weights=chosen.weights,
        )

    @property
    def shape_config(self) -> Path | None:
        """The `config.json` of a shape-only model, else None."""
        return Path(self.source[len(SHAPE_PREFIX) :]) if self.source.startswith(SHAPE_PREFIX) else None

    @property
    def shape_name(self) -> str:
        """What a shape-only model is called: after its file, or after the folder of a `config.json`."""
        path = self.shape_config
        if path is None:
            return ""
        return path.parent.resolve().name if path.name == "config.json" and path.parent.resolve().name else path.stem


def usual_threads() -> int:
    """Threads that compute where nobody says how many: all cores but one, which is the window's."""
    return max(1, (os.cpu_count() or 2) - 1)
