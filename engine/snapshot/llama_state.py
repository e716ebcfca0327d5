"""Reads the state files of llama.cpp, and the headers of its models (GGUF). No torch.

A state file (`llama_state_seq_save_file`, or llama-server's `POST /slots/0?action=save`) holds token ids, the position
of each cell, then K and V of each layer in a ggml type, V perhaps transposed. One of a whole context
(`llama_state_save_file`) has its architecture before them, and until February 2026 the newest logits. Neither names
heads, so these come from the model's GGUF or config.json. Three things are stored otherwise than transformers has them:

* models that were converted from transformers' halves to llama.cpp's NORM rope have their keys in interleaved order;
* since April 2026, quantised rows whose head dimension is a multiple of 64 are rotated by a Hadamard matrix, which the
  file does not say: certain in version 3, unknown in version 2;
* cells stand in any order.

What is certain is undone, everything else is named in `notes`.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from engine.errors import InputError
from engine.files.text import GGUF_MAGIC, SEQUENCE_MAGIC, SESSION_MAGIC, open_regular, read_json_object
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.snapshot.format import MAX_LENGTH, Array
from engine.snapshot.npz import ForeignCache, ForeignLayer
from engine.spec.codec import Part

# The versions that are read, by what a file holds. All writers of the last of each rotate quantised rows.
VERSIONS = {SEQUENCE_MAGIC: (2, 3), SESSION_MAGIC: (9, 10)}
ROTATED_BY = 64
F32, F16, BF16 = 0, 1, 30
PLAIN = (F32, F16, BF16)  # not quantised
MAX_STREAMS, MAX_LAYERS, MAX_WIDTH = 256, 4096, 1 << 20
MAX_KEYS, MAX_ITEMS, MAX_STRING = 1 << 16, 1 << 22, 1 << 20

# By `general.architecture` of a GGUF, or `model_type` of a config: whose keys were put into interleaved order when the
# model was converted, and whose stand in halves in both programs. The order of others is not known here.
INTERLEAVED = ("llama", "mistral", "mixtral", "granite", "smollm3", "olmo", "arcee")
HALVES = (
    *("qwen2", "qwen2moe", "qwen2_moe", "qwen3", "qwen3moe", "qwen3_moe", "gemma", "gemma2", "gemma3", "gemma3_text"),
    *("phi2", "phi", "phi3", "starcoder2", "stablelm", "olmo2", "olmoe", "gptneox", "gpt_neox", "falcon", "nemotron"),
    *("gpt2", "bloom", "mpt"),  # without rope
)


ModelOfState = Path | dict[str, Any]  # a GGUF or config.json, or the config of a model that is at hand


@dataclass(frozen=True)
class LlamaModel:
    """What a model's file says of its cache. `rotary_dim` is None where the file names none."""

    name: str
    family: str
    layers: tuple[LayerGeometry, ...]  # those that a state file can hold
    num_blocks: int
    rotary_dim: int | None = None
    config: str = ""  # of transformers, if the model was given by one


def refuse_gguf(path: Path) -> InputError:
    """Why a GGUF is not opened, and what it is good for."""
    model = read_gguf(path)
    heads = sorted({(each.num_kv_heads, each.key_dim) for each in model.layers})
    shapes = " or ".join(f"{count} kv heads × {dim}" for count, dim in heads[:3]) or "no attention"
    what = f"{model.family or 'unknown'}, {model.num_blocks} layers, {shapes}"
    return InputError(
        f"'{path}' holds the weights of a model for llama.cpp ({what}) and no cache. Beside a state file that "
        "llama.cpp saved with it, it says how to read that: open the .bin. To run the model here, open its folder for "
        "transformers."
    )


# ---- models --------------------------------------------------------------------------------------------------------


