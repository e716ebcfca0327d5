"""The models of the documents: those on this computer, or random weights in their shape; and the settings of the
measurements."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.errors import InputError
from engine.model.batch import Batch, Result
from engine.model.loader import LoadedModel, load
from engine.seeds import published
from engine.spec.model import SHAPE_PREFIX, Dtype, ModelSpec

QUICK_LAYERS = 2

T = TypeVar("T")


@dataclass(frozen=True)
class SeedSetting:
    """How the tables are measured. `is_quick`: few tokens, no repetitions, models of two layers, no compilation."""

    dtype: Dtype = "auto"
    device: str = "auto"
    num_threads: int | None = None
    allow_download: bool = False
    num_tokens: int = published.NUM_TOKENS
    repeats: int = 3
    is_quick: bool = False

    def spec(self, source: str) -> ModelSpec:
        return ModelSpec(source, self.dtype, self.device, self.allow_download, self.num_threads)


@dataclass(frozen=True, eq=False)
class SeedModel:
    """A model of a document. `is_real`: it has its own weights, so that its numbers can be compared with the
    document."""

    loaded: LoadedModel
    is_real: bool
    words: str


class SeedModels:
    """The models of the documents, each loaded on first use."""

    def __init__(self, setting: SeedSetting) -> None:
        self.setting = setting

    @cached_property
    def smollm2(self) -> SeedModel:
        return self._find(published.SMOLLM2, published.SMOLLM2_CONFIG, "num_hidden_layers")

    @cached_property
    def gpt2(self) -> SeedModel:
        return self._find(published.GPT2, published.GPT2_CONFIG, "n_layer")

    @cached_property
    def tutorial(self) -> SeedModel:
        """A GPT-2 of the size of the tutorial's network; that network itself has attention only: no MLP, norm or
        residual."""
        loaded = self._of_shape("tutorial", published.TUTORIAL_CONFIG)
        return SeedModel(loaded, False, f"a GPT-2 of the tutorial's size, random weights, {where(loaded)}")

    def _find(self, name: str, config: Mapping[str, Any], layers: str) -> SeedModel:
        """The model with its weights if they are available, else random weights in its shape."""
        if not self.setting.is_quick:
            try:
                loaded = load(self.setting.spec(name))
                return SeedModel(loaded, True, f"{name}, {where(loaded)}")
            except InputError:
                pass
        used = {**config, layers: QUICK_LAYERS} if self.setting.is_quick else config
        cut = f", {QUICK_LAYERS} of its {config[layers]} layers" if self.setting.is_quick else ""
        loaded = self._of_shape(name.split("/")[1], used)
        return SeedModel(loaded, False, f"random weights in the shape of {name}{cut}, {where(loaded)}")

    def _of_shape(self, name: str, config: Mapping[str, Any]) -> LoadedModel:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.json"
            path.write_text(json.dumps(config), "utf-8")
            return load(self.setting.spec(f"{SHAPE_PREFIX}{path}"))


def where(model: LoadedModel) -> str:
    """The dtype, device and threads of a model in words."""
    threads = f", threads: {model.info.num_threads}" if model.device.type == "cpu" else ""
    return f"{model.info.dtype} on {model.info.device}{threads}"


@contextmanager
def with_native_attention(model: LoadedModel) -> Iterator[Any]:
    """The model of transformers with its original attention implementation, within the context."""
    ours = model.model.config._attn_implementation
    model.model.set_attn_implementation(model.native_attention)
    try:
        with torch.no_grad():
            yield model.model
    finally:
        model.model.set_attn_implementation(ours)


class CountingModel(LoadedModel):
    """A model that counts the tokens of its forward passes."""

    num_computed = 0

    def forward(self, batch: Batch) -> Result:
        self.num_computed += batch.ids.numel()
        return super().forward(batch)


def in_turns(names: Iterable[str], repeats: int, run: Callable[[str], T]) -> dict[str, list[T]]:
    """What each of the runs gave, which take turns in an order that is reversed every round."""
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(repeats):
        for name in found if number % 2 == 0 else reversed(found):
            found[name].append(run(name))
    return found


def seconds_of(model: LoadedModel, work: Callable[[], T]) -> tuple[float, T]:
    """The time that the work takes until the device has finished it, and what it gives."""
    began = time.perf_counter()
    found = work()
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - began, found
