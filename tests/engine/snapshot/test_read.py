"""A snapshot opened without torch: the numbers attention read, as little of the file as is asked for, every version."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import InputError
from engine.snapshot.read import SnapshotFile
from engine.spec.codec import PARTS
from engine.spec.sampling import Prompt
from engine.wire.records import StepRecord
from tests.engine.snapshot.crafted import Crafted, changed, framed
from tests.engine.snapshot.sessions import begun, kept, small, step
from tests.engine.snapshot.test_resume import SPECS
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("form", ["stored", "rows"])
@pytest.mark.parametrize("name", SPECS)
def test_rows_are_those_that_attention_reads(name: str, form: str, tmp_path: Path) -> None:
    """Codes are decoded in NumPy, to the last bit, whole or in part."""
    session = begun(SPECS[name])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", form=form)) as file:
        for layer in range(2):
            held = session.cache_of(0).rows(layer)
            assert held is not None
            for tensor, rows in zip(PARTS, (held.keys, held.values), strict=True):
                for head in range(2):
                    expected = rows[0, head].float().numpy()
                    found = file.rows(layer, tensor, head)
                    assert np.array_equal(found, expected)
                    some = range(3, len(expected) - 2)
                    assert np.array_equal(file.rows(layer, tensor, head, some), expected[3:-2])
            for head in range(2):
                places = file.positions(layer, head)
                mine = (
                    held.positions[head].numpy() if held.positions is not None else held.first + np.arange(len(places))
                )
                assert np.array_equal(places, mine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["growing", "int8", "fp8", "kivi-2"])
def test_rows_of_half_precision(name: str, dtype: str, tmp_path: Path) -> None:
    from engine.model.loader import load
    from engine.session.session import Session
    from engine.spec.model import ModelSpec
    from tests.engine.tiny import write_config

    model = load(ModelSpec(f"shape:{write_config('llama', tmp_path)}", dtype=dtype, device="cpu", num_threads=1))  # type: ignore[arg-type]
    session = Session(model, SPECS[name])
    session.submit(Prompt(token_ids=prompt_ids(21)))
    for _ in range(4):
        step(session)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert np.array_equal(file.rows(1, "keys", 1), held.keys[0, 1].float().numpy())
        assert np.array_equal(file.rows(1, "values", 0), held.values[0, 0].float().numpy())


def test_tokens_texts_records_logits_and_attention(tmp_path: Path) -> None:
    session = begun(small("h2o"), steps=0)
    records = [step(session) for _ in range(4)]
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", records=tuple(records))) as file:
        assert file.token_ids == tuple(session.sequence(0).token_ids)
        assert file.token_texts == tuple(map(session.text_of, session.sequence(0).token_ids))
        found = file.records
        assert len(found) == 4
        assert [record.step for record in found] == [record.step for record in records]
        newest: StepRecord = found[-1]
        assert newest.sequences[0].candidates == records[-1].sequences[0].candidates
        assert newest.cache == records[-1].cache
        assert newest.evictions[0].rule == records[-1].evictions[0].rule
        rows, expected = newest.sequences[0].rows, records[-1].sequences[0].rows
        assert rows is not None
        assert expected is not None
        assert np.array_equal(rows.key_norm, expected.key_norm)
        logits = session.logits(0)
        assert logits is not None
        assert np.array_equal(file.numbers("logits"), logits.numpy())
        attention = file.attention(1)
        assert attention is not None
        assert attention.shape == (4, session.sequence(0).num_tokens)
        assert np.allclose(np.nansum(attention, 1), 1, atol=1e-5)
        with pytest.raises(IndexError):
            found[4]


def test_chosen_layers_and_heads(tmp_path: Path) -> None:
    session = begun(small("kivi-4"))
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", layers=(1,), kv_heads=(1,))) as file:
        assert [entry.index for entry in file.layers] == [1]
        assert file.layers[0].heads == (1,)
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert np.array_equal(file.rows(1, "keys", 1), held.keys[0, 1].numpy())
        for wrong in ((0, "keys", 1), (1, "keys", 0), (7, "values", 0)):
            with pytest.raises(InputError, match=r"has no (layer|head)"):
                file.rows(*wrong)  # type: ignore[arg-type]
    for wanted in ({"layers": (2,)}, {"kv_heads": (5,)}, {"layers": (-1,)}):
        with pytest.raises(InputError, match="There is no"):
            kept(session, tmp_path / "y.safetensors", **wanted)


def test_the_preview_shows_where_rows_are_large_and_what_is_not_finite(tmp_path: Path) -> None:
    session = begun(small("growing"))
    held = session.cache_of(0).rows(1)
    assert held is not None
    with torch.inference_mode():
        held.keys[0, :, 7, :3] = 1000.0
        held.values[0, 0, 2, 5] = float("nan")
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        preview = file.array("preview")
    assert preview.shape == (2, 2, 24, 96)
    keys, values = preview[1]
    count = held.keys.shape[2]
    assert np.unravel_index(keys.argmax(), keys.shape)[1] == 7
    assert keys.max() == 254
    assert (values == 255).any(0).nonzero()[0].tolist() == [2]
    assert (keys[:, count:] == 0).all()
    assert (keys[:, :count] > 0).all()


# ---- versions to come ---


@pytest.mark.parametrize("version", ["5", "17"])
def test_a_newer_version_is_refused_by_its_number(version: str, tmp_path: Path) -> None:
    path = kept(begun(SPECS["dynamic"]), tmp_path / "x.safetensors")
    path.write_bytes(changed(path.read_bytes(), lambda file: file.say(format_version=version)))
    with pytest.raises(InputError, match=f"has version {version} .* up to 4: update"):
        SnapshotFile(path)


# ---- what opening costs ------------------------------------------------------------------------------------------


def sparse(path: Path, num_tokens: int) -> int:
    """A snapshot of two layers with so many tokens, its numbers all zero and nowhere on the disk; returns its size."""
    layers, entries, at = [], {}, 0
    for index in range(2):
        layers.append(
            {"index": index, "kind": "full", "num_kv_heads": 4, "heads": [0, 1, 2, 3], "key_dim": 64, "value_dim": 64,
             "dtype": "float32", "num_rows": num_tokens}
        )  # fmt: skip
        for part in ("keys", "values"):
            size = 4 * num_tokens * 64 * 4
            entries[f"layers.{index}.{part}"] = {
                "dtype": "F32", "shape": [1, 4, num_tokens, 64], "data_offsets": [at, at + size]
            }  # fmt: skip
            at += size
    for name in ("token_ids", "positions"):
        entries[name] = {"dtype": "I64", "shape": [1, num_tokens], "data_offsets": [at, at + 8 * num_tokens]}
        at += 8 * num_tokens
    sums = dict.fromkeys(entries, "0" * 8)
    crafted = Crafted({"format": "kvloupe-snapshot", "format_version": "3", "checksum_kind": "crc32"}, entries, b"")
    header = crafted.say(num_tokens=num_tokens, layers=layers, checksums=sums, dtype="float32").bytes()
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + at)
    return len(header) + at


def test_opening_and_a_first_look_read_as_much_of_a_large_file_as_of_a_small_one(tmp_path: Path) -> None:
    """Counted in bytes: 4 GB lie there, and what is read is the header and the rows that are looked at."""
    sizes, costs = [], []
    for number, num_tokens in enumerate((1000, 1_000_000)):
        path = tmp_path / f"{number}.safetensors"
        sizes.append(sparse(path, num_tokens))
        tracemalloc.start()
        with SnapshotFile(path) as file:
            file.rows(1, "values", 2, range(1000))
            costs.append((file.bytes_read, tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
    assert sizes[1] > 4 * 10**9
    (small_read, _), (large_read, large_memory) = costs
    assert abs(large_read - small_read) < 200, "numbers in the header are longer by some digits"
    assert large_read < 1000 * 64 * 4 + 4096
    assert large_memory < 4 << 20
    os.truncate(tmp_path / "1.safetensors", 0)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = kept(begun(small("kivi-4")), tmp_path / "x.safetensors")
    code = (
        "import sys; from pathlib import Path; from engine.snapshot.read import SnapshotFile; "
        "from engine.snapshot.verify import verified; "
        f"f = SnapshotFile(Path({str(path)!r})); print(f.rows(1, 'keys', 1).shape, verified(f.path).is_sound, "
        "'torch' in sys.modules); import engine.loop.loop, engine.opened.file as opened; "
        "opened.OpenedSnapshot(f.path); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["(30,", "16)", "True", "False", "False"], "what shows one needs no transformers"


# ---- files that go away, and what is none ------------------------------------------------------------------------


def test_a_file_that_is_cut_short_while_it_is_open_is_an_error_then(tmp_path: Path) -> None:
    path = kept(begun(small("growing")), tmp_path / "x.safetensors")
    with SnapshotFile(path) as file:
        os.truncate(path, file.file_bytes // 4)
        with pytest.raises(InputError, match="became shorter while it was read"):
            file.rows(1, "values", 1)


def test_a_file_that_is_replaced_while_it_is_open_stays_what_it_was(tmp_path: Path) -> None:
    session = begun(small("growing"))
    path = kept(session, tmp_path / "x.safetensors")
    with SnapshotFile(path) as file:
        step(session)
        kept(session, path)
        assert len(file.rows(0, "keys", 0)) == 30
    with SnapshotFile(path) as file:
        assert len(file.rows(0, "keys", 0)) == 31


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path, "it is a folder"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "pipe", "a device or a pipe"),
        (Path("/dev/zero"), "a device or a pipe"),
        (tmp_path / "a\0b", "null"),
        (tmp_path / ("n" * 300), "too long"),
    ):
        with pytest.raises(InputError, match=reason):
            SnapshotFile(path)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """Of files that are refused as well."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(framed(b'{"__metadata__":{}}'))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(InputError):
            SnapshotFile(path)
    with SnapshotFile(kept(begun(SPECS["dynamic"]), path)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_other_models_have_their_own_rows(tmp_path: Path) -> None:
    session: Any = begun(SPECS["dynamic"], architecture="gemma3_text")
    assert model_of("gemma3_text") is session.model
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        assert [file.positions(i, 0)[0] for i in range(4)] == [23, 0, 23, 0]
