"""A smaller snapshot out of a snapshot, and what else is written of an opened file, without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.session.edits import make_edit
from engine.snapshot.export import estimate, export
from engine.snapshot.gather import written_by
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import resumed
from engine.snapshot.verify import verified
from engine.spec.edit import parse_edit
from engine.wire.exporting import Export
from tests.engine.snapshot.crafted import changed
from tests.engine.snapshot.sessions import begun, goes_on_alike, kept, small
from tests.engine.tiny import model_of


def cut_of(file: SnapshotFile, path: Path, **chosen: Any) -> Path:
    """The smaller file, which is sound and as large as was said."""
    command = Export(path, 0, **chosen)
    *_, (done, total) = export(file, command)
    assert done == total
    assert estimate(file, command).num_bytes == path.stat().st_size
    assert verified(path).is_sound
    return path


def test_an_earlier_step_of_states_alone_is_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        SnapshotFile(kept(begun(small("growing"), architecture="mamba"), tmp_path / "x.safetensors")) as file,
        pytest.raises(InputError, match="states are known of its last step alone"),
    ):
        cut_of(file, tmp_path / "y.safetensors", num_tokens=28)


@pytest.mark.parametrize(
    "name", ["growing", "h2o", "kivi-4", "int8", "fp8", "paged", "sliding", "transformers-quantized"]
)
def test_layers_and_heads_of_a_file_are_those_that_it_has(name: str, tmp_path: Path) -> None:
    with SnapshotFile(kept(begun(small(name), steps=4), tmp_path / "x.safetensors")) as file:
        path = cut_of(file, tmp_path / "y.safetensors", layers=(1,), kv_heads=(1,), notes="a part")
        with SnapshotFile(path) as part:
            (entry,) = part.layers
            assert (entry.index, entry.heads, part.manifest.notes) == (1, (1,), "a part")
            assert part.manifest.form == file.manifest.form, "codes stay codes"
            assert part.manifest.why_not == "not all layers and heads were written"
            for tensor in ("keys", "values"):
                assert np.array_equal(part.rows(1, tensor, 1), file.rows(1, tensor, 1))  # type: ignore[arg-type]
            assert np.array_equal(part.positions(1, 1), file.positions(1, 1))
            assert part.token_ids == file.token_ids
            assert part.token_texts == file.token_texts


@pytest.mark.parametrize("name", ["growing", "kivi-4"])
def test_an_earlier_step_has_its_tokens_and_no_present(name: str, tmp_path: Path) -> None:
    with SnapshotFile(kept(begun(small(name), steps=4), tmp_path / "x.safetensors")) as file:
        assert "logits" in file
        with SnapshotFile(cut_of(file, tmp_path / "y.safetensors", num_tokens=22)) as part:
            assert part.token_ids == file.token_ids[:22]
            assert np.array_equal(part.rows(0, "keys", 1), file.rows(0, "keys", 1, range(22)))
            assert "logits" not in part
            assert part.manifest.why_not == "it was cut out of a snapshot of a later step"
            assert part.manifest.sequence.sampled is None


def test_an_earlier_step_of_rows_beside_states_says_that_it_is_one(tmp_path: Path) -> None:
    path = kept(begun(small("growing"), steps=4, architecture="lfm2"), tmp_path / "x.safetensors")
    with SnapshotFile(path) as file, SnapshotFile(cut_of(file, tmp_path / "y.safetensors", num_tokens=22)) as part:
        assert file.manifest.states
        assert part.manifest.states == ()
        assert part.manifest.why_not == "it was cut out of a snapshot of a later step"


def test_a_part_is_written_by_who_writes_it(tmp_path: Path) -> None:
    path = kept(begun(small("growing"), steps=4), tmp_path / "x.safetensors")
    path.write_bytes(changed(path.read_bytes(), lambda file: file.say(written_by="another program").sealed()))
    with SnapshotFile(path) as file, SnapshotFile(cut_of(file, tmp_path / "y.safetensors", layers=(1,))) as part:
        assert (file.manifest.written_by, part.manifest.written_by) == ("another program", written_by())


def test_an_earlier_step_is_edited_where_a_row_of_it_was(tmp_path: Path) -> None:
    session = begun(small("growing"))
    make_edit(session, parse_edit("zero pos=25:27 layer=1", 0, 30))
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        for count, edited_from in ((24, None), (25, None), (26, 25), (30, 25)):
            with SnapshotFile(cut_of(file, tmp_path / "y.safetensors", num_tokens=count)) as part:
                assert (part.manifest.num_tokens, part.manifest.edited_from) == (count, edited_from)


def test_an_earlier_step_behind_an_encoder_has_all_that_it_read_and_fewer_of_the_decoders_rows(tmp_path: Path) -> None:
    with SnapshotFile(kept(begun(small("paged"), architecture="bart"), tmp_path / "x.safetensors")) as file:
        assert (file.manifest.num_tokens, file.manifest.num_source) == (30, 21)
        with SnapshotFile(cut_of(file, tmp_path / "y.safetensors", num_tokens=25)) as part:
            assert [(e.first, e.num_rows) for e in part.layers] == [(21, 4), (21, 4), (0, 21), (0, 21)]
            assert np.array_equal(part.rows(1, "keys", 0), file.rows(1, "keys", 0, range(4)))
            assert np.array_equal(part.rows(3, "values", 0), file.rows(3, "values", 0))
        with pytest.raises(InputError, match="had no rows yet"):
            cut_of(file, tmp_path / "z.safetensors", num_tokens=21)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [*(("llama", name) for name in ("growing", "h2o", "kivi-4", "paged")), ("lfm2", "growing"), ("mamba", "growing")],
)
def test_decoding_goes_on_from_a_copy_of_all(architecture: str, name: str, tmp_path: Path) -> None:
    session = begun(small(name), architecture=architecture)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        path = cut_of(file, tmp_path / "y.safetensors")
    with SnapshotFile(path) as copy:
        goes_on_alike(session, resumed(model_of(architecture), copy))


@pytest.mark.parametrize("name", ["h2o", "paged"])
def test_decoding_goes_on_from_exact_rows_that_were_asked_for_as_numbers(name: str, tmp_path: Path) -> None:
    """With what their rule remembers, or the order of their pages: of the session, and of a file."""
    session = begun(small(name))
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", form="rows")) as file:
        path = cut_of(file, tmp_path / "y.safetensors", form="rows")
        assert "layers.0.memory" in file or name == "paged"
        with SnapshotFile(path) as copy:
            assert copy.entries.keys() == file.entries.keys()
        goes_on_alike(session, resumed(session.model, file))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"layers": (7,)}, "no layer 7 to export"),
        ({"kv_heads": (5,)}, "no kv head 5"),
        ({"num_tokens": 99}, "has 30 tokens, not 99"),
        ({"num_tokens": 25}, "has evicted rows since"),
    ],
)
def test_what_is_not_in_a_file_is_refused(chosen: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = kept(begun(small("h2o")), tmp_path / "x.safetensors")
    with SnapshotFile(path) as file, pytest.raises(InputError, match=words):
        list(export(file, Export(tmp_path / "y.safetensors", 0, **chosen)))
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
