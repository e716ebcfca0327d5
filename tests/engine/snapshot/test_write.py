"""Exports: what is in them, that plain Python reopens them to the last bit, and that they are whole or not there."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import DynamicCache

from engine.cache.contract import Scattered, StoredPart
from engine.cache.layers.build import cache_argument
from engine.errors import InputError
from engine.session.session import Session
from engine.snapshot import save_cache, write
from engine.snapshot.format import ITEM_BYTES
from engine.snapshot.read import SnapshotFile
from engine.snapshot.verify import verified
from engine.snapshot.write import SharedTensors, Snapshot, write_snapshot
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.sampling import Prompt
from tests.engine.snapshot.exports import session_of
from tests.engine.snapshot.sessions import kept, step
from tests.engine.snapshot.sessions import snapshot as of_session
from tests.engine.tiny import model_of, prompt_ids

KEEPING = [name for name, preset in PRESETS.items() if preset.lossless and not preset.spec.recomputes]


def export(session: Session, seq_id: int, path: Path, num_tokens: int | None = None, notes: str = "") -> Path:
    whole = of_session(session, seq_id, num_tokens, notes=notes)
    progress = list(write_snapshot(whole, path))
    assert progress == sorted(progress)
    assert progress[-1] == whole.num_bytes
    return path


def reloaded(path: Path, config: Any) -> DynamicCache:
    """As the README does it: plain Python, plain transformers."""
    with safe_open(path, framework="pt") as opened:
        cache = DynamicCache(config=config)
        for i in range(config.num_hidden_layers):
            cache.update(opened.get_tensor(f"layers.{i}.keys"), opened.get_tensor(f"layers.{i}.values"), i)
    return cache


@pytest.mark.parametrize("cache", KEEPING)
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3", "deepseek_v3"])
def test_plain_transformers_goes_on_from_it_to_the_last_bit(architecture: str, cache: str, tmp_path: Path) -> None:
    session, seq_id = session_of(architecture, cache)
    path = export(session, seq_id, tmp_path / "cache.safetensors")
    model = session.model.model
    next_token = session.sequence(seq_id).sampled
    session.step()
    model.set_attn_implementation(session.model.native_attention)
    try:
        with torch.inference_mode():
            cache_of_it = reloaded(path, model.config)
            logits = model(torch.tensor([[next_token]]), **{cache_argument(model): cache_of_it}).logits[0, -1]
    finally:
        model.set_attn_implementation("kvloupe")
    mine = session.logits(seq_id)
    assert mine is not None
    if cache == "static":  # transformers masks the empty room, which adds the numbers up in another order
        assert torch.allclose(mine, logits, atol=1e-5)
    else:
        assert torch.equal(mine, logits)


def test_what_is_in_it(tmp_path: Path) -> None:
    session, seq_id = session_of("gemma3_text", "dynamic", length=20)
    path = export(session, seq_id, tmp_path / "x.safetensors", notes="größer, \u202e 漢字")
    with safe_open(path, framework="pt") as opened:
        manifest = opened.metadata()
        names = set(opened.keys())
        token_ids = opened.get_tensor("token_ids")
        keys = opened.get_tensor("layers.3.keys")
    ids = session.sequence(seq_id).token_ids
    assert token_ids.tolist() == [ids]
    rows = {f"layers.{i}.{t}" for i in range(4) for t in ("keys", "values", "attention")}
    beside = {"token_ids", "positions", "token_texts", "token_texts.offsets", "logits", "preview"}
    assert names == rows | beside
    assert all(isinstance(v, str) for v in manifest.values())
    assert manifest["format_version"] == "3"
    assert manifest["notes"] == "größer, \u202e 漢字"
    assert manifest["fingerprint"] == session.model.info.fingerprint
    assert json.loads(manifest["random_weights"]) is True
    assert json.loads(manifest["step"]) == session.last_step
    assert json.loads(manifest["config"])["model_type"] == "gemma3_text"
    layers = json.loads(manifest["layers"])
    for layer, entry in zip(session.model.info.geometry.attention_layers, layers, strict=True):
        held = session.cache_of(seq_id).rows(layer.index)
        assert held is not None
        assert (entry["index"], entry["first"]) == (layer.index, held.first)
    held = session.cache_of(seq_id).rows(3)
    assert held is not None
    assert torch.equal(keys, held.keys)
    assert {entry["first"] for entry in layers} == {0, 16}, "windows begin later"


def test_every_checksum_is_that_of_the_bytes(tmp_path: Path) -> None:
    """By the words of the format alone, without this program's reader."""
    session, seq_id = session_of()
    raw = export(session, seq_id, tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    manifest = header.pop("__metadata__")
    checksums = json.loads(manifest["checksums"])
    assert checksums.keys() == header.keys()
    assert manifest["checksum_kind"] == "crc32"
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert f"{zlib.crc32(raw[8 + length + start : 8 + length + stop]):08x}" == checksums[name], name
    zeroed = raw[8 : 8 + length].replace(manifest["header_checksum"].encode(), b"0" * 64, 1)
    assert hashlib.sha256(zeroed).hexdigest() == manifest["header_checksum"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_views_of_every_kind_are_written_as_they_read(dtype: torch.dtype, tmp_path: Path) -> None:
    base = torch.arange(2 * 40 * 6, dtype=torch.float32).to(dtype).view(1, 2, 40, 6)
    tensors = {
        "whole": base,
        "rows": base[:, :, 3:17],
        "every other": base[:, :, ::2],
        "turned": base.transpose(1, 2),
        "one row": base[:, :, :1],
        "ids": torch.arange(5)[None],
    }
    path = tmp_path / "x.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "CHUNK_BYTES", 50)
        for _ in write_snapshot(Snapshot(tensors, {"a": "b"}), path):
            pass
    with safe_open(path, framework="pt") as opened:
        for name, tensor in tensors.items():
            assert torch.equal(opened.get_tensor(name), tensor), name


def test_the_past_is_a_prefix_of_the_present(tmp_path: Path) -> None:
    session, seq_id = session_of()
    path = export(session, seq_id, tmp_path / "x.safetensors", num_tokens=6)
    held = session.cache_of(seq_id).rows(0)
    assert held is not None
    with safe_open(path, framework="pt") as opened:
        assert torch.equal(opened.get_tensor("layers.0.keys"), held.keys[:, :, :6])
        assert opened.get_tensor("token_ids").shape == (1, 6)


def test_nothing_to_export_is_refused(tmp_path: Path) -> None:
    session = Session(model_of("mamba"), CacheSpec("growing"))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(5)))
    with pytest.raises(InputError, match="not 0"):
        of_session(session, seq_id)
    llama, other = session_of()
    for count in (0, -1, 13, 10**9):
        with pytest.raises(InputError, match="tokens in its cache"):
            of_session(llama, other, count)


