"""A snapshot in place of the live session: what is told of it, what is refused, and how its model goes on from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.client.thread import ThreadClient
from engine.errors import InputError
from engine.opened.file import OpenedSnapshot
from engine.snapshot import save_cache
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import CacheSpec
from engine.spec.edit import Overwrite, Rows
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    CloseSnapshot,
    Continue,
    LoadModel,
    MakeEdit,
    OpenSnapshot,
    SetCache,
    Step,
    SubmitPrompt,
    TakePicture,
    Watch,
    Watched,
)
from engine.wire.devices import Unloaded, UnloadModel
from engine.wire.events import CacheChanged, Failed, NodeAdded, Restarted, SessionOpened, StateChanged, Submitted
from engine.wire.exporting import EstimateExport, Export, Exported, ExportEstimate
from engine.wire.measurements import CheckParity
from engine.wire.pictures import (
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    OutliersRequest,
    RowPicture,
    RowRequest,
    TableRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import StepRecord
from tests.engine.loop.driver import GROWING, PATIENCE_S, Driver, prompt, shape_of
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import write_config

MODES = ("growing", "paged", "static", "kivi-4", "h2o")


def exported(driver: Driver, path: Path, steps: int = 10) -> list[StepRecord]:
    """A run of so many tokens behind a prompt, with its records, in a file."""
    driver.send(prompt(12, temperature=1.0, top_k=40, seed=5), Step(steps + 1))
    driver.wait_for(StepRecord, steps + 1)
    driver.rest()
    records = driver.of(StepRecord)
    driver.send(Export(path, 0, records=tuple(records)))
    driver.wait_for(Exported)
    driver.forget()
    return records


def opened(driver: Driver, path: Path) -> None:
    driver.send(OpenSnapshot(path))
    driver.wait_for(Restarted)
    driver.wait(lambda: driver.of(StateChanged) and driver.status.work is None and driver.status.opened)


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return ModelSpec(f"shape:{write_config('llama', tmp_path)}", device="cpu", num_threads=1)


def test_an_opened_file_tells_its_steps_its_tokens_and_its_model(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    records = exported(driver, path)
    ids = tuple(driver.session.sequence(0).token_ids[:22])
    opened(driver, path)
    told = driver.of(StepRecord)
    assert [record.step for record in told] == [record.step for record in records]
    assert told[-1].sequences[0].token_ids == records[-1].sequences[0].token_ids
    np.testing.assert_array_equal(told[3].sequences[0].rows.key_norm, records[3].sequences[0].rows.key_norm)  # type: ignore[union-attr]
    assert driver.of(Submitted)[-1].token_ids == ids
    assert driver.of(SessionOpened)[-1].draft == " ".join(map(str, ids[:12])), "its prompt"
    status = driver.status
    assert status.opened is not None
    assert (status.opened.path, status.opened.num_steps, status.opened.why_not) == (path, 11, "")
    assert status.sequences[0].num_tokens == 22
    assert status.model is not None
    assert status.model.geometry.num_layers == 2


def test_the_norms_of_a_prompt_stay_with_the_engine_and_are_in_files_whole(spec: ModelSpec, tmp_path: Path) -> None:
    driver = Driver(spec.source).loaded()
    path, again = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    told = exported(driver, path)[0].sequences[0].rows
    ((count, stats),) = driver.session.history.norms_back(0, 0)
    assert told is not None
    assert (count, stats.num_rows, told.num_rows) == (12, 12, 1)
    np.testing.assert_array_equal(told.key_norm, stats.key_norm[:, :, 11:])

    def check() -> None:
        driver.forget()
        driver.send(TakePicture(RowRequest(0, 22, 3)))
        written = driver.wait_for(RowPicture).written
        assert written is not None
        np.testing.assert_array_equal(written.key_norm, stats.key_norm[:, :, 3:4])
        np.testing.assert_array_equal(written.value_norm, stats.value_norm[:, :, 3:4])

    def check_file(path: Path) -> None:
        with SnapshotFile(path) as file:
            rows = file.records[0].sequences[0].rows
            assert rows is not None
            np.testing.assert_array_equal(rows.key_norm, stats.key_norm)

    check()
    check_file(path)
    opened(driver, path)
    driver.wait_for(StepRecord, 11)
    records = tuple(driver.of(StepRecord))
    assert max(record.sequences[0].rows.num_rows for record in records) == 1  # type: ignore[union-attr]
    check()
    driver.send(Export(again, 0, records=records))
    driver.wait_for(Exported)
    check_file(again)
    driver.send(Continue(spec))
    driver.wait_for(CacheChanged)
    driver.rest()
    check()
    driver.send(Export(again, 0, records=records))
    driver.wait_for(Exported)
    check_file(again)
    assert driver.loop.close(PATIENCE_S)


def test_pictures_are_answered_watched_and_once(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    wanted = HeadRequest(0, 22, "keys", 1, 1, 0, 22, 100)
    expected = driver.session.take_picture(wanted)
    assert isinstance(expected, HeadPicture)
    opened(driver, path)
    driver.send(Watch((Watched(wanted, id=71), Watched(WallRequest(0, 5, 5, "keys", False, 50, 50), id=72))))
    head, wall = driver.wait_for(HeadPicture), driver.wait_for(WallPicture)
    np.testing.assert_array_equal(head.low, expected.low)
    assert (head.reply_to, head.provenance) == (71, "recorded")
    assert (wall.reply_to, wall.num_tokens) == (72, 22)
    driver.send(TakePicture(HeadRequest(0, 9, "values", 0, 0, 0, 9, 100)))
    assert driver.wait_for(HeadPicture, 2).low.shape == (9, 16)
    for request in (
        RowRequest(0, 22, 3),
        TableRequest(0, 22),
        OutliersRequest(0, 22, 10),
        AttentionRequest(0, 10, 0, 9),
    ):
        driver.send(TakePicture(request))
    driver.send(Step())
    driver.wait_for(Failed)
    assert len(driver.of(Failed)) == 1


def test_a_part_of_it_and_its_steps_are_written_without_its_model(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    records = tuple(exported(driver, path))
    opened(driver, path)
    chosen = Export(tmp_path / "part.safetensors", 0, layers=(1,), kv_heads=(0,), records=records[:4])
    driver.send(EstimateExport(chosen))
    size = driver.wait_for(ExportEstimate).num_bytes
    done = len(driver.of(Exported))
    kinds = ("npz", "trace", "session")
    for number, command in enumerate(
        (chosen, *(Export(tmp_path / kind, 0, kind=kind, records=records) for kind in kinds))
    ):
        driver.send(command)
        assert driver.wait_for(Exported, done + number + 1).path == command.path
    with SnapshotFile(chosen.path) as part:
        assert [(entry.index, entry.heads) for entry in part.layers] == [(1, (0,))]
        assert len(part.records) == 4
    assert chosen.path.stat().st_size == size
    assert driver.status.opened is not None, "the file is open still"


def test_what_needs_a_forward_is_refused_with_the_remedy(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    opened(driver, path)
    assert driver.status.model is not None
    name = driver.status.model.name
    for number, command in enumerate((prompt(4), Step(), SetCache(CacheSpec("paged")), CheckParity(0)), 1):
        driver.send(command)
        said = driver.wait_for(Failed, number).message
        assert said == f"This is an opened snapshot: load {name} to go on from it."
    assert driver.status.opened is not None


def test_a_file_that_is_none_leaves_the_session_as_it_was(driver: Driver, tmp_path: Path) -> None:
    exported(driver, tmp_path / "a.safetensors")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes((tmp_path / "a.safetensors").read_bytes()[:-9])
    for number, path in enumerate((bad, tmp_path, tmp_path / "none"), 1):
        driver.send(OpenSnapshot(path))
        assert "cannot be opened" in driver.wait_for(Failed, number).message
    driver.send(Step())
    driver.wait_for(StepRecord)
    assert driver.rest().opened is None


def test_a_damaged_record_is_told_and_the_rows_are_looked_at(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"StepRecord", b"StepRec?rd"))
    opened(driver, path)
    assert "record" in driver.wait_for(Failed).message
    driver.send(Watch((Watched(WallRequest(0, 22, 22, "keys", False, 50, 50), id=72),)))
    assert driver.wait_for(WallPicture).num_tokens == 22


def test_steps_before_a_damaged_record_are_told_and_nothing_in_place_of_it(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    steps = [record.step for record in exported(driver, path)]
    raw = path.read_bytes()
    at = raw.rindex(b"StepRecord")
    path.write_bytes(raw[:at] + b"StepRec?rd" + raw[at + len(b"StepRecord") :])
    opened(driver, path)
    assert "record" in driver.wait_for(Failed).message
    driver.send(Watch((Watched(WallRequest(0, 22, 22, "keys", False, 50, 50), id=72),)))
    driver.wait_for(WallPicture)
    assert [record.step for record in driver.of(StepRecord)] == steps[:-1]


# ---- going on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("loads", [True, False])
def test_decoding_goes_on_to_the_last_bit(name: str, loads: bool, spec: ModelSpec, tmp_path: Path) -> None:
    """Ten steps, a file, five more; and from the file, opened in another engine or in the same one, the same five."""
    driver = Driver(spec.source, small(name)).loaded()
    path = tmp_path / "a.safetensors"
    last = exported(driver, path)[-1]
    driver.send(Step(5))
    driver.wait_for(StepRecord, 5)
    driver.rest()
    expected = driver.of(StepRecord)
    rows = {layer: driver.session.cache_of(0).rows(layer) for layer in range(2)}
    driver.forget()
    opened(driver, path)
    driver.forget()
    driver.send(LoadModel(spec, GROWING) if loads else Continue(spec))
    changed = driver.wait_for(CacheChanged)
    assert (changed.cache, changed.how) == (small(name), "goes on from a.safetensors")
    driver.send(Step(5))
    driver.wait_for(StepRecord, 5)
    assert driver.rest().opened is None
    found = driver.of(StepRecord)
    assert not driver.of(Restarted)
    assert [record.step for record in found] == [last.step + 1 + i for i in range(5)]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.sequences[0].token_ids == theirs.sequences[0].token_ids
        assert mine.sequences[0].sampled == theirs.sequences[0].sampled
    for layer, held in rows.items():
        again = driver.session.cache_of(0).rows(layer)
        assert held is not None
        assert again is not None
        assert torch.equal(held.keys, again.keys)
        assert torch.equal(held.values, again.values)
    if name == "growing":  # rows of other files are at hand as they are without a file
        driver.send(MakeEdit(Overwrite(0, Rows(3, 4), from_file=str(path), shift=1)))
        assert driver.wait_for(NodeAdded).node.parent == last.step + 5
    assert driver.loop.close(PATIENCE_S)


def test_the_first_model_of_a_file_is_waited_for_with_a_word(
    driver: Driver, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before anything of the file is compared with it."""
    exported(driver, path := tmp_path / "a.safetensors")
    said: list[str] = []

    def noted(_file: OpenedSnapshot, model: ModelSpec) -> ModelSpec:
        said.append(driver.engine.reporter.work.label)  # type: ignore[union-attr]
        return model

    monkeypatch.setattr(OpenedSnapshot, "with_dtype_of", noted)
    driver.send(UnloadModel())
    driver.wait_for(Unloaded)
    opened(driver, path)
    driver.send(Continue(spec))
    driver.wait_for(CacheChanged)
    assert said[:1] == ["Starting torch and transformers"]


