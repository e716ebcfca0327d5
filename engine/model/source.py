"""Where a model comes from (a folder with weights, or a config alone, and an adapter on it), its fingerprint, and what
is checked of a folder before anything of it is loaded. Every refusal is an `InputError` of one plain sentence.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoConfig

from engine.errors import InputError, Report, first_line, is_of_machine
from engine.files.text import read_json_object
from engine.model.device import Placement
from engine.model.hub import resolve_hub_name
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


def find_source(spec: ModelSpec, report: Report) -> ModelSource:
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


# ---- checks of a folder ---------------------------------------------------------------------------------------------


PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
ADAPTER = "adapter_config.json"
TAGGED_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def resolve_folder(spec: ModelSpec, report: Report) -> Path:
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


# ---- a LoRA adapter, put on a model through peft: safetensors files from this computer only, no remote code ---------


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