def test_without_a_cache_the_newest_scratch_is_exported(tmp_path: Path) -> None:
    session, seq_id = session_of(cache="none")
    path = export(session, seq_id, tmp_path / "x.safetensors")
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["provenance"] == "recomputed"
        assert opened.get_tensor("layers.0.keys").shape[2] == 12


# ---- whole or not there ------------------------------------------------------------------------------------------


def test_notes_that_are_no_text_do_not_cost_the_export(tmp_path: Path) -> None:
    """A lone surrogate, as a file name or a paste may bring it, has no UTF-8."""
    session, seq_id = session_of()
    path = export(session, seq_id, tmp_path / "x.safetensors", notes="a\ud800b\x00")
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["notes"] == "a?b\x00"


def test_rows_of_16_bits_and_what_stands_beside_them_are_written_layer_by_layer_and_aligned(tmp_path: Path) -> None:
    """What is odd in bytes comes last: nothing is made long before it is written."""
    pairs = [tuple(torch.randn(1, 2, 9001, 32).bfloat16() for _ in range(2)) for _ in range(2)]
    with SnapshotFile(save_cache(pairs, tmp_path / "x.safetensors")) as file:
        names = [entry.name for entry in sorted(file.entries.values(), key=lambda entry: entry.start)]
        for entry in file.entries.values():
            assert (entry.start - file.entries[names[0]].start) % ITEM_BYTES[entry.dtype] == 0, entry.name
    assert names.index("layers.0.values.high") < names.index("layers.1.keys")
    assert names.index("layers.1.keys") < names.index("layers.0.keys.magnitudes")


def test_tensors_that_are_made_together_are_let_go_one_by_one() -> None:
    made: list[str] = []

    def make(name: str) -> tuple[torch.Tensor, ...]:
        made.append(name)
        return tuple(torch.tensor(float(n)) for n in range(3))

    parts = SharedTensors(make)  # type: ignore[arg-type]
    assert [float(parts.pop(name, n)) for name in ("keys", "values") for n in (2, 0, 1)] == [2.0, 0.0, 1.0] * 2
    assert made == ["keys", "values"]
    first = ref(parts.pop("keys", 0))
    assert first() is None, "while the others are still there"


@pytest.mark.parametrize("name", ["paged", "paged-int8"])
@pytest.mark.parametrize("heads", [None, (1,)])
def test_pages_that_lie_scattered_are_gathered_piece_by_piece(
    name: str, heads: tuple[int, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that does not fit into memory twice can be written: no tensor of it is gathered whole."""
    session = Session(model_of("llama"), tuned(PRESETS[name].spec, page_size=2), prefill_chunk=3)
    for seed in (1, 2):
        session.submit(Prompt(token_ids=prompt_ids(9 + seed)))
    while session.sequence(0).num_tokens < 16:
        step(session)
    expected = session.cache_of(0).stored(16).layers[1]
    assert any(isinstance(each, Scattered) for each in expected.keys.kept.values())
    rows = {n: t[:, list(heads or range(t.shape[1]))] for n, t in expected.values.tensors.items()}
    monkeypatch.setattr(StoredPart, "tensors", None)
    path = kept(session, tmp_path / "x.safetensors", kv_heads=heads)
    with SnapshotFile(path) as file:
        for what, tensor in rows.items():
            full = "layers.1.values" if what == "rows" else f"layers.1.values.{what}"
            assert np.array_equal(file.array(full), tensor.numpy())
    assert verified(path).is_sound
