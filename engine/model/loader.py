"""Load a decoder: safetensors only, no remote code, no network unless asked. Every refusal is one plain sentence."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache
from transformers.utils import logging as transformers_logging

from engine.cache.attention_probe import Probe
from engine.cache.compressed.rotary import rotates_at_any_position
from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.model.attention import NAME as ATTENTION
from engine.model.attention import register
from engine.model.hub import resolve_hub_name
from engine.model.runners.decoder import Decoder, is_alike
from engine.predict.capacity import context_length
from engine.spec.model import BUNDLED, RESOURCES, ModelSpec
from engine.wire.events import ModelInfo

SHAPE_SEED = 0
PROBE_ROWS = 5
PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
EDGE_BYTES = 1 << 20


@dataclass(eq=False)
class LoadedModel:
    """A model ready to step, its tokenizer if it has one, and what is known about it."""

    info: ModelInfo
    model: Any
    tokenizer: PreTrainedTokenizerBase | None
    device: torch.device
    native_attention: str
    cache_argument: str
    keeps_logits: bool
    takes_positions: bool
    decoder: Decoder | None = None

    @property
    def max_length(self) -> int:
        return context_length(self.info.geometry)

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end a text."""
        generation = getattr(self.model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None) or self.model.config.get_text_config().eos_token_id
        return frozenset(i for i in (ends if isinstance(ends, list | tuple) else [ends]) if isinstance(i, int))

    @torch.inference_mode()
    def forward(
        self,
        ids: torch.Tensor,
        cache: Cache | None,
        probe: Probe | None = None,
        all_logits: bool = False,
        padding: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        check: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """Feed `ids` `[B, T]`; returns logits `[B, T or 1, V]`. With a probe, the newest query's weights land in it.

        A ragged batch is right-aligned: `padding` `[B, S + T]` is 0 where a row has no token, and `position_ids`
        `[B, T]` say where its tokens stand. `check` is called at every layer whose attention is ours and raises to end
        the forward; what it has put into the cache by then stays there.
        """
        if self.decoder and cache is not None and padding is None and self.decoder.takes(ids):
            return self.decoder(ids, cache, probe, None, all_logits, check)
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        if padding is not None:
            arguments["attention_mask"] = padding
            if self.takes_positions:
                arguments["position_ids"] = position_ids
        if cache is not None:
            arguments[self.cache_argument] = cache
        if self.keeps_logits and not all_logits:
            arguments["logits_to_keep"] = 1
        if self.info.captures_attention:
            arguments.update(probe=probe, check=check)
        elif probe is not None and self.info.geometry.attention_layers:
            arguments["output_attentions"] = True
        output = self.model(ids, **arguments)
        if "output_attentions" in arguments and output.attentions is not None:
            rows = [a for a in output.attentions if a is not None]
            for layer, row in zip(self.info.geometry.attention_layers, rows, strict=False):
                probe.weights[layer.index] = row[:, :, -1].float()  # type: ignore[union-attr]
        logits: torch.Tensor = output.logits
        return logits if all_logits else logits[:, -1:]

    @torch.inference_mode()
    def reference_logits(self, ids: torch.Tensor, record: Cache | None = None) -> torch.Tensor:
        """Logits `[T, V]` of one forward without any cache, through the model's own attention: the yardstick.

        An empty `record` is given the K and V of that forward; nothing is ever read from it.
        """
        arguments = {"use_cache": False} if record is None else {"use_cache": True, self.cache_argument: record}
        self.model.set_attn_implementation(self.native_attention)
        try:
            return self.model(ids, **arguments).logits[0]  # type: ignore[no-any-return]
        finally:
            if self.info.captures_attention:
                self.model.set_attn_implementation(ATTENTION)


def load(spec: ModelSpec, progress: Callable[[str, int, int | None], None] | None = None) -> LoadedModel:
    """Load a model or raise `InputError`; nothing of a failed attempt remains."""
    register()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    report = progress or (lambda label, done, total: None)
    device = pick_device(spec.device)
    source = find_source(spec, report)
    dtype = pick_dtype(spec, source.config, device)
    geometry = CacheGeometry.from_config(source.config)
    report(source.label, 0, None)
    model = source.build(dtype, None).to(device).eval()
    native = model.config._attn_implementation
    captures = bool(geometry.attention_layers) and runs_through_registry(model)
    if geometry.attention_layers and not captures:
        model = eager(model, source, dtype).to(device).eval()
    tokenizer, tokenizer_note = find_tokenizer(spec, source)
    signature = inspect.signature(model.forward).parameters
    torch.set_num_threads(spec.num_threads or max(1, (os.cpu_count() or 2) - 1))
    info = describe(spec, source, model, tokenizer, geometry, captures, device, dtype, tokenizer_note)
    return LoadedModel(
        info,
        model,
        tokenizer,
        device,
        native if captures else model.config._attn_implementation,
        "past_key_values" if "past_key_values" in signature else "cache_params",
        "logits_to_keep" in signature,
        "position_ids" in signature,
        decoder_of(model, geometry) if captures else None,
    )


@dataclass(frozen=True, eq=False)
class Source:
    """Where a model comes from: a folder with weights, or only a shape (no folder)."""

    config: Any
    folder: Path | None
    label: str
    name: str

    def build(self, dtype: torch.dtype, attention: str | None) -> Any:
        """A fresh model, with transformers' default attention or the one named."""
        if self.folder is None:
            return build_shape(self.config, dtype, self.name, attention)
        return load_weights(self.folder, self.config, dtype, attention)


def find_source(spec: ModelSpec, report: Callable[[str, int, int | None], None]) -> Source:
    if spec.shape_config is not None:
        name = f"{spec.shape_name} (shape only)"
        return Source(read_config(spec.shape_config), None, "Building random weights", name)
    folder = RESOURCES / "demo_model" if spec.source == BUNDLED else resolve_folder(spec, report)
    config = read_config(folder / "config.json")
    check_weights(folder)
    return Source(config, folder, f"Loading {folder.name}", model_name(spec, folder))


def eager(model: Any, source: Source, dtype: torch.dtype) -> Any:
    """The model on its own eager attention, which reports weights. Some families only take it when they are built."""
    model.set_attn_implementation("eager")
    return model if model.config._attn_implementation == "eager" else source.build(dtype, "eager")


def describe(
    spec: ModelSpec,
    source: Source,
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    geometry: CacheGeometry,
    captures: bool,
    device: torch.device,
    dtype: torch.dtype,
    tokenizer_note: str,
) -> ModelInfo:
    """What is known about a loaded model; the note says what one might not expect of it."""
    notes = []
    if source.folder is None:
        notes.append("random weights: only the shape is real")
    if not geometry.attention_layers:
        notes.append("this architecture keeps a recurrent state and no K and V")
    elif not captures:
        notes.append("this architecture has attention code of its own, which is read through output_attentions")
    if tokenizer_note:
        notes.append(tokenizer_note)
    return ModelInfo(
        name=source.name,
        source=spec.source,
        architecture=type(model).__name__,
        geometry=geometry,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        num_threads=torch.get_num_threads(),
        num_parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        random_weights=source.folder is None,
        has_tokenizer=tokenizer is not None,
        captures_attention=captures,
        fingerprint=fingerprint(source),
        note="; ".join(notes),
        goes_beyond_context=captures and rotates_at_any_position(model),
    )


def leave(model: Any, native: str) -> bool:
    """Back to its own attention; says that ours is not used."""
    model.set_attn_implementation(native)
    return False


def runs_through_registry(model: Any) -> bool:
    """Whether the model's attention goes through our function: two tokens tell. If not, nothing is changed."""
    native = model.config._attn_implementation
    probe = Probe()
    try:
        model.set_attn_implementation(ATTENTION)
        with torch.inference_mode():
            ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            model(ids, past_key_values=DynamicCache(config=model.config), use_cache=True, probe=probe)
    except (TypeError, ValueError, AttributeError):
        return leave(model, native)
    return bool(probe.rows()) or leave(model, native)


def decoder_of(model: Any, geometry: CacheGeometry) -> Decoder | None:
    """The short way through a forward, if this model allows it and both ways agree to the last bit: on one token, and,
    to take chunks of a prompt as well, on several."""
    if not is_alike(model) or any(layer.kind != "full" or layer.window for layer in geometry.layers):
        return None
    if model.get_input_embeddings().num_embeddings < 2:
        return None  # its only token may be padding, whose embedding is zero and tells nothing
    try:
        for is_joined in (True, False):
            decoder = Decoder(model, is_joined)
            if agrees(decoder, model, geometry, 1):
                decoder.takes_chunks = agrees(decoder, model, geometry, PROBE_ROWS)
                return decoder
    except (AttributeError, RuntimeError):  # the same parts, put together otherwise
        return None
    return None


@torch.inference_mode()
def agrees(decoder: Decoder, model: Any, geometry: CacheGeometry, count: int) -> bool:
    """Whether both ways make the same of so many tokens at the last positions, where whatever depends on positions
    shows most, which read rows of noise."""
    token_id = 0 if getattr(model.config, "pad_token_id", None) == 1 else 1  # the embedding of padding may be zero
    ids = torch.full((1, count), token_id, device=model.device)
    start = context_length(geometry) - count
    places = torch.arange(start, start + count, device=model.device)[None]
    mine, cache = noise(model, geometry), noise(model, geometry)
    logits = model(ids, past_key_values=cache, use_cache=True, position_ids=places).logits
    return torch.equal(decoder(ids, mine, None, start, all_logits=True), logits) and same_rows(mine, cache)


def noise(model: Any, geometry: CacheGeometry) -> DynamicCache:
    """A cache of a few random rows, the same ones every time."""
    cache, generator = DynamicCache(config=model.config), torch.Generator().manual_seed(SHAPE_SEED)
    for layer in geometry.layers:
        sizes = [(1, layer.num_kv_heads, PROBE_ROWS, dim) for dim in (layer.key_dim, layer.value_dim)]
        keys, values = (torch.randn(size, generator=generator).to(model.device, model.dtype) for size in sizes)
        cache.update(keys, values, layer.index)
    return cache


def same_rows(one: DynamicCache, other: DynamicCache) -> bool:
    pairs = zip(one.layers, other.layers, strict=True)
    return all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in pairs)


