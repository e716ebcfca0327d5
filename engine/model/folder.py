"""Checks a model folder before anything of it is loaded. Every refusal is an `InputError` of one plain sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from engine.errors import InputError, first_line
from engine.files.text import read_json_object
from engine.model.hub import resolve_hub_name
from engine.spec.model import ModelSpec

PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
ADAPTER = "adapter_config.json"
TAGGED_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def resolve_folder(spec: ModelSpec, report: Callable[[str, int, int | None], None]) -> Path:
    """The folder of a local model, or of a hub model that is on this computer or may be downloaded."""
    path = Path(spec.base).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise InputError(f"'{path}' is a file: give the model's folder, the one that holds config.json.")
    if path.is_absolute() or spec.base.startswith(("./", "../", "~")) or spec.base.count("/") != 1:
        raise InputError(f"There is no model folder at '{spec.base}': check the path.")
    return resolve_hub_name(spec.base, spec.allow_download, report)


def read_config(path: Path) -> Any:
    """The config of a language model; raises `InputError` that says what is wrong with it."""
    if not path.exists() and (path.parent / ADAPTER).is_file():
        raise InputError(
            f"'{path.parent}' holds an adapter and no model: load its model, and give this folder as the adapter."
        )
    if not path.exists():
        raise InputError(f"'{path}' does not exist: a model folder in Hugging Face layout has a config.json.")
    raw = with_floats_restored(read_json_object(path, "model config"))
    if "model_type" not in raw:
        raise InputError(f"'{path}' names no model_type, so its architecture is unknown: use a Hugging Face config.")
    try:
        config = AutoConfig.for_model(**{k: v for k, v in raw.items() if k != "auto_map"})
    except ValueError:
        if "auto_map" in raw:
            raise InputError(
                f"The model '{raw['model_type']}' brings its own Python code, which KV Loupe never runs: "
                "use a model whose architecture transformers knows."
            ) from None
        raise InputError(
            f"transformers does not know the architecture '{raw['model_type']}' in '{path}': use another model."
        ) from None
    except Exception as error:  # whatever a hostile or broken config makes transformers raise
        raise InputError(f"'{path}' describes no valid {raw['model_type']} model: {first_line(error)}") from None
    return config


def with_floats_restored(value: Any) -> Any:
    """A config's values with floats that JSON cannot express restored: transformers writes an infinite limit of a
    state-space model as ``{"__float__": "Infinity"}``."""
    if isinstance(value, dict):
        if len(value) == 1 and (found := TAGGED_FLOATS.get(str(value.get("__float__")))) is not None:
            return found
        return {key: with_floats_restored(inner) for key, inner in value.items()}
    return [with_floats_restored(inner) for inner in value] if isinstance(value, list) else value


def check_weights(folder: Path) -> None:
    """Raise `InputError` for a folder without complete safetensors weights, before anything is loaded."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / ADAPTER).is_file() and find_spec("peft"):  # transformers would put the adapter on the model unasked
        raise InputError(
            f"'{folder}' holds a model and an adapter: move the adapter's files to a folder of their own, and give "
            "that as the adapter where it is wanted."
        )
    if not files:
        pickled = [f.name for f in folder.iterdir() if f.suffix in PICKLE_ENDINGS]
        if pickled:
            raise InputError(
                f"'{folder}' has only pickled weights ({pickled[0]}), which can run code when opened: "
                "convert them to safetensors first."
            )
        raise InputError(f"'{folder}' has no .safetensors weights: give a folder that holds a whole model.")
    strange = next((file for file in folder.iterdir() if file.exists() and not (file.is_file() or file.is_dir())), None)
    if strange is not None:  # e.g. a pipe, which would block for ever
        raise InputError(f"'{strange}' is no regular file: copy the model anew.")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        check_shards(folder, index)
    elif not (folder / "model.safetensors").is_file():  # transformers reads no other name, and would look for a pickle
        raise InputError(
            f"'{folder}' has {files[0].name} and neither model.safetensors nor its index: give a folder that holds "
            "a whole model."
        )
    for file in files:
        check_opens(file)


def check_opens(file: Path) -> None:
    """Raise `InputError` for a safetensors file whose header cannot be read, or that is cut short."""
    try:
        with safe_open(file, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(f"'{file}' is damaged or cut short ({first_line(error)}): copy it again.") from None


def check_shards(folder: Path, index: Path) -> None:
    """Raise `InputError` if the index of weight files is damaged, names other files than safetensors in its own folder,
    or names a file that is not there."""
    try:
        shards = set(read_json_object(index, "index of weights")["weight_map"].values())
    except (InputError, KeyError, AttributeError, TypeError):
        raise InputError(f"'{index}' is not a valid index of weight files: copy it again.") from None
    strange = sorted(str(s) for s in shards if not (isinstance(s, str) and re.fullmatch(r"[\w.-]+\.safetensors", s)))
    if strange:  # transformers would open any file that the index names, even a pickle or one in another folder
        raise InputError(
            f"'{index}' names '{strange[0][:80]}', which is no safetensors file of its folder: copy it again."
        )
    missing = sorted(str(s) for s in shards if not (folder / str(s)).is_file())
    if missing:
        raise InputError(f"'{folder}' lacks the weight file {missing[0]} that its index names: copy it too.")