def read_model(of: ModelOfState) -> LlamaModel:
    """The cache of a model; raises `InputError` for a file that is neither a GGUF nor a config.json."""
    if isinstance(of, Path) and of.suffix != ".json":
        return read_gguf(of)
    config, folder = (read_json_object(of, "config"), of.absolute().parent.name) if isinstance(of, Path) else (of, "")
    geometry = CacheGeometry.from_config(config)
    layers = tuple(geometry.attention_layers)
    part = config.get("partial_rotary_factor")
    rotary = int(layers[0].key_dim * part) if layers and isinstance(part, int | float) else None
    name = str(config.get("_name_or_path") or folder)
    name = Path(name).name if os.path.isabs(name) else name
    return LlamaModel(name, geometry.model_type, layers, len(geometry.layers), rotary, json.dumps(config))


def read_gguf(path: Path) -> LlamaModel:
    """The cache of a model from the metadata of its GGUF. Neither its weights nor its vocabulary are read."""
    facts: dict[str, Any] = {}
    try:
        with closing(_Bytes(path, "GGUF", "give the model's .gguf, or its config.json")) as content:
            for key, value in _metadata(content):
                if key.startswith("tokenizer.") and "general.architecture" in facts:
                    break  # the vocabulary follows the facts of the architecture
                facts[key] = value
        return _of_facts(facts, path)
    except (struct.error, UnicodeDecodeError, OSError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{path}' is no GGUF that can be read: give the model's .gguf, or its config.json.") from None


def _metadata(content: _Bytes) -> Iterator[tuple[str, Any]]:
    """Keys and values of a GGUF; None for arrays of more than `MAX_LAYERS` items or of strings."""
    if content.take(4) != GGUF_MAGIC:
        raise ValueError("no GGUF")
    version, _, count = content.unpack("<IQQ")
    if version not in (2, 3) or count > MAX_KEYS:
        raise ValueError("another version")
    for _ in range(count):
        key = _string(content).decode("utf-8")
        yield key, _value(content, *content.unpack("<I"))


_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def _value(content: _Bytes, kind: int) -> Any:
    if kind == _STRING:
        return _string(content).decode("utf-8", "replace")
    if kind != _ARRAY:
        return content.unpack(_FORMATS[kind])[0]
    item, count = content.unpack("<IQ")
    if count > MAX_ITEMS:
        raise ValueError("an array without end")
    if item == _STRING:
        for _ in range(count):
            _string(content)
        return None
    raw = content.take(count * struct.calcsize(_FORMATS[item]))
    return list(struct.unpack(f"<{count}{_FORMATS[item][1]}", raw)) if count <= MAX_LAYERS else None


def _string(content: _Bytes) -> bytes:
    (length,) = content.unpack("<Q")
    if length > MAX_STRING:
        raise ValueError("a string without end")
    return content.take(length)


def _of_facts(facts: dict[str, Any], path: Path) -> LlamaModel:
    family = str(facts["general.architecture"])
    of = {key.removeprefix(f"{family}."): value for key, value in facts.items()}
    blocks = int(of["block_count"])
    heads = of["attention.head_count"]
    kv_heads = of.get("attention.head_count_kv", heads)
    kv_heads = kv_heads if isinstance(kv_heads, list) else [kv_heads] * min(blocks, MAX_LAYERS)
    all_heads = max(heads) if isinstance(heads, list) else heads
    default = int(of["embedding_length"]) // int(all_heads)
    key_dim, value_dim = (int(of.get(f"attention.{part}_length") or default) for part in ("key", "value"))
    if not 0 < blocks <= MAX_LAYERS or len(kv_heads) != blocks or not 0 < key_dim <= MAX_WIDTH >= value_dim > 0:
        raise ValueError("impossible sizes")
    layers = tuple(LayerGeometry(i, "full", int(n), key_dim, value_dim, int(n)) for i, n in enumerate(kv_heads) if n)
    rotary = of.get("rope.dimension_count")
    name = str(facts.get("general.name") or path.stem)[:200]
    return LlamaModel(name, family, layers, blocks, None if rotary is None else int(rotary))


# ---- state files ---------------------------------------------------------------------------------------------------


class _Bytes:
    """A file read from front to back; raises `InputError` at its end."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        self._remedy = remedy
        self._stream, self.path = open(open_regular(path, what), "rb"), path  # noqa: SIM115 - closed by `close`
        self.left = os.fstat(self._stream.fileno()).st_size

    def close(self) -> None:
        self._stream.close()

    @property
    def place(self) -> int:
        return self._stream.tell()

    def skip(self, count: int) -> None:
        """Pass over so many bytes; back, where it is negative."""
        if count > self.left:
            raise self._is_cut()
        self._stream.seek(count, os.SEEK_CUR)
        self.left -= count

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        found = self._stream.read(count) if count <= self.left else b""
        if len(found) < count:
            raise self._is_cut()
        self.left -= count
        return found

    def _is_cut(self) -> InputError:
        return InputError(f"'{self.path}' is cut short: {self._remedy}.")

    def unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


def read_state(path: Path, of: ModelOfState) -> ForeignCache:
    """Read a state file with its model. Raises `InputError` for a file that is cut short, of
    another model, of an unknown version or a memory of several parts, and where its rows do not fit in memory."""
    model = read_model(of)
    with closing(_Bytes(path, "state file", "save it with llama.cpp again")) as content:
        return _read(content, model, path)


def _read(content: _Bytes, model: LlamaModel, path: Path) -> ForeignCache:
    magic, version = content.take(4), content.unpack("<I")[0]
    if magic not in VERSIONS:
        raise InputError(f"'{path}' is no state file of llama.cpp: save one with llama-server's /slots?action=save.")
    versions = VERSIONS[magic]
    if version not in versions:
        raise InputError(
            f"'{path}' is a state file of version {version}, and versions {versions[0]} and {versions[1]} are read "
            f"here: {'update KV Loupe' if version > max(versions) else 'save it with a newer llama.cpp'}."
        )
    (count,) = content.unpack("<I")
    ids = np.frombuffer(content.take(4 * count), "<i4").tolist()
    if magic == SESSION_MAGIC:
        _skip_to_memory(content)
    positions, num_empty = _positions(content)
    is_transposed, num_layers = content.unpack("<II")
    _check_model(num_layers, is_transposed, model, path)
    _check_memory(len(positions), model, path)
    order = np.argsort(positions, kind="stable")
    keys = [_rows(content, len(order), each.num_kv_heads, each.key_dim, False) for each in model.layers]
    values = [_rows(content, len(order), each.num_kv_heads, each.value_dim, is_transposed) for each in model.layers]
    if any(content.take(4 * min(num_empty, content.left // 4))):
        raise _several(path)
    if content.left:
        raise InputError(
            f"'{path}' goes on for {content.left:,} bytes behind the rows of its layers: the memory of its model has "
            "several parts (recurrent states or sliding windows), which is not read here."
        )
    undo = partial(undone, model=model, said=(said := dict[str, None]()), is_certain=version == max(versions))
    layers, positions = {}, positions[order]
    for layer, (of_k, k), (of_v, v) in zip(model.layers, keys, values, strict=True):
        k, v = undo("keys", k[:, order], of_k.kind), undo("values", v[:, order], of_v.kind)
        dtype = np.float16 if of_k.kind == of_v.kind == F16 else np.float32
        k, v = (part[None].astype(dtype, copy=False) for part in (k, v))
        layers[layer.index] = ForeignLayer(k, v, np.tile(positions, (layer.num_kv_heads, 1)))
    kinds = sorted({f"K {k.name}, V {v.name}" for (k, _), (v, _) in zip(keys, values, strict=True)})
    fields = {
        "cache": f"llama.cpp, {'; '.join(kinds)}",
        "notes": "; ".join((f"llama.cpp's state file {path.name}, version {version}", *kinds, *said)),
        "model": model.name,
        "architecture": f"{model.family}, from llama.cpp",
        "config": model.config,
        "dtype": str(next(iter(layers.values())).keys.dtype),
    }
    num_tokens = int(positions[-1]) + 1
    are_all = len(ids) >= num_tokens and min(ids) >= 0
    return ForeignCache(layers, ids if are_all else None, num_tokens, fields)


def _positions(content: _Bytes) -> tuple[Array, int]:
    """The positions of the cells of the one sequence in the file, and how many streams without a cell come after it."""
    path = content.path
    (num_streams,) = content.unpack("<I")
    num_cells, num_left = 0, num_streams if num_streams <= MAX_STREAMS else 0
    while num_left and not num_cells:  # one of them has the sequence
        (num_cells,) = content.unpack("<I")
        num_left -= 1
    if not 0 < num_cells <= MAX_LENGTH:
        raise InputError(f"'{path}' holds {num_cells:,} rows, and 1 to {MAX_LENGTH:,} are read: save a sequence.")
    cells = np.frombuffer(content.take(12 * num_cells), "<i4").reshape(num_cells, 3)
    positions = cells[:, 0].astype(np.int64)
    is_plain = (cells[:, 1] == 1).all() and (cells[:, 2] == cells[0, 2]).all() and (positions >= 0).all()
    if not is_plain or positions.max() >= MAX_LENGTH or len(np.unique(positions)) < num_cells:
        raise _several(path)
    return positions, num_left


def _several(path: Path) -> InputError:
    return InputError(
        f"'{path}' has cells that are not those of one sequence of text (of several sequences, or of images): save "
        "one sequence of text."
    )


def _skip_to_memory(content: _Bytes) -> None:
    """Pass over what stands before the cells of a whole context: the architecture, and perhaps the outputs of the
    newest batch (a count, places in the batch, logits, embeddings). No version says whether there are any: they are
    taken for such where they fit, which cells in their place do not."""
    content.skip(content.unpack("<I")[0])
    begin = place = content.place
    try:
        (count,) = content.unpack("<I")
        content.skip(4 * count)
        sizes = []
        for _ in range(2):
            sizes.append(content.unpack("<Q")[0])
            content.skip(4 * sizes[-1])
        memory = content.place
        num_streams, num_cells = content.unpack("<II")
        if all(size % count == 0 if count else not size for size in sizes) and 0 < num_streams <= MAX_STREAMS:
            place = memory if num_cells <= MAX_LENGTH else begin
    except InputError:  # beyond the end of the file
        place = begin
    content.skip(place - content.place)


def _check_model(num_layers: int, is_transposed: int, model: LlamaModel, path: Path) -> None:
    if num_layers != len(model.layers) or len(model.layers) != model.num_blocks or is_transposed > 1:
        raise InputError(
            f"'{path}' has K and V of {num_layers:,} layers, and the model it was given has {len(model.layers):,} with "
            f"attention of {model.num_blocks:,}: give its own model; those with sliding windows or recurrent states "
            "are not read here."
        )


def _check_memory(num_rows: int, model: LlamaModel, path: Path) -> None:
    numbers = sum(each.num_kv_heads * (each.key_dim + each.value_dim) for each in model.layers) * num_rows
    if 3 * 4 * numbers > (free := psutil.virtual_memory().available):  # as numbers, in order, and as a snapshot
        raise InputError(
            f"'{path}' takes {12 * numbers:,} bytes to be read, and {free:,} are free in memory: save fewer tokens."
        )


def _rows(content: _Bytes, count: int, heads: int, dim: int, is_transposed: bool) -> tuple[_Type, Array]:
    """The ggml type of K or V of a layer, and its rows `[H_kv, S, D]`."""
    (kind,) = content.unpack("<i")
    width, item = heads * dim, _Type(kind, content.path)
    if is_transposed:
        size, found = content.unpack("<II")
        fits = (size, found) == (item.num_bytes(1), width)
    else:
        (row_bytes,) = content.unpack("<Q")
        fits = row_bytes == item.num_bytes(width)
    if not fits:
        raise InputError(
            f"'{content.path}' has other rows than {heads} kv heads × {dim} in {item.name}: it was saved with "
            "another model than was given; give its own."
        )
    data = np.frombuffer(content.take(count * item.num_bytes(width)), np.uint8)
    numbers = item.decoded(data.reshape((width, -1) if is_transposed else (count, -1)))
    numbers = numbers.T if is_transposed else numbers
    return item, numbers.reshape(count, heads, dim).swapaxes(0, 1)


class _Type:
    """A ggml type. float32 and float16 are NumPy's; all others are decoded by the package gguf."""

    def __init__(self, kind: int, path: Path) -> None:
        self.kind, self._path = kind, path
        if kind not in (F32, F16):
            try:
                import gguf
            except ImportError:
                raise InputError(
                    f"'{path}' holds rows that the package gguf decodes, which is not installed: "
                    "pip install 'kvloupe[llama]'."
                ) from None
            try:
                self._gguf = gguf.GGMLQuantizationType(kind)
                self.name = str(self._gguf.name.lower())  # in small letters as llama.cpp's options have it
                self.block, self.bytes = gguf.GGML_QUANT_SIZES[self._gguf]
            except (ValueError, KeyError):
                raise self._unknown() from None
        else:
            self.name, self.block, self.bytes = ("f32", 1, 4) if kind == F32 else ("f16", 1, 2)

    def _unknown(self) -> InputError:
        return InputError(
            f"'{self._path}' has rows of ggml type {self.kind}, which the installed gguf does not decode: save them "
            "in another cache type (--cache-type-k), or update gguf."
        )

    def num_bytes(self, width: int) -> int:
        """Bytes of a row of that many numbers; -1 if its blocks do not divide it."""
        return width // self.block * self.bytes if width % self.block == 0 else -1

    def decoded(self, rows: Array) -> Array:
        if self.kind in (F32, F16):
            return rows.view("<f4" if self.kind == F32 else "<f2").astype(np.float32)
        from gguf import dequantize

        try:
            return np.asarray(dequantize(rows, self._gguf), np.float32)
        except NotImplementedError:
            raise self._unknown() from None


# ---- from llama.cpp's numbers to transformers' ---------------------------------------------------------------------


def undone(part: Part, rows: Array, kind: int, model: LlamaModel, said: dict[str, None], *, is_certain: bool) -> Array:
    """Rows `[H_kv, S, D]` as transformers has them, and in `said` what was undone and what is as stored. `is_certain`:
    rows that can be rotated are."""
    dim = rows.shape[-1]
    are_alike = len({(each.key_dim, each.value_dim) for each in model.layers}) == 1  # llama.cpp rotates no others
    if kind not in PLAIN and dim % ROTATED_BY == 0 and are_alike:
        if not is_certain:
            said["as stored: whether quantised rows are rotated is not known of this version"] = None
            return rows
        said["Hadamard rotation of quantised rows undone (llama.cpp's default)"] = None
        size = ROTATED_BY if part == "values" else dim & -dim  # the largest power of two in it
        rows = (rows.reshape(*rows.shape[:-1], -1, size) @ hadamard(size)).reshape(rows.shape)
    if part == "values":
        return rows
    if model.family in HALVES:
        said["keys in the order of transformers, by the rope of its architecture"] = None
        return rows
    if model.family not in INTERLEAVED or model.rotary_dim not in (None, dim) or dim % 2:
        said[f"keys as stored: how llama.cpp orders the numbers of a {model.family} key is not known here"] = None
        return rows
    said["rope order of keys turned from pairs into halves"] = None
    return rows.reshape(*rows.shape[:-1], dim // 2, 2).swapaxes(-1, -2).reshape(rows.shape)


def hadamard(size: int) -> Array:
    """Sylvester's Hadamard matrix `[size, size]`, float32, normalised: its own inverse."""
    found = np.ones((1, 1), np.float32)
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found / np.float32(np.sqrt(size))