# ---- finding and checking ----------------------------------------------------------------------------------------


def resolve_folder(spec: ModelSpec, report: Callable[[str, int, int | None], None]) -> Path:
    """The folder of a local model or of a hub model that is on this computer."""
    path = Path(spec.source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise InputError(f"'{path}' is a file: give the model's folder, the one that holds config.json.")
    if path.is_absolute() or spec.source.startswith(("./", "../", "~")) or spec.source.count("/") != 1:
        raise InputError(f"There is no model folder at '{spec.source}': check the path.")
    return resolve_hub_name(spec.source, spec.allow_download, report)


def read_config(path: Path) -> Any:
    """The config of a decoder, or an `InputError` that says what is wrong with it."""
    if not path.exists():
        raise InputError(f"'{path}' does not exist: a model folder in Hugging Face layout has a config.json.")
    raw = read_json_object(path, "model config")
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
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"'{raw['model_type']}' is an encoder-decoder; KV Loupe runs decoder-only language models.")
    return config


def check_weights(folder: Path) -> None:
    """Refuse folders without whole safetensors weights before anything is loaded."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [f.name for f in folder.iterdir() if f.suffix in PICKLE_ENDINGS]
        if pickled:
            raise InputError(
                f"'{folder}' has only pickled weights ({pickled[0]}), which can run code when opened: "
                "convert them to safetensors first."
            )
        raise InputError(f"'{folder}' has no .safetensors weights: give a folder that holds a whole model.")
    strange = next((file for file in folder.iterdir() if file.exists() and not (file.is_file() or file.is_dir())), None)
    if strange is not None:  # a pipe would be waited for without end
        raise InputError(f"'{strange}' is no regular file: copy the model anew.")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        check_shards(folder, index)
    elif not (folder / "model.safetensors").is_file():  # transformers reads no other name, and would turn to a pickle
        raise InputError(
            f"'{folder}' has {files[0].name} and neither model.safetensors nor its index: give a folder that holds "
            "a whole model."
        )
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"'{file}' is damaged or cut short ({first_line(error)}): copy it again.") from None


def check_shards(folder: Path, index: Path) -> None:
    try:
        shards = set(read_json_object(index, "index of weights")["weight_map"].values())
    except (InputError, KeyError, AttributeError, TypeError):
        raise InputError(f"'{index}' is not a valid index of weight files: copy it again.") from None
    strange = sorted(str(s) for s in shards if not (isinstance(s, str) and re.fullmatch(r"[\w.-]+\.safetensors", s)))
    if strange:  # transformers would open whatever it names: also a pickle, also in another folder
        raise InputError(
            f"'{index}' names '{strange[0][:80]}', which is no safetensors file of its folder: copy it again."
        )
    missing = sorted(str(s) for s in shards if not (folder / str(s)).is_file())
    if missing:
        raise InputError(f"'{folder}' lacks the weight file {missing[0]} that its index names: copy it too.")


def load_weights(folder: Path, config: Any, dtype: torch.dtype, attention: str | None) -> Any:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except MemoryError:
        raise
    except Exception as error:  # a folder can be broken in more ways than transformers names
        raise InputError(f"The weights in '{folder}' do not fit its config: {first_line(error)}") from None
    for kind, words in (("missing_keys", "lack"), ("mismatched_keys", "have another shape for")):
        names = report.get(kind)
        if names:
            raise InputError(
                f"The weights in '{folder}' {words} {sorted(map(key_name, names))[0]} ({len(names)} in all): "
                "config and weights are not of one model."
            )
    return model


def key_name(key: str | tuple[Any, ...]) -> str:
    """The name of a tensor; mismatched ones come with both shapes."""
    return key if isinstance(key, str) else str(key[0])


def build_shape(config: Any, dtype: torch.dtype, source: str, attention: str | None) -> Any:
    """Random weights in the shape of a config, the same ones every time."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SHAPE_SEED)
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
    except (MemoryError, RuntimeError) as error:
        raise InputError(f"The architecture of '{source}' does not fit here: {first_line(error)}") from None
    except Exception as error:  # a config can be wrong in more ways than transformers names
        raise InputError(f"'{source}' describes no decoder that can be built: {first_line(error)}") from None


