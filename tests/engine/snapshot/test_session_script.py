"""A session as a Python script that does all of it once more: turns, forks, modes and edits by hand."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel, load
from engine.session.commands import continue_with
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.snapshot.export import export
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import rows_of_file
from engine.spec.cache import PRESETS, tuned
from engine.spec.edit import AddNoise, BiasLogits, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Rows, Scale, Zero
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from tests.engine.session.sessions import set_state
from tests.engine.snapshot.exports import in_process
from tests.engine.snapshot.sessions import kept, step

TEXT = "Once upon a time there was a little boy who lived by the sea"
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def bundled() -> LoadedModel:
    return load(ModelSpec("bundled", dtype="float32", device="cpu", num_threads=1))


def written(session: Session, path: Path, seq_id: int, records: list[StepRecord]) -> None:
    for _ in export(session, Export(path, seq_id, kind="session", records=tuple(records))):
        pass


def test_a_conversation_its_forks_and_its_modes_are_repeated_by_a_script(
    bundled: LoadedModel, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns go on from rows of the turn before, under another number."""
    session = Session(bundled, PRESETS["paged"].spec)
    session.submit(Prompt(text="Once upon a time"))
    records = [session.step() for _ in range(4)]
    ids = tuple(session.sequence(0).token_ids)
    seq_id = continue_with(session, 0, Prompt(token_ids=(*ids, 17, 18, 19), sampling=SamplingParams(0.9, seed=3)))
    assert seq_id != 0
    records += [session.step() for _ in range(3)]
    other = session.fork(seq_id, None).child
    session.force(other, (21, 22))
    records += [session.step() for _ in range(3)]
    session.set_cache(PRESETS["growing"].spec)
    records += [session.step() for _ in range(2)]
    written(session, tmp_path / "again.py", other, records)
    out = in_process(tmp_path / "again.py", capsys, monkeypatch).splitlines()
    assert out[0] == "12 steps repeated; the number that is farthest off is off by 0"
    assert json.loads(out[1]) == session.sequence(other).token_ids[: session.sequence(other).num_tokens]
    count = 2 * len(bundled.info.geometry.layers)
    assert out[2] == f"{count} of {count} tensors of K and V have the same bytes"


def edited(model: LoadedModel, folder: Path) -> tuple[Session, list[StepRecord], Path]:
    """Steps with an edit of every kind between them; some rows come from another branch, and some from a file."""
    session = Session(model, tuned(PRESETS["h2o"].spec, budget=24))
    session.open_rows = rows_of_file
    session.submit(Prompt(text=TEXT, sampling=SamplingParams(0.9, seed=4)))
    records = {record.step: record for record in (step(session) for _ in range(3))}
    file, aside, begin = kept(session, folder / "rows.safetensors"), session.last_step, records[1].step
    session.go_to(begin)
    rows = Rows(2, 5, layers=(1, 3))
    edits: list[list[Edit]] = [
        [Zero(0, rows), Pin(0, Rows(4, 6)), BiasLogits(0, ((9, 4.5),), (11,))],
        [Scale(0, Rows(9, 12), 1.5), AddNoise(0, Rows(1, 3, part="keys"), 0.5, seed=7)],
        [Overwrite(0, rows, from_step=aside), Overwrite(0, rows, from_file=str(file), shift=1)],
        [Mask(0, Rows(3, 4)), Drop(0, Rows(7, 8)), BiasLogits(0, (), (), (21, 22, 23))],
    ]
    for made in edits:
        for edit in made:
            make_edit(session, edit)
        set_state(session, 0, stop=None)
        record = step(session)
        records[record.step] = record
    make_edit(session, Scale(0, Rows(5, 6), 0.5))  # and one behind the last step
    return session, [records[at] for at in session.history.tree.path(session.last_step) if at in records], file


