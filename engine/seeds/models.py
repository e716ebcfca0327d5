"""The models of the documents: those on this computer, or random weights in their shape; and the settings of the
measurements."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from engine.errors import InputError
from engine.model.loader import LoadedModel, load
from engine.seeds import published
from engine.spec.model import SHAPE_PREFIX, Dtype, ModelSpec

QUICK_LAYERS = 2


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

    @property
    def config(self) -> Any:
        return self.loaded.model.config


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
