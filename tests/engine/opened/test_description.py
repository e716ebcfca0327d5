"""The steps that a file has: in their order, and one that says what is left where they end too early."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InputError
from engine.opened.description import steps_of
from engine.snapshot.read import SnapshotFile
from engine.wire.records import StepRecord
from tests.engine.snapshot.sessions import begun, kept, small, step


def told(path: Path, records: tuple[StepRecord, ...], session: object) -> list[StepRecord]:
    with SnapshotFile(kept(session, path, records=records)) as file:  # type: ignore[arg-type]
        return list(steps_of(file))


def test_steps_out_of_order_and_steps_twice_are_refused(tmp_path: Path) -> None:
    session = begun(small("growing"), steps=3)
    one, two, three = (step(session) for _ in range(3))
    assert [each.step for each in told(tmp_path / "x", (one, two, three), session)] == [one.step, two.step, three.step]
    for order in ((one, one), (two, one), (one, two, two)):
        with pytest.raises(InputError, match="its step records are not in order"):
            told(tmp_path / "x", order, session)


def test_what_no_step_computed_is_a_step_behind_those_that_are_there(tmp_path: Path) -> None:
    session = begun(small("growing"), steps=3)
    records = tuple(step(session) for _ in range(3))
    ids = tuple(session.sequence(0).token_ids)
    first, rest = told(tmp_path / "x", records[:1], session)
    assert (rest.step, rest.sequences[0].first_position) == (records[-1].step, first.sequences[0].num_tokens)
    assert rest.sequences[0].token_ids == ids[rest.sequences[0].first_position :]
    (alone,) = told(tmp_path / "x", (), session)
    assert (alone.step, alone.sequences[0].first_position, alone.sequences[0].token_ids) == (records[-1].step, 0, ids)