def run(script: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    return in_process(script, capsys, monkeypatch, *arguments).splitlines()


def fails(script: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        in_process(script, capsys, monkeypatch, *arguments)
    assert end.value.code == 1
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("is_file", [False, True])
def test_edits_by_hand_are_made_once_more_and_compared(
    is_file: bool, bundled: LoadedModel, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a live session, and of a snapshot of it."""
    session, records, file = edited(bundled, tmp_path)
    script, allowed = tmp_path / "again.py", ("--allow-file", str(file))
    if is_file:
        path = kept(session, tmp_path / "edited.safetensors", records=tuple(records))
        with SnapshotFile(path) as snapshot:
            for _ in export(snapshot, Export(script, 0, kind="session")):
                pass
    else:
        written(session, script, 0, records)
    steps, ids, rows = run(script, capsys, monkeypatch, *allowed)
    assert steps == "7 steps and 11 edits repeated; the number that is farthest off is off by 0"
    assert json.loads(ids) == session.sequence(0).token_ids[: session.sequence(0).num_tokens]
    count = 2 * len(bundled.info.geometry.layers)
    assert rows == f"{count} of {count} tensors of K and V have the same bytes"
    if is_file:
        return
    text = script.read_text()
    for name, was, now in (
        ("a factor", '"factor":1.5', '"factor":1.25'),
        ("what is hidden", '"start":3,"stop":4', '"start":4,"stop":5'),
        ("the file", '"shift":1', '"shift":2'),
        ("the tokens that are allowed", '"only":[21,22,23]', '"only":[24,25]'),
        ("an edit behind the last step", '"factor":0.5', '"factor":0.25'),
        ("a token at the end", '"token_ids":[0,', '"token_ids":[2,'),
        ("an entropy", json.dumps(records[-1].sequences[0].entropy), "0.125"),
    ):
        assert text.count(was) >= 1, name
        at = text.rindex(was)
        script.write_text(text[:at] + now + text[at + len(was) :])
        fails(script, capsys, monkeypatch, *allowed)


def test_no_file_is_read_that_was_not_named(
    bundled: LoadedModel, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, records, _ = edited(bundled, tmp_path)
    written(session, tmp_path / "again.py", 0, records)
    with pytest.raises(SystemExit, match=r"could not be done once more: its edit takes rows from .*--allow-file"):
        in_process(tmp_path / "again.py", capsys, monkeypatch)


@pytest.mark.parametrize("how", ["overwrite", "re-prefill"])
def test_tokens_in_the_middle_are_put_in_once_more(
    how: str, bundled: LoadedModel, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bundled, PRESETS["paged"].spec)
    session.submit(Prompt(text=TEXT))
    records = [step(session) for _ in range(3)]
    ids = (40, 41) if how == "overwrite" else (40, 41, 42, 43)
    make_edit(session, ReplaceTokens(0, 4, ids, how, 2))  # type: ignore[arg-type]
    records += [step(session) for _ in range(3)]
    written(session, tmp_path / "again.py", 0, records)
    steps, found, _ = run(tmp_path / "again.py", capsys, monkeypatch)
    assert steps == "6 steps and 1 edit repeated; the number that is farthest off is off by 0"
    assert json.loads(found)[4 : 4 + len(ids)] == list(ids)


def test_what_is_compared_at_the_end_is_that_of_its_moment(bundled: LoadedModel, tmp_path: Path) -> None:
    """Of now the tokens and the rows; of an earlier step the rows that it had, and of tokens nothing is said."""
    session = Session(bundled, PRESETS["growing"].spec)
    session.submit(Prompt(text=TEXT))
    records = tuple(step(session) for _ in range(4))
    script, now = tmp_path / "again.py", session.sequence(0).num_tokens
    found = {}
    for count in (None, now, now - 2):
        told = records if count != now - 2 else records[:-2]
        list(export(session, Export(script, 0, count, kind="session", records=told)))
        line = next(line for line in script.read_text("utf-8").splitlines() if line.startswith("DATA = "))
        data = json.loads(ast.literal_eval(line.removeprefix("DATA = json.loads(").removesuffix(")")))
        found[count] = data["token_ids"], data["checksums"], [node["step"] for node in data["session"]["nodes"]]
    assert found[None] == found[now]
    assert found[now][0] == session.sequence(0).token_ids[:now]
    assert found[now - 2][0] == []
    assert found[now - 2][1].keys() == found[now][1].keys()
    assert found[now - 2][1] != found[now][1]
    assert found[now][2] == [record.step for record in records]
    assert found[now - 2][2] == [record.step for record in records[:-2]]


def test_what_is_missing_is_said(bundled: LoadedModel, tmp_path: Path) -> None:
    session = Session(bundled, PRESETS["growing"].spec)
    session.submit(Prompt(text=TEXT))
    records = [step(session) for _ in range(3)]
    make_edit(session, Zero(0, Rows(2, 4)))
    records.append(step(session))
    path = kept(session, tmp_path / "part.safetensors", records=tuple(records[1:]))
    session.submit(Prompt(text="Another"))
    both = tuple(replace(record, changes=()) for record in (*records, step(session), step(session)))
    several = kept(session, tmp_path / "several.safetensors", records=both)
    for file, why in ((path, "are missing, and a script repeats all"), (several, "Steps of several sequences")):
        with SnapshotFile(file) as snapshot, pytest.raises(InputError, match=why):
            list(export(snapshot, Export(tmp_path / "x.py", 0, kind="session")))
    assert not (tmp_path / "x.py").exists()
