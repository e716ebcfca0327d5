"""Exports: what is in them, that plain Python reopens them to the last bit, and that they are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import DynamicCache

from engine.errors import InputError
from engine.session.session import Session
from engine.snapshot import save_cache, write
from engine.snapshot.format import ITEM_BYTES
from engine.snapshot.pyramid import HandedOut
from engine.snapshot.read import SnapshotFile
from engine.snapshot.write import Snapshot, header_of, write_snapshot
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.spec.sampling import Prompt
from tests.benchmarks.export_kills import kills
from tests.engine.kills import kill_me, killed
from tests.engine.snapshot.sessions import snapshot as of_session
from tests.engine.tiny import model_of, prompt_ids

KEEPING = [name for name, preset in PRESETS.items() if preset.lossless and not preset.spec.recomputes]


def session_of(architecture: str = "llama", cache: str = "growing", length: int = 9) -> tuple[Session, int]:
    session = Session(model_of(architecture), PRESETS[cache].spec, prefill_chunk=5)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(seq_id, prompt_ids(12, seed=1))
    while session.sequence(seq_id).num_tokens < length + 3:
        session.step()
    return session, seq_id


def export(session: Session, seq_id: int, path: Path, num_tokens: int | None = None, notes: str = "") -> Path:
    kept = of_session(session, seq_id, num_tokens, notes=notes)
    progress = list(write_snapshot(kept, path))
    assert progress == sorted(progress)
    assert progress[-1] == kept.num_bytes
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
            logits = model(torch.tensor([[next_token]]), past_key_values=cache_of_it).logits[0, -1]
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
    session.step()
    with pytest.raises(InputError, match="no K and V"):
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


OLD = b"the old file, whole"


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.suffix == ".safetensors" and p.name != "x.safetensors"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def snapshot() -> Snapshot:
    session, seq_id = session_of()
    return of_session(session, seq_id)


def test_a_kill_at_any_byte_leaves_the_old_file(target: Path, snapshot: Snapshot, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "CHUNK_BYTES", 64)
    chance = random.Random(5)
    for _ in range(40):
        deadly = chance.randrange(snapshot.num_bytes)

        def work(deadly: int = deadly) -> None:
            for done in write_snapshot(snapshot, target):
                if done >= deadly:
                    kill_me()

        assert killed(work)
        assert target.read_bytes() == OLD
        assert leftovers(target.parent) == [], "a part is never mistaken for a snapshot"


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_kill_at_any_call_leaves_the_old_file_or_the_new(
    target: Path, snapshot: Snapshot, call: str, monkeypatch: Any
) -> None:
    """`open` is called only to flush the folder, after the rename: from there on the new file is the whole one."""
    real = getattr(os, call)
    for when in ("before", "after"):
        target.write_bytes(OLD)

        def deadly(*args: Any, when: str = when, **kwargs: Any) -> Any:
            result = real(*args, **kwargs) if when == "after" else None
            kill_me()
            return result

        def work(deadly: Callable[..., Any] = deadly) -> None:
            # mkstemp opens too: it takes the real one
            progress = write_snapshot(snapshot, target)
            next(progress)
            setattr(os, call, deadly)
            for _ in progress:
                pass

        assert killed(work)
        if call == "open" or (call == "replace" and when == "after"):
            with safe_open(target, framework="pt") as opened:
                assert opened.metadata()["format"] == "kvloupe-snapshot"
        else:
            assert target.read_bytes() == OLD
        assert leftovers(target.parent) == []


def test_a_kill_anywhere_leaves_the_old_file_or_the_new_and_nothing_else() -> None:
    """The long form is `tests/benchmarks/export_kills.py`."""
    tally = kills(60, seed=3)
    assert (tally.lost, tally.partial, tally.stray) == (0, 0, 0)
    assert sum(count for fate, count in tally.outcomes.items() if fate.startswith("killed")) > 40
    assert any(fate.endswith("the new file") and fate.startswith("killed") for fate in tally.outcomes)


def test_the_next_export_clears_what_a_kill_left_and_nothing_of_a_living_one(target: Path, snapshot: Snapshot) -> None:
    def work() -> None:
        dying = write_snapshot(snapshot, target)
        next(dying)
        kill_me()

    living = write_snapshot(snapshot, target)
    next(living)
    assert killed(work)
    assert len(list(target.parent.iterdir())) == 3, "the old file, a living part and a dead one"
    list(write_snapshot(snapshot, target))
    assert len(list(target.parent.iterdir())) == 2
    list(living)
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    with safe_open(target, framework="pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"


def test_cancel_at_any_moment_leaves_no_trace(target: Path, snapshot: Snapshot, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "CHUNK_BYTES", 256)
    steps = sum(1 for _ in write_snapshot(snapshot, target.with_name("other")))
    target.with_name("other").unlink()
    for stop in (1, 2, steps // 2, steps - 1, steps):
        progress = write_snapshot(snapshot, target)
        for _ in range(stop):
            next(progress)
        progress.close()  # type: ignore[attr-defined]
        assert target.read_bytes() == OLD
        assert [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("notes", ["", "a", "ab", "Zoë", "\ud800", "x" * 1001])
def test_tensors_begin_at_a_multiple_of_eight(notes: str) -> None:
    """Whoever maps the file into memory reads numbers where they are aligned."""
    header = header_of(Snapshot({"a": torch.zeros(3)}, {"notes": notes}))
    length = int.from_bytes(header[:8], "little")
    assert len(header) == 8 + length
    assert length % 8 == 0
    assert json.loads(header[8:])["a"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(target: Path, snapshot: Snapshot, share: float) -> None:
    """The system refuses to let a file grow further, as a full disk does."""
    whole = snapshot.num_bytes + len(header_of(snapshot))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(whole * share), hard))
    try:
        with pytest.raises(InputError, match="could not be written") as caught:
            list(write_snapshot(snapshot, target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert target.read_bytes() == OLD
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_places_that_cannot_be_written(tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (
        tmp_path / "folder",
        tmp_path / "none" / "x.safetensors",
        tmp_path / "file" / "x.safetensors",
        tmp_path / ("n" * 300),
        tmp_path / "a\0b",
        Path("/proc/x.safetensors"),
    ):
        with pytest.raises(InputError) as caught:
            list(write_snapshot(snapshot, path))
        assert str(path) in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "here").mkdir()
    real, link = tmp_path / "real" / "a.safetensors", tmp_path / "here" / "b.safetensors"
    real.write_bytes(OLD)
    real.chmod(0o600)
    link.symlink_to(Path("..") / "real" / "a.safetensors")
    list(write_snapshot(snapshot, link))
    assert os.readlink(link) == "../real/a.safetensors"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600, "who may read it is its owner's choice"
    with safe_open(real, framework="pt") as opened:
        assert opened.metadata()["format"] == "kvloupe-snapshot"
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["b.safetensors"]
    dangling = tmp_path / "here" / "c.safetensors"
    dangling.symlink_to(tmp_path / "real" / "new.safetensors")
    list(write_snapshot(snapshot, dangling))
    assert dangling.is_symlink()
    assert (tmp_path / "real" / "new.safetensors").is_file()


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path, snapshot: Snapshot) -> None:
    pipe, loop, to_device = tmp_path / "pipe", tmp_path / "loop", tmp_path / "null"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    to_device.symlink_to("/dev/null")
    for path in (pipe, to_device, Path("/dev/null")):
        with pytest.raises(InputError, match="no regular file"):
            list(write_snapshot(snapshot, path))
    with pytest.raises(InputError, match="cannot be written"):
        list(write_snapshot(snapshot, loop))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loop", "null", "pipe"]
    assert all(path.is_symlink() for path in (loop, to_device))


@pytest.mark.parametrize(
    "name", ["film.mkv.part", ".film.mkv.part", ".film.mkv.download.part", ".film.mkv.a1b2c3d4.part"]
)
def test_an_export_leaves_strangers_files_alone(tmp_path: Path, snapshot: Snapshot, name: str) -> None:
    stranger = tmp_path / name
    stranger.write_text("half a film")
    list(write_snapshot(snapshot, tmp_path / "film.mkv"))
    assert stranger.read_text() == "half a film"


def test_notes_that_are_no_text_do_not_cost_the_export(tmp_path: Path) -> None:
    """A lone surrogate, as a file name or a paste may bring it, has no UTF-8."""
    session, seq_id = session_of()
    path = export(session, seq_id, tmp_path / "x.safetensors", notes="a\ud800b\x00")
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["notes"] == "a?b\x00"


def test_what_no_reader_would_open_is_not_written(target: Path) -> None:
    session, seq_id = session_of()
    for kept, said in (
        (of_session(session, seq_id, notes="x" * (17 << 20)), "its header has"),
        (
            Snapshot({}, {**of_session(session, seq_id).manifest, "num_tokens": str((1 << 24) + 1)}),
            "16,777,217 tokens, of 1",
        ),
    ):
        with pytest.raises(InputError, match=f"cannot be kept as a snapshot: .*{said}"):
            list(write_snapshot(kept, target))
        assert target.read_bytes() == OLD
        assert [p.name for p in target.parent.iterdir()] == [target.name]


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

    parts = HandedOut(make)  # type: ignore[arg-type]
    assert [float(parts.take(name, n)) for name in ("keys", "values") for n in (2, 0, 1)] == [2.0, 0.0, 1.0] * 2
    assert made == ["keys", "values"]
    assert not parts._left
