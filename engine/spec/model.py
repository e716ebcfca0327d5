"""Which model is loaded: its source, precision and device; the ways to compute its forward pass (runners); and how much
of every step is measured (capture levels). Frozen, and checked when constructed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError, check_known

RunnerName = Literal["auto", "transformers", "fused", "graph", "compile"]
PagedAttentionName = Literal["auto", "gather", "pages"]


class RunnerRow(NamedTuple):
    """One runner: its name, its label and summary, and what it needs."""

    name: RunnerName
    label: str
    summary: str
    needs: str = ""


class PagedAttentionRow(NamedTuple):
    """A way in which attention reads the rows of a paged cache."""

    name: PagedAttentionName
    label: str
    summary: str


# fmt: off
RUNNERS = {
    row.name: row
    for row in (
        RunnerRow("auto", "the fastest", "On a GPU recorded steps, once they were compared with the same steps "
                  "computed at once; else the fused decoder where the model has one, else transformers"),
        RunnerRow("transformers", "transformers", "The model's own forward: any architecture, any cache"),
        RunnerRow("fused", "fused decoder", "The same bits from a third of the operations",
                  "a decoder of Llama's structure with full attention, which was tried when it was loaded"),
        RunnerRow("graph", "recorded steps",
                  "The fused decoder, a step recorded for each length as a CUDA graph and replayed; on a CPU it is run "
                  "again at the same addresses, no faster", "the fused decoder"),
        RunnerRow("compile", "compiled steps",
                  "The fused decoder through torch.compile: the first step of each length takes minutes",
                  "the fused decoder, and a compiler"),
    )
}
PAGED_ATTENTION = {
    row.name: row
    for row in (
        PagedAttentionRow("auto", "pages as it suits", "In place on a GPU, where the model can; gathered on a CPU"),
        PagedAttentionRow("gather", "pages gathered", "The rows of a sequence are copied together, then read"),
        PagedAttentionRow("pages", "pages in place", "Rows are read where they lie, page after page: another rounding"),
    )
}
# fmt: on


def runner_words(names: str) -> str:
    """The labels of runners and of the way pages are read, whose names are joined by + in `names`."""
    labels: dict[str, str] = {row.name: row.label for row in PAGED_ATTENTION.values()}
    labels |= {row.name: row.label for row in RUNNERS.values()}
    return " + ".join(labels.get(name, name) for name in names.split("+"))


def reads_in_place(names: str) -> bool:
    """Whether a step with these runners read pages in place, without gathering them."""
    return "pages" in names.split("+")


Dtype = Literal["auto", "float32", "bfloat16", "float16"]
WeightFormat = Literal["stored", "int8", "int4"]

BUNDLED = "bundled"
BUNDLED_NAME = "Tales 5M"
SHAPE_PREFIX = "shape:"
ADAPTER_MARK = "+adapter:"  # separates the source of a model from the folder of its LoRA adapter
RESOURCES = Path(__file__).resolve().parents[2] / "resources"
AUTO_DEVICE = "auto"
MAX_THREADS = 1024
SPLIT = "split"  # layers distributed over all GPUs
INT4_GROUP = 32  # neighbouring weights of a row that share a scale and an offset


class WeightRow(Struct, frozen=True):
    """A format of the weights: `bits` per weight (0: as stored), and the package that it `needs`."""

    name: WeightFormat
    label: str
    summary: str
    bits: int = 0
    needs: str = ""

    @property
    def mark(self) -> str:
        """The suffix of a model's name that says its weight format; empty for stored weights."""
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
    """Which model to load, in which precision, on which device.

    `source` is `bundled`, a folder in Hugging Face layout, the name of a hub model that is on this computer, or
    `shape:CONFIG.json`: the architecture of that config with random weights. It may end in `+adapter:FOLDER`, a LoRA
    adapter to apply. `device` is `auto`, `split` or a device name of torch. `weights` other than `stored` change the
    logits.
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
        self._check_adapter()
        check_known("dtype", self.dtype, get_args(Dtype))
        check_known("weights", self.weights, WEIGHTS)
        if self.num_threads is not None and self.num_threads < 1:
            raise InputError(f"{self.num_threads} threads cannot compute: give 1 or more.")
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise InputError(
                f"{self.num_threads:,} threads are more than can be started: give at most {MAX_THREADS:,}."
            )
        check_known("runner", self.runner, RUNNERS)
        check_known("paged attention", self.paged_attention, PAGED_ATTENTION)

    def loaded_as(self, chosen: ModelSpec) -> ModelSpec:
        """This model with the dtype, device, threads and weight format of `chosen`. A model with an adapter keeps its
        weights as they are stored."""
        return replace(
            self,
            dtype=chosen.dtype,
            device=chosen.device,
            num_threads=chosen.num_threads,
            weights="stored" if self.adapter is not None else chosen.weights,
        )

    def _check_adapter(self) -> None:
        base, *adapters = self.source.split(ADAPTER_MARK)
        if not adapters:
            return
        if len({*adapters}) < len(adapters):
            raise InputError(f"The adapter '{adapters[0]}' is given twice, and would count twice: give it once.")
        if len(adapters) > 1:
            raise InputError(f"{len(adapters)} adapters are given: give one, or merge them into one with peft.")
        if not base.strip() or not adapters[0].strip():
            raise InputError("An adapter is a folder, and is put on a model: name both.")
        if self.weights != "stored":
            raise InputError(f"An adapter is put on weights as they are stored: leave out the {self.weights} weights.")

    @property
    def base(self) -> str:
        """The source without an adapter."""
        return self.source.partition(ADAPTER_MARK)[0]

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter; None if there is none."""
        folder = self.source.partition(ADAPTER_MARK)[2]
        return Path(folder).expanduser() if folder else None

    @property
    def shape_config(self) -> Path | None:
        """The `config.json` of a shape-only model, else None."""
        return Path(self.base[len(SHAPE_PREFIX) :]) if self.base.startswith(SHAPE_PREFIX) else None

    @property
    def shape_name(self) -> str:
        """The name of a shape-only model: that of its file, or that of the folder if the file is a `config.json`."""
        path = self.shape_config
        if path is None:
            return ""
        return path.parent.resolve().name if path.name == "config.json" and path.parent.resolve().name else path.stem