@pytest.mark.parametrize("loads", [True, False])
def test_a_model_that_is_loaded_to_go_on_has_the_numbers_of_the_file(
    loads: bool, driver: Driver, tmp_path: Path
) -> None:
    spec = ModelSpec(device="cpu", num_threads=1)
    driver.send(LoadModel(structs.replace(spec, dtype="bfloat16"), GROWING))
    driver.wait_for(Restarted)
    exported(driver, path := tmp_path / "a.safetensors")
    driver.send(LoadModel(spec, GROWING))
    driver.wait_for(Restarted)
    opened(driver, path)
    driver.send(LoadModel(spec, GROWING) if loads else Continue(spec))
    assert driver.wait_for(CacheChanged).how == "goes on from a.safetensors"
    model = driver.rest().model
    assert model is not None
    assert model.dtype == "bfloat16"


def test_another_model_is_refused_to_go_on_and_the_file_stays_open(
    driver: Driver, spec: ModelSpec, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    folder = tmp_path / "other"
    folder.mkdir()
    other = ModelSpec(shape_of(folder, hidden_size=32), device="cpu", num_threads=1)
    driver.send(LoadModel(other, GROWING))
    driver.wait_for(Restarted)
    driver.forget()
    opened(driver, path)
    driver.send(Continue(other))
    said = driver.wait_for(Failed).message
    assert "can be viewed and not gone on from: it was made with other weights" in said
    assert driver.status.opened is not None
    driver.send(LoadModel(other, GROWING))  # it takes the place of the file
    driver.wait_for(Restarted, 2)
    assert driver.rest().opened is None


def test_a_file_that_nothing_can_go_on_from_says_why(driver: Driver, spec: ModelSpec, tmp_path: Path) -> None:
    pairs = [(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))]
    opened(driver, save_cache(pairs, tmp_path / "b.safetensors", tokens=[3, 4, 5, 6, 7]))
    driver.send(Continue(spec), Step())
    driver.wait_for(Failed, 2)
    first, second = (failed.message for failed in driver.of(Failed))
    assert first == second
    assert "which can only be viewed: another program's cache was brought in" in first


