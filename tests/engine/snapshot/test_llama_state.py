"""State files that a real llama.cpp wrote (llama/*.bin: libllama 0.5.0, 32 tokens of the bundled model; d64_*: 16
tokens of a random model whose head dimension is 64), against what transformers computes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.client.inline import InlineClient
from engine.errors import InputError
from engine.files.text import GGUF_MAGIC
from engine.opened.file import OpenedSnapshot
from engine.snapshot import llama_state
from engine.snapshot.foreign import snapshot_of_file
from engine.snapshot.llama_state import hadamard, read_state
from engine.snapshot.npz import ForeignCache
from engine.snapshot.verify import verified
from engine.snapshot.write import write_snapshot
from engine.spec.cache import CacheSpec
from engine.spec.model import RESOURCES, ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import LoadModel, StartComparison, SubmitPrompt, TakePicture
from engine.wire.comparison import OtherFile
from engine.wire.pictures import HeadPicture, HeadRequest

FILES = Path(__file__).parent / "llama"
CONFIG = RESOURCES / "demo_model" / "config.json"
BOUNDS = {"f32": 3e-5, "f16_transposed_v": 8e-3, "q8_0": 0.1, "q4_0": 1.25}  # recorded: 8.2e-6, 4.9e-3, 0.086, 1.2
F32 = (FILES / "f32.bin").read_bytes()
Value = int | str | tuple[int, ...]


def gguf_of(path: Path, family: str = "llama", **facts: Value) -> Path:
    """The header of a GGUF of the bundled model's shape, with other `facts`."""
    kv_heads, shape = 4, {"block_count": 6, "embedding_length": 256, "attention.head_count": 8}
    own = {"attention.head_count_kv": kv_heads, "attention.key_length": 32, "attention.value_length": 32}
    all_facts = shape | own | {"rope.dimension_count": 32} | {key.replace("__", "."): v for key, v in facts.items()}
    content = [_pair("general.architecture", family), _pair("general.name", "demo")]
    content += [_pair(f"{family}.{key}", value) for key, value in all_facts.items()]
    content += [_pair("tokenizer.ggml.model", "no_vocab")]
    path.write_bytes(GGUF_MAGIC + struct.pack("<IQQ", 3, 0, len(content)) + b"".join(content))
    return path


def _pair(key: str, value: Value) -> bytes:
    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    match value:
        case str():
            return text(key) + struct.pack("<I", 8) + text(value)
        case tuple():
            return text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
        case _:
            return text(key) + struct.pack("<II", 4, value)


def read(name: str, model: Path) -> ForeignCache:
    """A recording; skips the test for quantised ones where the package that decodes them is not installed."""
    if "q" in name:
        pytest.importorskip("gguf")
    return read_state(FILES / f"{name}.bin", model)