def with_adapters(source: str, folders: Sequence[str]) -> str:
    """The source of a model with these adapters applied."""
    return ADAPTER_MARK.join((source, *folders))


QUOTA_FILES = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")  # of Linux, version 2 and 1


def usable_cores() -> int:
    """How many cores this process may use at once: those that it is bound to, as by a batch system, and no more than
    the quota of its container. The machine's own number may be many times as large."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for path in QUOTA_FILES:
        with suppress(OSError, ValueError):
            quota_us, *period_us = path.read_text().split()  # "max" or -1 where there is none
            period = period_us[0] if period_us else path.with_name("cpu.cfs_period_us").read_text()
            if int(quota_us) > 0:
                cores = min(cores, math.ceil(int(quota_us) / int(period)))
    return cores


def usual_threads() -> int:
    """The default number of compute threads: all cores but one, which is left to the window."""
    return max(1, usable_cores() - 1)


# ---- how much is measured in every step: one row for each level, from nothing to everything --------------------------

CaptureLevel = Literal["off", "statistics", "rows", "everything"]
DEFAULT_CAPTURE: CaptureLevel = "rows"


class CaptureRow(NamedTuple):
    """A capture level as people read it. Each level measures all that the levels before it do, and more."""

    name: CaptureLevel
    label: str
    summary: str


CAPTURES: dict[CaptureLevel, CaptureRow] = {
    row.name: row
    for row in (
        CaptureRow("off", "Nothing", "Tokens and times alone: no candidates, no statistics, nothing to compare by."),
        CaptureRow(
            "statistics",
            "Statistics",
            "Norms, extremes and checksums of the new rows of K and V, what is not finite, candidates, surprisal.",
        ),
        CaptureRow("rows", "Attention rows", "And where the newest token looked, every head of every layer."),
        CaptureRow(
            "everything",
            "Everything",
            "And the new rows of K and V as the step wrote them, to compare with what later steps made of them.",
        ),
    )
}


def check_capture(name: str) -> CaptureLevel:
    """Return the capture level `name`; raise `InputError` if there is no such level."""
    if name not in CAPTURES:
        raise InputError(f"There is no capture level '{name[:40]}': choose one of {', '.join(CAPTURES)}.")
    return name


def captures(level: CaptureLevel, what: CaptureLevel) -> bool:
    """Whether `level` includes what the level `what` measures."""
    order = [*CAPTURES]
    return order.index(level) >= order.index(what)
