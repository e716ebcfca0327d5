"""Where a model comes from (a folder with weights, or a config alone), and its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.adapter import add_adapter, check_adapter
from engine.model.device import Placement
from engine.model.folder import ADAPTER, check_weights, read_config, resolve_folder
from engine.model.weights import build_shape, load_weights, place_and_quantise
from engine.spec.model import BUNDLED, BUNDLED_NAME, RESOURCES, ModelSpec, WeightFormat

EDGE_BYTES = 1 << 20
TEXT_FILES = (
    "tokenizer*", "chat_template*", "additional_chat_templates/*", "special_tokens_map.json", "added_tokens.json",
    "vocab.*", "merges.txt",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ModelSource:
    """Where a model comes from: a folder with weights, or a config alone (no folder) for random weights; with an
    `adapter`, if given."""

    config: Any
    folder: Path | None
    label: str
    name: str
    adapter: Path | None = None

    def build(self, placement: Placement, attention: str | None) -> Any:
        """Build the model on its devices, with transformers' default attention or the one named."""
        if self.folder is None:
            model = place_and_quantise(
                build_shape(self.config, placement.dtype, self.name, attention), placement, self.name
            )
        else:
            model = load_weights(self.folder, self.config, placement, attention)
        if self.adapter is not None:
            add_adapter(model, self.adapter)
        return model


def find_source(spec: ModelSpec, report: Callable[[str, int, int | None], None]) -> ModelSource:
    """The source of a model, checked; raises `InputError` for a model or adapter that cannot be loaded. A hub model is
    downloaded only if the spec allows it."""
    if spec.adapter is not None:
        check_adapter(spec.adapter)
    mark = "" if spec.adapter is None else f" + {spec.adapter.resolve().name}"
    if spec.shape_config is not None:
        name = f"{spec.shape_name} (shape only){mark}"
        return ModelSource(read_config(spec.shape_config), None, "Building random weights", name, spec.adapter)
    folder = RESOURCES / "demo_model" if spec.base == BUNDLED else resolve_folder(spec, report)
    config = read_config(folder / "config.json")
    check_weights(folder)
    return ModelSource(config, folder, f"Loading {folder.name}", model_name(spec, folder) + mark, spec.adapter)


def model_name(spec: ModelSpec, folder: Path) -> str:
    """The name shown for a model: its hub name, or the name of its folder."""
    if spec.base == BUNDLED:
        return BUNDLED_NAME
    return spec.base if spec.base.count("/") == 1 and not Path(spec.base).exists() else folder.resolve().name


def fingerprint(source: ModelSource, weights: WeightFormat = "stored") -> str:
    """BLAKE2b of the config, and of the size, first and last MiB of every weight file (which include its header).
    Another weight format gives another fingerprint."""
    if source.folder is None:
        digest = hashlib.blake2b(source.config.to_json_string().encode(), digest_size=16)
    else:
        digest = hashlib.blake2b((source.folder / "config.json").read_bytes(), digest_size=16)
        digest_weights(digest, source.folder)
    if weights != "stored":
        digest.update(weights.encode())
    if source.adapter is not None:
        digest.update((source.adapter / ADAPTER).read_bytes())
        digest_weights(digest, source.adapter)
    return digest.hexdigest()


def text_fingerprint(folder: Path | None) -> str:
    """BLAKE2b of the files that turn text into tokens: tokenizer and chat templates; empty without a folder. They may
    have changed when the same weights are loaded again."""
    if folder is None:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(file for pattern in TEXT_FILES for file in folder.glob(pattern) if file.is_file()):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def digest_weights(digest: hashlib.blake2b, folder: Path) -> None:
    """Add the size, first and last MiB of every weight file to a digest."""
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(EDGE_BYTES))
            stream.seek(max(0, size - EDGE_BYTES))
            digest.update(stream.read(EDGE_BYTES))
