"""A written session in place of the live one: its tokens and its tree are told without its model, and with it all of it
is done once more."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.saved.document import read_session, write_session
from engine.saved.session import SavedSession, SessionRecorder
from engine.spec.cache import CacheSpec
from engine.spec.edit import BiasLogits, Overwrite, ReplaceTokens, Rows, Zero
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import (
    CloseSnapshot,
    Continue,
    Force,
    Fork,
    GoTo,
    LoadModel,
    MakeEdit,
    OpenSnapshot,
    SetCache,
    SetSampling,
    Step,
    TakePicture,
    UndoEdit,
)
from engine.wire.events import Failed, NodeAdded, Restarted, SessionOpened, StateChanged, Submitted, WentTo
from engine.wire.exporting import Export, Exported
from engine.wire.measurements import EditMeasured
from engine.wire.pictures import RowRequest
from engine.wire.records import EditMade, StepRecord
from engine.wire.tree import Node
from tests.engine.loop.driver import Driver, prompt
from tests.engine.tiny import write_config


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return ModelSpec(f"shape:{write_config('llama', tmp_path)}", device="cpu", num_threads=1)


@pytest.fixture
def saved(driver: Driver, tmp_path: Path) -> SavedSession:
    """A prompt, steps, a branch with a forced token, a fork, another mode and something pending, in a file `s.json`."""
    driver.send(prompt(12), Step(1))
    driver.wait_for(StepRecord, 1)
    driver.send(Force(0, (20, 21, 22, 23)), Step(4))
    driver.wait_for(StepRecord, 5)
    driver.send(GoTo(2), Force(0, (7, 8, 11, 12, 13, 14)), Step(2))
    driver.wait_for(StepRecord, 7)
    driver.send(Fork(0, None), Step(1))
    driver.wait_for(StepRecord, 8)
    driver.send(SetCache(CacheSpec("paged")), Step(1))
    driver.wait_for(StepRecord, 9)
    driver.send(Force(0, (9, 10, 15, 16)), Force(1, (9, 11, 15, 16)), SetSampling(SamplingParams(0.7, seed=3)))
    driver.rest()
    recorder = SessionRecorder()
    recorder.take(driver.events)
    recorder.put(names=((5, "the other"),), draft="a draft")
    session = recorder.session()
    assert session.pending
    write_session(session, tmp_path / "s.json")
    return session


def opened(driver: Driver, path: Path) -> None:
    driver.forget()
    driver.send(OpenSnapshot(path))
    driver.wait_for(SessionOpened)
    driver.wait(lambda: driver.status.opened is not None and driver.status.work is None)


def test_its_tokens_and_its_tree_are_told(driver: Driver, saved: SavedSession, tmp_path: Path) -> None:
    live = driver.status
    opened(driver, tmp_path / "s.json")
    status = driver.status
    assert status.opened is not None
    assert (status.opened.has_rows, status.opened.why_not, status.opened.num_steps) == (False, "", 9)
    assert status.model is not None
    assert status.model.fingerprint == live.model.fingerprint
    assert [(i.seq_id, i.num_tokens) for i in status.sequences] == [(i.seq_id, i.num_tokens) for i in live.sequences]
    assert [Node.of(record) for record in driver.of(StepRecord)] == [
        node for node in saved.nodes if node.work is not None
    ]
    assert [event.node for event in driver.of(NodeAdded)] == [node for node in saved.nodes if node.work is None]
    assert driver.of(WentTo)[0].step == 2
    (said,) = driver.of(SessionOpened)
    assert (said.draft, said.names) == ("a draft", ((5, "the other"),))
    driver.forget()
    driver.send(TakePicture(RowRequest(0, 5, 1)), Step())
    driver.wait_for(Failed, 2)
    rows, step = sorted(event.message for event in driver.of(Failed))
    assert "no K and V" in rows
    assert step.startswith("This is an opened session: load ")


def test_its_model_does_all_of_it_once_more(
    driver: Driver, saved: SavedSession, tmp_path: Path, spec: ModelSpec
) -> None:
    driver.forget()
    driver.send(Step(3))
    driver.wait_for(StepRecord, 3)
    expected = [record.sequences for record in driver.of(StepRecord)]
    driver.send(SetSampling(SamplingParams()))
    opened(driver, tmp_path / "s.json")
    driver.forget()
    driver.send(Continue(spec))
    driver.wait(lambda: [event for event in driver.of(WentTo) if "done once more" in event.how])
    assert not driver.of(Failed)
    assert driver.of(Restarted)
    driver.rest()
    recorder = SessionRecorder()
    recorder.take(driver.events)
    again = recorder.session()
    assert again.nodes == saved.nodes
    assert (again.live, again.pending, again.cache) == (saved.live, saved.pending, saved.cache)
    assert all(record.sequences[0].candidates for record in driver.of(StepRecord)), "the numbers are back"
    assert driver.status.sampling == SamplingParams(0.7, seed=3), "the next prompt is sampled as it was to be"
    driver.forget()
    driver.send(Step(3))
    driver.wait_for(StepRecord, 3)
    for was, now in zip(expected, (record.sequences for record in driver.of(StepRecord)), strict=True):
        assert [(p.token_ids, p.sampled) for p in was] == [(p.token_ids, p.sampled) for p in now]


def test_what_is_not_as_it_was_is_told(driver: Driver, saved: SavedSession, tmp_path: Path, spec: ModelSpec) -> None:
    last = saved.nodes[-1]
    assert last.work is not None
    part = replace(last.work.parts[0], sampled=3)
    other = replace(last, work=replace(last.work, parts=(part, *last.work.parts[1:])))
    write_session(replace(saved, nodes=(*saved.nodes[:-1], other)), tmp_path / "s.json")
    opened(driver, tmp_path / "s.json")
    driver.send(Continue(spec))
    message = driver.wait_for(Failed).message
    assert f"step {last.step}, sequence 0: it chose token" in message
    assert driver.status.opened is None


def test_a_moment_that_cannot_be_done_leaves_those_before_it(
    driver: Driver, saved: SavedSession, tmp_path: Path, spec: ModelSpec
) -> None:
    last = saved.nodes[-1]
    assert last.work is not None
    part = replace(last.work.parts[0], seq_id=77)
    write_session(replace(saved, nodes=(*saved.nodes[:-1], replace(last, work=replace(last.work, parts=(part,)))),
                          pending=()), tmp_path / "s.json")  # fmt: skip
    opened(driver, tmp_path / "s.json")
    driver.send(Continue(spec))
    message = driver.wait_for(Failed).message
    assert message.startswith(f"Step {last.step} could not be done once more: ")
    driver.rest()
    assert driver.status.step == saved.nodes[-2].step


@pytest.fixture
def patched(driver: Driver, tmp_path: Path) -> SavedSession:
    """A session whose step 3 is an edit with rows of a snapshot that is there, in a file `s.json`."""
    source = tmp_path / "rows.safetensors"
    driver.send(prompt(12), Step(2))
    driver.wait_for(StepRecord, 2)
    driver.send(Export(source, 0))
    driver.wait_for(Exported)
    driver.send(Step(1))
    driver.wait_for(StepRecord, 3)
    driver.send(MakeEdit(Overwrite(0, Rows(2, 6), from_file=str(source))))
    driver.wait_for(NodeAdded)
    driver.send(Step(1))
    driver.wait_for(StepRecord, 4)
    driver.rest()
    recorder = SessionRecorder()
    recorder.take(driver.events)
    write_session(session := recorder.session(), tmp_path / "s.json")
    return session


def test_a_file_that_an_edit_names_is_not_opened_unasked(
    driver: Driver, patched: SavedSession, tmp_path: Path, spec: ModelSpec
) -> None:
    opened(driver, tmp_path / "s.json")
    driver.send(Continue(spec))
    message = driver.wait_for(Failed).message
    assert message.startswith(
        f"Step 3 could not be done once more: its edit takes rows from '{tmp_path / 'rows.safetensors'}', and no file "
    )
    assert driver.rest().step == 2
    driver.forget()
    driver.send(MakeEdit(Overwrite(0, Rows(2, 6), from_file=str(tmp_path / "rows.safetensors"))))
    assert driver.wait_for(EditMeasured).step == 4, "a person may; the tokens that were to follow are moment 3"
    opened(driver, tmp_path / "s.json")
    driver.send(Continue(spec, may_open_files=True))
    driver.wait(lambda: [event for event in driver.of(WentTo) if "done once more" in event.how])
    assert not driver.of(Failed)
    assert driver.rest().step == patched.live == 4


def test_what_each_edit_did_to_the_next_token_is_told_again(driver: Driver, tmp_path: Path, spec: ModelSpec) -> None:
    """An edit on the live path and one that was undone."""
    driver.send(prompt(12), Step(1))
    driver.wait_for(StepRecord, 1)
    driver.send(MakeEdit(Zero(0, Rows(2, 9))))
    driver.wait_for(EditMeasured)
    driver.send(UndoEdit(), MakeEdit(BiasLogits(0, ((5, 2.0),))))
    then = driver.wait_for(EditMeasured, 2) and driver.of(EditMeasured)
    driver.rest()
    recorder = SessionRecorder()
    recorder.take(driver.events)
    write_session(recorder.session(), tmp_path / "s.json")
    opened(driver, tmp_path / "s.json")
    driver.forget()
    driver.send(Continue(spec))
    (went,) = driver.wait(lambda: [event for event in driver.of(WentTo) if "done once more" in event.how])
    assert went.how == "restored as it was, steps 0–2 with 2 edits done once more", "the numbers of the saved nodes"
    now = driver.of(EditMeasured)
    assert [one.step for one in now] == [one.step for one in then]
    for mine, theirs in zip(now, then, strict=True):
        assert mine.kl == pytest.approx(theirs.kl, rel=1e-4)
        assert [one.token_id for one in mine.after] == [one.token_id for one in theirs.after]
        assert mine.entropy == pytest.approx(theirs.entropy, rel=1e-4)
    events = [type(event) for event in driver.events if isinstance(event, NodeAdded | EditMeasured)]
    assert events == [NodeAdded, EditMeasured] * 2, "an effect is of a node that is known"


def test_the_texts_of_tokens_that_an_edit_brought_are_in_the_file(
    driver: Driver, saved: SavedSession, tmp_path: Path
) -> None:
    live = driver.status.step
    node = Node(40, live, (EditMade(ReplaceTokens(0, 2, (90, 91))),), saved.cache)
    recorder = SessionRecorder()
    recorder.take([*driver.events, NodeAdded(node, is_live=True, texts=(" one", " two"))])
    written = recorder.session()
    assert (written.texts[90], written.texts[91]) == (" one", " two")
    write_session(written, tmp_path / "s.json")
    opened(driver, tmp_path / "s.json")
    assert driver.of(NodeAdded)[-1].node == node
    assert driver.of(NodeAdded)[-1].texts == (" one", " two")


def test_another_model_is_refused_and_the_file_stays(
    driver: Driver, saved: SavedSession, tmp_path: Path, spec: ModelSpec
) -> None:
    model = replace(saved.model, fingerprint="0" * 32) if saved.model is not None else None
    write_session(replace(saved, model=model), tmp_path / "s.json")
    opened(driver, tmp_path / "s.json")
    driver.send(Continue(spec))
    assert "is another model than" in driver.wait_for(Failed).message
    assert driver.status.opened is not None
    driver.send(LoadModel(spec, CacheSpec()))  # any other model leaves it
    driver.wait(lambda: driver.status.opened is None and driver.status.work is None)


def test_one_that_went_on_from_a_snapshot_says_so(driver: Driver, saved: SavedSession, tmp_path: Path) -> None:
    write_session(replace(saved, origin="/x/cache.safetensors"), tmp_path / "s.json")
    opened(driver, tmp_path / "s.json")
    assert driver.status.opened is not None
    assert driver.status.opened.why_not == "it went on from the snapshot '/x/cache.safetensors': open that"
    driver.send(CloseSnapshot(ModelSpec()))
    driver.wait(lambda: driver.status.opened is None)


def test_one_that_names_no_model_is_looked_at_and_says_so(driver: Driver, saved: SavedSession, tmp_path: Path) -> None:
    path = tmp_path / "nameless.json"
    write_session(replace(saved, model=None), path)
    opened(driver, path)
    assert driver.status.opened is not None
    assert driver.status.opened.why_not == "it does not say which model it ran"
    assert driver.status.model is not None
    assert driver.status.model.name == "an unknown model"
    assert len(driver.of(StepRecord)) == sum(node.work is not None for node in saved.nodes)


def test_the_file_has_what_was_told(driver: Driver, saved: SavedSession, tmp_path: Path) -> None:
    assert read_session(tmp_path / "s.json").session == saved
    assert driver.of(StateChanged)
    assert driver.of(Submitted)