@pytest.fixture(scope="module")
def reference() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V `[1, H_kv, S, D]` of each layer as transformers computes them from the ids in the recordings."""
    model = AutoModelForCausalLM.from_pretrained(CONFIG.parent, dtype=torch.float32)
    ids = read_state(FILES / "f32.bin", CONFIG).token_ids
    with torch.inference_mode():
        layers = model(torch.tensor([ids])).past_key_values.layers
    return [(layer.keys, layer.values) for layer in layers]


@pytest.mark.parametrize("name", BOUNDS)
def test_rows_are_those_of_transformers(name: str, reference: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    cache = read(name, CONFIG)
    assert "turned from pairs into halves" in cache.fields["notes"]
    for layer, wanted in enumerate(reference):
        assert cache.layers[layer].positions.tolist() == [list(range(32))] * len(wanted[0][0])
        for rows, right in zip(cache.layers[layer][:2], wanted, strict=True):
            assert np.abs(rows - right.numpy()).max() < BOUNDS[name]


def test_a_rotated_cache_is_turned_back(tmp_path: Path) -> None:
    shape = {"block_count": 2, "embedding_length": 128, "attention__head_count": 2, "attention__head_count_kv": 2}
    dims = {"attention__key_length": 64, "attention__value_length": 64, "rope__dimension_count": 64}
    model = gguf_of(tmp_path / "x.gguf", **shape, **dims)
    plain, rotated = read("d64_f32", model), read("d64_q8_0", model)
    assert "rotation of quantised rows undone" in rotated.fields["notes"]
    assert "rotation" not in plain.fields["notes"]
    for layer, wanted in plain.layers.items():
        for rows, right in zip(rotated.layers[layer][:2], wanted[:2], strict=True):
            assert np.abs(rows - right).max() < 0.13
    older = tmp_path / "older.bin"
    older.write_bytes(changed((FILES / "d64_q8_0.bin").read_bytes(), 4, 2))
    assert "as stored: whether quantised rows are rotated" in read_state(older, model).fields["notes"]


def test_hadamard_is_its_own_inverse() -> None:
    assert np.allclose(hadamard(64) @ hadamard(64), np.eye(64), atol=1e-6)


@pytest.mark.parametrize(
    ("family", "words"), [("qwen2", "in the order of transformers"), ("command-r", "keys as stored")]
)
def test_keys_of_other_ropes_are_left_as_they_are(family: str, words: str, tmp_path: Path) -> None:
    turned = read_state(FILES / "f16_transposed_v.bin", gguf_of(tmp_path / "llama.gguf"))
    left = read_state(FILES / "f16_transposed_v.bin", gguf_of(tmp_path / "x.gguf", family))
    assert words in left.fields["notes"]
    assert np.array_equal(left.layers[0][1], turned.layers[0][1])
    assert not np.array_equal(left.layers[0][0], turned.layers[0][0])


def test_cells_in_any_order_and_empty_streams(tmp_path: Path) -> None:
    whole = (FILES / "f32.bin").read_bytes()
    at = 4 * 3 + 4 * 32  # behind the ids: streams, cells, then 12 bytes a cell
    swapped = bytearray(whole)
    swapped[at + 8 : at + 8 + 24] = whole[at + 20 : at + 32] + whole[at + 8 : at + 20]
    swapped[at : at + 4] = struct.pack("<III", 3, 0, 32)[:4]
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(swapped[: at + 4]) + bytes(4) + bytes(swapped[at + 4 :]) + bytes(4))
    found, right = read_state(path, CONFIG), read_state(FILES / "f32.bin", CONFIG)
    assert np.array_equal(found.layers[0].positions, right.layers[0].positions)
    assert np.array_equal(found.layers[0][0][:, :, [1, 0, *range(2, 32)]], right.layers[0][0])


OUTPUTS = struct.pack("<IiQ", 1, 31, 2048) + bytes(4 * 2048) + struct.pack("<Q", 0)


@pytest.mark.parametrize("outputs", [b"", OUTPUTS, bytes(20)], ids=["none", "logits", "none, as it was written before"])
@pytest.mark.parametrize("version", [9, 10])
def test_the_state_of_a_whole_context(outputs: bytes, version: int, tmp_path: Path) -> None:
    """The same cells, behind the architecture and the outputs of the newest batch."""
    at, path = 12 + 4 * 32, tmp_path / "x.bin"
    ids = F32[8:at]
    path.write_bytes(b"nsgg" + struct.pack("<I", version) + ids + struct.pack("<I", 5) + b"llama" + outputs + F32[at:])
    found, right = read_state(path, CONFIG), read_state(FILES / "f32.bin", CONFIG)
    assert found.token_ids == right.token_ids
    assert all(np.array_equal(found.layers[i].values, right.layers[i].values) for i in right.layers)
    two = changed(path.read_bytes(), path.stat().st_size - len(F32) + at + 8 + 12 * 5 + 8, 1)
    path.write_bytes(two)
    with pytest.raises(InputError, match="not those of one sequence"):
        read_state(path, CONFIG)


LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of iq4_nl


def blocks(name: str, numbers: np.ndarray) -> tuple[int, bytes, np.ndarray, float]:
    """The ggml type of that name, `numbers` `[rows, width]` in it, what it holds, and how far off that may be."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    if name != "iq4_nl":
        steps = {"bf16": 2**7, "q8_0": 127, "q5_0": 15, "q5_1": 15, "q4_0": 7, "q4_1": 7}[name]
        return int(kind), gguf.quantize(numbers, kind).tobytes(), numbers, float(np.abs(numbers).max()) / steps
    chance = np.random.default_rng(3)  # gguf reads this type and does not write it: half a byte a number, 32 in a block
    places = chance.integers(0, 16, (numbers.size // 32, 32))
    scale = chance.uniform(0.01, 0.1, len(places)).astype("<f2")
    packed = (places[:, :16] | places[:, 16:] << 4).astype(np.uint8)
    held = scale[:, None].astype(np.float32) * np.array(LEVELS, np.float32)[places]
    data = b"".join(one.tobytes() + row.tobytes() for one, row in zip(scale, packed, strict=True))
    return int(kind), data, held.reshape(numbers.shape), 1e-6


@pytest.mark.parametrize("name", ["bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl"])
@pytest.mark.parametrize("dim", [32, 64])
def test_every_cache_type_of_llama_cpp(name: str, dim: int, tmp_path: Path) -> None:
    """A model whose rope is in halves (Qwen), two kv heads, three tokens; rows of 64 are rotated before they are
    quantised, as llama.cpp does."""
    numbers = np.random.default_rng(1).normal(size=(2, 3, 2 * dim)).astype(np.float32)  # K and V
    is_rotated = dim == 64 and name != "bf16"
    state = b"qsgg" + struct.pack("<II3iII", 3, 3, 5, 6, 7, 1, 3)
    state += b"".join(struct.pack("<iIi", position, 1, 0) for position in range(3)) + struct.pack("<II", 0, 1)
    wanted = []
    for part in numbers:
        stored = (part.reshape(-1, dim) @ hadamard(dim)).reshape(3, -1) if is_rotated else part
        kind, data, held, bound = blocks(name, stored)
        back = (held.reshape(-1, dim) @ hadamard(dim)).reshape(3, -1) if is_rotated else held
        wanted.append((back.reshape(3, 2, dim).swapaxes(0, 1), bound * (8 if is_rotated else 1)))
        state += struct.pack("<iQ", kind, len(data) // 3) + data
    (tmp_path / "x.bin").write_bytes(state)
    shape = {"block_count": 1, "attention__head_count_kv": 2, "attention__key_length": dim}
    model = gguf_of(tmp_path / "x.gguf", "qwen2", **shape, attention__value_length=dim, rope__dimension_count=dim)
    found = read_state(tmp_path / "x.bin", model)
    assert f"K {name}, V {name}" in found.fields["cache"]
    assert "in the order of transformers" in found.fields["notes"]
    assert ("rotation" in found.fields["notes"]) == is_rotated
    for rows, (right, bound) in zip(found.layers[0][:2], wanted, strict=True):
        assert np.abs(rows[0] - right).max() <= bound


def test_it_opens_as_a_snapshot(tmp_path: Path) -> None:
    state = tmp_path / "s.bin"
    state.write_bytes((FILES / "f16_transposed_v.bin").read_bytes())
    with pytest.raises(InputError, match=r"does not say of which model it is: put that model's \.gguf"):
        OpenedSnapshot(state)
    gguf_of(tmp_path / "model.gguf")
    opened = OpenedSnapshot(state)
    try:
        assert opened.file.manifest.cache == "llama.cpp, K f16, V f16"
        assert opened.file.manifest.model == "demo"
        assert opened.file.rows(5, "values", 3).shape == (32, 32)
        assert len(opened.token_ids) == 32
    finally:
        opened.close()
    list(write_snapshot(snapshot_of_file(state, CONFIG), tmp_path / "out.safetensors"))
    assert verified(tmp_path / "out.safetensors").is_sound


@pytest.mark.parametrize("is_of_it", [True, False])
def test_it_is_compared_with_a_run_of_its_tokens_whose_model_it_is_taken_for(is_of_it: bool, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    state = tmp_path / "s.bin"
    state.write_bytes((FILES / ("q4_0" if is_of_it else "d64_q8_0")).with_suffix(".bin").read_bytes())
    ids = read_state(FILES / "f32.bin", CONFIG).token_ids
    assert ids is not None
    here = InlineClient()
    here.do(LoadModel(ModelSpec(dtype="float32", device="cpu", num_threads=1), CacheSpec()))
    here.do(SubmitPrompt(Prompt(token_ids=tuple(ids), has_start=True), num_steps=1))
    if not is_of_it:
        with pytest.raises(InputError, match="K and V of 2 layers, and the model it was given has 6"):
            here.do(StartComparison(0, OtherFile(state)))
        return
    here.do(StartComparison(0, OtherFile(state)))
    for layer in range(6):
        request = HeadRequest(0, 32, "keys", layer, 0, 0, 32, 32)
        (drawn,) = (each for each in here.do(TakePicture(request, side="difference")) if isinstance(each, HeadPicture))
        assert 1e-3 < np.abs(drawn.low).max() < BOUNDS["q4_0"]


# ---- bad input -----------------------------------------------------------------------------------------------------


def changed(content: bytes, at: int, number: int) -> bytes:
    return content[:at] + struct.pack("<I", number) + content[at + 4 :]


BAD = {
    "another version": (changed(F32, 4, 4), "of version 4, and versions 2 and 3 are read here: update"),
    "an older version": (changed(F32, 4, 1), "of version 1, and .* newer llama.cpp"),
    "a whole context of an older version": (b"nsgg" + changed(F32, 4, 8)[4:], "of version 8, and versions 9 and 10"),
    "nothing of it": (b"what" + F32[4:], "no state file of llama.cpp"),
    "ids without end": (changed(F32, 8, 0xFFFFFFFF), "cut short"),
    "cells without end": (changed(F32, 144, 0x7FFFFFFF), "1 to .* are read"),
    "rows behind it": (F32 + bytes(100), "goes on for 100 bytes .* several"),
    "two sequences": (changed(F32, 152, 2), "not those of one sequence"),
    "a position twice": (changed(F32, 148, 1), "not those of one sequence"),
    "another type": (changed(F32, 148 + 12 * 32 + 8, 77), "ggml type 77|pip install"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    path, (content, words) = tmp_path / "x.bin", BAD[name]
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        snapshot_of_file(path, CONFIG)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for length in (0, 3, 7, 11, 100, 146, 500, 540, 545, 600, 9000, len(F32) - 1):
        path.write_bytes(F32[:length])
        with pytest.raises(InputError, match=r"cut short|no state file|1 to .* are read"):
            read_state(path, CONFIG)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"block_count": 5}, "K and V of 6 layers, and the model it was given has 5"),
        ({"attention__head_count_kv": 2}, "other rows than 2 kv heads × 32 in f32: .* another model"),
        ({"attention__head_count_kv": (4, 0, 4, 4, 4, 4)}, "recurrent states"),
        ({"block_count": 0}, "no GGUF that can be read"),
        ({"attention__head_count": 0}, "no GGUF that can be read"),
    ],
)
def test_another_model_is_refused(facts: dict[str, Value], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read_state(FILES / "f32.bin", gguf_of(tmp_path / "x.gguf", **facts))


def test_a_gguf_says_what_it_is_good_for(tmp_path: Path) -> None:
    path = gguf_of(tmp_path / "x.gguf")
    with pytest.raises(InputError, match=r"weights .*llama, 6 layers, 4 kv heads × 32.*open the .bin"):
        OpenedSnapshot(path)
    whole = path.read_bytes()
    for length in range(4, len(whole), 41):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"no GGUF that can be read|cut short: give the model|weights"):
            OpenedSnapshot(path)
    path.write_bytes(GGUF_MAGIC + struct.pack("<IQQ", 3, 0, 1 << 60))
    with pytest.raises(InputError, match="no GGUF that can be read"):
        OpenedSnapshot(path)


def test_without_its_package_quantised_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(InputError, match=r"gguf decodes, which is not installed: pip install 'kvloupe\[llama\]'"):
        read_state(FILES / "q4_0.bin", CONFIG)


def test_rows_that_do_not_fit_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Free", (), {"available": 1000})
    monkeypatch.setattr(llama_state.psutil, "virtual_memory", lambda: free)
    with pytest.raises(InputError, match="are free in memory: save fewer tokens"):
        read_state(FILES / "f32.bin", CONFIG)
