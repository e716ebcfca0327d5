"""Hostile files: each is refused, or found by `verify`, in one sentence, within bounded time and memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.opened.file import OpenedSnapshot
from engine.session.edits import make_edit
from engine.snapshot.diff import difference
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import resumed
from engine.snapshot.verify import Verified, verified, verify
from engine.spec.cache import PRESETS, tuned
from engine.spec.edit import parse_edit
from engine.wire.pictures import WallRequest
from tests.benchmarks.snapshot_fuzz import survives, used
from tests.effort import effort
from tests.engine.snapshot.attacks import FOUND, REFUSED
from tests.engine.snapshot.crafted import Crafted, changed
from tests.engine.snapshot.mutations import forged, mutated
from tests.engine.snapshot.sessions import begun, kept, small, step
from tests.engine.tiny import model_of

SOUND = {
    "plain": small("growing"),
    "thinned": tuned(PRESETS["h2o"].spec, budget=12),
    "paged": small("paged"),
    "coded": small("kivi-4"),
    "rotated": tuned(small("streamingllm"), rerotate=True),
}
ANOTHER = {"I64": "F64", "I32": "F32", "F32": "I32", "U8": "I8", "F16": "BF16"}  # of the same width


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Whole files, by what is in them, each with records and a note."""
    folder, made = tmp_path_factory.mktemp("sound"), {}
    for name, spec in SOUND.items():
        session = begun(spec, steps=7)
        if name == "thinned":
            for edit in ("mask pos=26", "pin pos=25"):
                make_edit(session, parse_edit(edit, 0, 28))
        records = tuple(step(session) for _ in range(2))
        made[name] = kept(session, folder / f"{name}.safetensors", records=records, notes="a note").read_bytes()
    return made


def test_the_sound_ones_are_sound(sound: dict[str, bytes], tmp_path: Path) -> None:
    for raw in sound.values():
        (tmp_path / "x").write_bytes(raw)
        *progress, found = verify(tmp_path / "x")
        assert isinstance(found, Verified)
        assert found.problems == ()
        assert found.is_sound
        assert progress == sorted(progress)  # type: ignore[type-var]
        assert progress[-1][0] == progress[-1][1]  # type: ignore[index]


def test_there_are_enough_of_them() -> None:
    assert len(REFUSED) + len(FOUND) >= 100


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_when_it_is_opened(name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
    attack, said = REFUSED[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(attack(sound["plain"]))
    tracemalloc.start()
    with pytest.raises(InputError, match=said) as caught:
        SnapshotFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))
    assert peak < 256 << 20
    if name in ("a newer version", "version 1"):  # of which nobody can say whether it is sound
        with pytest.raises(InputError, match=said):
            verified(path)
    else:
        assert not verified(path).is_sound


@pytest.mark.parametrize("kind", SOUND)
def test_each_tensor_has_its_dtype_and_its_number_of_dimensions(
    kind: str, sound: dict[str, bytes], tmp_path: Path
) -> None:
    """Those that may be missing, too: they are read where they are there."""
    path = tmp_path / "x.safetensors"
    for name, entry in Crafted.of(sound[kind]).entries.items():
        wrong = {"shape": [*entry["shape"], 1]}, {"dtype": ANOTHER[entry["dtype"]]}
        for fields in wrong:
            path.write_bytes(changed(sound[kind], lambda file, name=name, of=fields: file.entry(name, **of)))
            with pytest.raises(InputError, match=f"tensor '{name}' is .* and should be"):
                SnapshotFile(path)


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_by_looking_at_the_numbers(name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
    attack, said = FOUND[name]
    path = tmp_path / "x.safetensors"
    kind = "thinned" if "position" in name else "paged" if "page" in name else "plain"
    path.write_bytes(attack(sound[kind]))
    found = verified(path)
    assert not found.is_sound
    assert any(said in problem for problem in found.problems), found.problems


@pytest.mark.parametrize("name", ["a bit of a tensor flipped", "a token id of 2^60", "positions out of order"])
def test_nobody_goes_on_from_it(name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(FOUND[name][0](sound["thinned" if "position" in name else "plain"]))
    with SnapshotFile(path) as file, pytest.raises(InputError):
        resumed(model_of("llama"), file)


@pytest.mark.parametrize("name", [name for name in FOUND if "position" in name])
def test_positions_that_do_not_ascend_are_drawn_and_compared_by_nobody(
    name: str, sound: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(FOUND[name][0](sound["thinned"]))
    (tmp_path / "sound.safetensors").write_bytes(sound["thinned"])
    words = r"the positions of layer 0, head \d do not ascend within its 30 tokens"
    with (
        SnapshotFile(path) as file,
        SnapshotFile(tmp_path / "sound.safetensors") as other,
        pytest.raises(InputError, match=words),
    ):
        list(difference(file, other))
    opened = OpenedSnapshot(path)
    with pytest.raises(InputError, match=words):
        opened.take(WallRequest(0, 30, 29, "keys", False, 20, 8))
    opened.close()


def test_what_is_not_finite_is_told_with_its_place_and_is_no_damage(tmp_path: Path) -> None:
    import torch

    session = begun(small("growing"))
    held = session.cache_of(0).rows(1)
    assert held is not None
    with torch.inference_mode():
        held.keys[0, 1, 7, 3] = float("nan")
        held.keys[0, 1, 8, 3] = float("-inf")
    found = verified(kept(session, tmp_path / "x.safetensors"))
    assert found.is_sound
    assert found.notes == ("'layers.1.keys' holds 1 NaN and 1 infinite numbers, the first at [0, 1, 7, 3]",)


@settings(
    max_examples=effort(120, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(kind=st.sampled_from(sorted(SOUND)), seed=st.integers(0, 2**32))
def test_no_change_of_bytes_ends_in_anything_but_a_sentence(
    kind: str, seed: int, sound: dict[str, bytes], tmp_path: Path
) -> None:
    """The long form is `tests/benchmarks/snapshot_fuzz.py`."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(mutated(sound[kind], seed))
    survives(path)


@settings(
    max_examples=effort(30, 600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kind=st.sampled_from(sorted(SOUND)), seed=st.integers(0, 2**32))
def test_no_file_of_somebody_who_can_do_sums_ends_in_anything_but_a_sentence(
    kind: str, seed: int, sound: dict[str, bytes], tmp_path: Path
) -> None:
    """Pictures, steps, a comparison, an npz and decoding on: all that is done with a file that is opened."""
    path, whole = tmp_path / "x.safetensors", tmp_path / "whole.safetensors"
    path.write_bytes(forged(sound[kind], seed))
    whole.write_bytes(sound[kind])
    if survives(path).startswith("read"):
        used(path, whole, model_of("llama"))