def find_tokenizer(spec: ModelSpec, source: Source) -> tuple[PreTrainedTokenizerBase | None, str]:
    """The tokenizer of a folder with weights, or the one beside a config; where there is none, a note that says so.

    A shape is looked at for its cache: a tokenizer that cannot be read must not stand in its way.
    """
    beside = spec.shape_config.parent if spec.shape_config is not None else None
    folder = source.folder or beside
    try:
        found = load_tokenizer(folder) if folder is not None else None
    except InputError as error:
        if folder is not beside:
            raise
        return None, f"no tokenizer, prompts are token ids: {error}"
    return found, "" if found is not None else "no tokenizer: prompts are token ids"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizer files fail in as many ways as there are formats
        raise InputError(f"The tokenizer in '{folder}' cannot be read ({first_line(error)}): copy it again.") from None


# ---- small facts -------------------------------------------------------------------------------------------------


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # a device that holds no numbers is none
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"The device '{name}' cannot be used here ({first_line(error)}): use cpu.") from None
    return device


def pick_dtype(spec: ModelSpec, config: Any, device: torch.device) -> torch.dtype:
    """As asked; `auto` is float32 on a CPU, where half precision is rarely faster, and the config's own elsewhere."""
    if spec.dtype != "auto":
        return getattr(torch, spec.dtype)  # type: ignore[no-any-return]
    own = getattr(config.get_text_config(), "dtype", None)
    return torch.float32 if device.type == "cpu" or not isinstance(own, torch.dtype) else own


def model_name(spec: ModelSpec, folder: Path) -> str:
    if spec.source == BUNDLED:
        return "Tales 5M"
    return spec.source if spec.source.count("/") == 1 and not Path(spec.source).exists() else folder.resolve().name


def fingerprint(source: Source) -> str:
    """BLAKE2b over the config, and over size, first and last MiB of every weight file (each holds its header)."""
    if source.folder is None:
        return hashlib.blake2b(source.config.to_json_string().encode(), digest_size=16).hexdigest()
    digest = hashlib.blake2b((source.folder / "config.json").read_bytes(), digest_size=16)
    for file in sorted(source.folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(EDGE_BYTES))
            stream.seek(max(0, size - EDGE_BYTES))
            digest.update(stream.read(EDGE_BYTES))
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