def test_there_is_nothing_to_go_on_from_without_a_file(driver: Driver, spec: ModelSpec) -> None:
    driver.send(Continue(spec))
    assert driver.wait_for(Failed).message == "There is no opened snapshot to go on from: open one first."


@pytest.mark.parametrize("how", ["damaged", "vanished"])
def test_a_file_that_cannot_be_read_keeps_no_model_from_being_loaded(
    how: str, driver: Driver, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    if how == "damaged":
        raw = bytearray(path.read_bytes())
        with SnapshotFile(path) as file:
            raw[file.entries["layers.0.keys"].start] ^= 1
        path.write_bytes(raw)
    opened(driver, path)
    if how == "vanished":

        def vanished(file: SnapshotFile, start: int, stop: int) -> bytes:
            raise InputError("cannot be read any more")

        monkeypatch.setattr(SnapshotFile, "_read", vanished)
    driver.forget()
    driver.send(LoadModel(spec, GROWING))
    driver.wait_for(Restarted)
    assert ("damaged" if how == "damaged" else "cannot be read any more") in driver.of(Failed)[0].message
    assert driver.rest().opened is None
    driver.send(SubmitPrompt(Prompt(token_ids=(1, 2, 3)), num_steps=1))
    driver.wait_for(StepRecord)


def test_an_opened_file_is_closed_and_the_model_before_it_begins_anew(
    driver: Driver, spec: ModelSpec, tmp_path: Path
) -> None:
    exported(driver, tmp_path / "a.safetensors")
    model = driver.session.model
    opened(driver, tmp_path / "a.safetensors")
    driver.forget()
    driver.send(CloseSnapshot(ModelSpec("no/such")))
    driver.wait_for(Restarted)
    status = driver.rest()
    assert (status.opened, status.sequences, driver.session.model) == (None, (), model)
    driver.send(CloseSnapshot(spec))
    assert driver.wait_for(Failed).message == "There is no opened snapshot to close: open one first."


def test_without_a_model_before_it_the_one_named_is_loaded(spec: ModelSpec, tmp_path: Path) -> None:
    driver = Driver.__new__(Driver)  # one that loads nothing
    driver.loop, driver.events = ThreadClient(lambda: 0.0), []
    opened(driver, save_cache([(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))], tmp_path / "b.safetensors"))
    driver.forget()
    driver.send(CloseSnapshot(spec))
    driver.wait_for(Restarted)
    assert (driver.rest().opened, driver.session.model.info.source) == (None, spec.source)
    assert driver.loop.close(PATIENCE_S)
