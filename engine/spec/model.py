"""Which model: its source, its precision, where it runs. Frozen, and checked when constructed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from engine.errors import InputError
from engine.spec.runners import RunnerName, check_runner

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

BUNDLED = "bundled"
BUNDLED_NAME = "Tales 5M"
SHAPE_PREFIX = "shape:"
RESOURCES = Path(__file__).resolve().parents[2] / "resources"


class ModelSpec(Struct, frozen=True):
    """Which model, in which precision, where.

    `source` is `bundled`, a folder in Hugging Face layout, the name of a hub model that is on this computer, or
    `shape:CONFIG.json`: the architecture of that config with random weights.
    """

    source: str = BUNDLED
    dtype: Dtype = "auto"
    device: str = "auto"
    allow_download: bool = False
    num_threads: int | None = None
    runner: RunnerName = "auto"

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise InputError("The model has no name: give a folder, a hub name, 'bundled' or 'shape:CONFIG.json'.")
        if self.dtype not in get_args(Dtype):
            raise InputError(f"Unknown dtype '{self.dtype}': choose one of {', '.join(get_args(Dtype))}.")
        if self.num_threads is not None and self.num_threads < 1:
            raise InputError(f"{self.num_threads} threads cannot compute: give 1 or more.")
        check_runner(self.runner)

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
