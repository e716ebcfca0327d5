"""Pictures of moments on other branches show the numbers that attention read there; the session stays where it is."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from engine.errors import InputError
from engine.look import magnitudes
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.edit import Rows, Scale
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    Picture,
    PictureRequest,
    RowRequest,
    TableRequest,
    WallRequest,
)
from tests.engine.session.histories import MODES
from tests.engine.session.sessions import started
from tests.engine.tiny import prompt_ids


def requests_of(count: int, step: int) -> tuple[PictureRequest, ...]:
    """All kinds of picture of a sequence with so many tokens."""
    return (
        WallRequest(0, count, count, "keys", False, 200, 64),
        WallRequest(0, count, max(0, count - 1), "values", True, 200, 64),
        *(HeadRequest(0, count, tensor, 1, 1, 0, count, 200) for tensor in ("keys", "values")),
        *(RowRequest(0, count, position) for position in (0, count - 1)),
        AttentionRequest(0, step, 1, 200),
        TableRequest(0, count),
        OutliersRequest(0, count, step),
    )  # type: ignore[return-value]


SAID_OF_THE_MOMENT = ("provenance", "took_ms", "written_keys", "written_values", "states")


def numbers(piece: Picture) -> dict[str, Any]:
    """All that a picture shows, apart from where it comes from."""
    return {name: value for name, value in msgspec.structs.asdict(piece).items() if name not in SAID_OF_THE_MOMENT}


def are_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and are_same(
            tuple(msgspec.structs.asdict(one).values()), tuple(msgspec.structs.asdict(other).values())
        )
    return bool(one == other)


def pictures(session: Session, count: int, step: int, node: int | None = None) -> list[dict[str, Any]]:
    return [numbers(session.take_picture(request, node)) for request in requests_of(count, step)]


def differing(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[str]:
    return [
        f"{type(mine['request']).__name__}.{name}"
        for mine, its in zip(one, other, strict=True)
        for name in mine
        if not are_same(mine[name], its[name])
    ]


def grown(mode: str) -> tuple[Session, dict[int, tuple[int, list[dict[str, Any]]]]]:
    """A session whose sequence went on twice after the same step, with an edit on the first branch; all pictures of
    that branch, by moment, with the tokens of then, as they were when it was live. The second branch is live."""
    session, seq_id = started("llama", MODES[mode], length=14)
    session.force(seq_id, prompt_ids(16, seed=3))
    for _ in range(3):
        session.step()
    parted, seen = session.last_step, {}
    for number in range(6):
        step = session.step().step
        count = session.sequence(seq_id).num_tokens
        seen[step] = count, pictures(session, count, step)
        if number == 3 and mode in ("growing", "paged"):
            made = make_edit(session, Scale(seq_id, Rows(count - 2, count), 2.0))[0].node.step
            seen[made] = count, pictures(session, count, step)
    session.go_to(parted)
    session.force(seq_id, prompt_ids(9, seed=4))
    for _ in range(5):
        session.step()
    return session, seen


@pytest.mark.parametrize("mode", ["growing", "paged", "int8", "h2o", "kivi", "paged h2o", "rotated sinks"])
def test_a_moment_of_another_branch_is_drawn_as_it_was_when_it_was_live(mode: str) -> None:
    session, seen = grown(mode)
    here, kept = session.last_step, len(list(session.kept))
    not_kept = []
    for node, (count, then) in seen.items():
        step = max(step for step in seen if step <= node and session.history.tree.at(step).node.work is not None)
        now = pictures(session, count, step, node)
        if now[0]["note"].endswith("computes them again."):
            not_kept.append(node)
        else:
            assert differing(then, now) == [], node
    # dropped pages are not journalled; the moment before the edit is kept, for undo
    assert not_kept == ([3, 4, 5, 6] if mode == "paged h2o" else [])
    assert (session.last_step, len(list(session.kept))) == (here, kept), "the session stayed where it was"
    tip = max(seen)
    head = session.take_picture(requests_of(seen[tip][0], tip)[2], tip)
    assert head.provenance == ("dequantised" if mode in ("int8", "kivi") else "kept")  # type: ignore[union-attr]


def test_magnitudes_of_another_branch_are_counted_once_and_again_after_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seen = grown("growing")
    counted: list[int] = []

    def counting(numbers: Any, *others: Any) -> Any:
        counted.append(numbers.numel())
        return counted_rows(numbers, *others)

    counted_rows = magnitudes.counted
    monkeypatch.setattr(magnitudes, "counted", counting)
    tip, (count, then) = max(seen.items())
    before = next(step for step in seen if seen[step][0] < count)
    assert differing(then, pictures(session, count, tip, tip)) == []
    assert sum(counted)
    pictures(session, seen[before][0], before, before)
    counted.clear()
    assert differing(then, pictures(session, count, tip, tip)) == []
    assert sum(counted) == 0
    session.step()
    assert differing(then, pictures(session, count, tip, tip)) == []
    assert sum(counted)


def test_page_tables_that_an_edit_changed_are_not_told_of_the_moments_before_it() -> None:
    session, seen = grown("paged")
    session.kept.drop((6, None))  # the moment before the edit, which put what it wrote into a page of its own
    count, then = seen[3]
    table = session.take_picture(TableRequest(0, count), 3)
    assert table.note == "Its rows were moved to other pages since."  # type: ignore[union-attr]
    others = [piece for piece in then if not isinstance(piece["request"], TableRequest)]
    now = [piece for piece in pictures(session, count, 3, 3) if not isinstance(piece["request"], TableRequest)]
    assert differing(others, now) == []


def test_rows_that_are_not_kept_are_not_drawn_and_their_records_are() -> None:
    session, seen = grown("growing")
    session.kept.clear()
    tip, (count, then) = max(seen.items())
    now = pictures(session, count, tip, tip)
    why = f"Step {tip} is on another branch, and its K and V are not kept: going there computes them again."
    for before, piece in zip(then, now, strict=True):
        if isinstance(piece["request"], AttentionRequest):
            assert differing([before], [piece]) == []
        else:
            assert piece["note"] == why, piece["request"]
    assert not now[0]["low"].size
    assert not now[2]["low"].size
    assert now[4]["keys"] == ()
    session.go_to(tip)
    assert differing(then, pictures(session, count, tip, tip)) == []


def test_a_sequence_that_was_not_there_is_refused() -> None:
    session, seen = grown("growing")
    other = session.fork(0).child
    with pytest.raises(InputError, match=f"There was no sequence {other} at step {max(seen)}: choose one"):
        session.take_picture(RowRequest(other, 4, 0), max(seen))
    with pytest.raises(InputError, match="There is no step 999"):
        session.take_picture(RowRequest(0, 4, 0), 999)
