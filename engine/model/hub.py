"""Models of the Hugging Face hub: those in this computer's cache, and, only when asked, a download."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import CacheNotFound, constants, scan_cache_dir, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from tqdm.auto import tqdm

from engine.errors import Cancelled, InputError, Report
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.wire.events import LocalModel

WANTED_FILES = ["*.json", "*.safetensors", "tokenizer.model", "vocab.txt", "merges.txt"]
BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}


def resolve_hub_name(name: str, allow_download: bool, report: Report) -> Path:
    """The folder of a hub model, downloaded if it is not here and `allow_download`; raises `InputError` if it cannot be
    had."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"'{name}' is neither a folder nor a hub name like owner/model: check the spelling.")
    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=WANTED_FILES))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        if not allow_download:
            raise InputError(
                f"The model '{name}' is not on this computer: allow the download, pick a folder, or pick another model."
            ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED_FILES, tqdm_class=reporting_bar(name, report)))
    except Cancelled:
        raise
    except Exception as error:  # network, permission, gate, disk: the hub's own words name the cause
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(
            f"The model '{name}' could not be downloaded ({reason}): check the name and the network."
        ) from None


def reporting_bar(name: str, report: Report) -> type:
    """A tqdm class that calls `report` instead of drawing; `report` may raise `Cancelled`."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)
            self.seen = 0

        def update(self, n: float | None = 1) -> None:
            self.seen += int(n or 0)
            if self.total and self.total > 1000:  # bytes, not the count of files
                report(f"Downloading {name}", self.seen, int(self.total))

    return Bar


def models_here() -> tuple[LocalModel, ...]:
    """Decoders with safetensors weights in this computer's hub cache, most recently used first."""
    try:
        repos = scan_cache_dir().repos if Path(constants.HF_HUB_CACHE).is_dir() else ()
    except (CacheNotFound, OSError):
        return ()
    found = []
    for repo in sorted(repos, key=lambda r: r.last_accessed, reverse=True):
        for revision in repo.revisions:
            model = describe(repo.repo_id, Path(revision.snapshot_path), revision.size_on_disk)
            if repo.repo_type == "model" and model is not None:
                found.append(model)
                break
    return tuple(found)


def describe(name: str, folder: Path, size_bytes: int) -> LocalModel | None:
    """A model folder's description, from its config alone; None if it is no decoder that can be loaded."""
    try:
        config = read_json_object(folder / "config.json", "model config")
        architecture = (config.get("architectures") or [""])[0]
        if not architecture.endswith("ForCausalLM") or not any(folder.glob("*.safetensors")):
            return None
        width = BYTES_OF_DTYPE.get(config.get("dtype") or config.get("torch_dtype") or "", 2)
        per_token = CacheGeometry.from_config(config).elements_per_token * width
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    return LocalModel(name, name, architecture, size_bytes, per_token)
