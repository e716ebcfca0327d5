"""Puts a LoRA adapter on a model, through peft: safetensors files from this computer only, no remote code."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from engine.errors import InputError, first_line, is_of_machine
from engine.files.text import read_json_object
from engine.model.folder import ADAPTER, check_opens

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
BESIDE = ("gaussian", "orthogonal", "eva")  # peft's initialisations that do not change the model's own weights
PREFIX = "base_model.model."  # with which tensor names begin in a file that peft has written


def check_adapter(folder: Path) -> None:
    """Raise `InputError` for a folder that is not a complete LoRA adapter, before anything is loaded."""
    if not folder.is_dir():
        raise InputError(f"There is no adapter folder at '{folder}': check the path.")
    if not (folder / ADAPTER).is_file():
        raise InputError(f"'{folder}' has no {ADAPTER}: give the folder of an adapter as peft saves it.")
    config = read_json_object(folder / ADAPTER, "adapter config")
    if (kind := config.get("peft_type")) != "LORA":
        raise InputError(f"'{folder}' holds an adapter of the kind {kind}: LoRA adapters alone can be put on a model.")
    for name in ("modules_to_save", "megatron_config"):
        if config.get(name):
            raise InputError(
                f"The adapter in '{folder}' has {name}, which is not LoRA alone: merge it with peft first."
            )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun not in BESIDE:
        raise InputError(
            f"The adapter in '{folder}' was begun from the model's own weights ({begun}), which putting it on would "
            "change: convert it to a plain LoRA with peft first."
        )
    if not (folder / WEIGHTS).is_file():
        if (folder / PICKLED).exists():
            raise InputError(
                f"The adapter in '{folder}' has only pickled weights ({PICKLED}), which can run code when opened: "
                "convert them to safetensors first."
            )
        raise InputError(f"'{folder}' has no {WEIGHTS}: give the folder of an adapter as peft saves it.")
    check_opens(folder / WEIGHTS)
    if find_spec("peft") is None:
        raise InputError("An adapter needs peft, which is not installed: pip install 'kvloupe[adapters]'.")


def add_adapter(model: Any, folder: Path) -> None:
    """Add the adapter's matrices to the model, whose own weights are unchanged. Raises `InputError` if the adapter is
    for another model; some of its matrices may then already be added."""
    from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict

    tensors = {name.removeprefix(PREFIX): each for name, each in load_file(folder / WEIGHTS).items()}
    try:
        config = LoraConfig.from_pretrained(str(folder))
        inject_adapter_in_model(config, model)
        found = set_peft_model_state_dict(model, tensors)
    except Exception as error:  # peft has many exceptions for an adapter that does not fit
        if is_of_machine(error):
            raise
        size = re.search(r"size mismatch for ([\w.]+)", str(error))
        raise wrong_adapter(folder, f"{size[1]} has another size" if size else first_line(error)) from None
    missing = [name for name in found.missing_keys if "lora_" in name]
    if missing or found.unexpected_keys:
        what, names = ("lacks", missing) if missing else ("has and the model has not", found.unexpected_keys)
        raise wrong_adapter(folder, f"it {what} {min(names)}, {len(names)} in all")
    model.requires_grad_(False)


def wrong_adapter(folder: Path, why: str) -> InputError:
    """The error for an adapter that was made for another model."""
    return InputError(
        f"The adapter in '{folder}' is not of this model: {why.rstrip('.')}. Load the model that it was made for."
    )
