"""Which record a sequence stands at: forks not stepped yet, those that ended beside others, and after a rewind."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.models import Models
from engine.spec.edit import ReplaceTokens
from engine.wire.events import NodeAdded
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app import samples


@pytest.fixture
def two(models: Models) -> Models:
    """Sequence 0 is computed at the steps 0 to 3 and 6, sequence 1 from step 4 on."""
    for step in range(4):
        models.timeline.append([samples.step_record(step)])
    for step in (4, 5):
        models.timeline.append([samples.step_record(step, seq_id=1)])
    both = samples.step_record(6)
    mine = replace(samples.step_record(4).sequences[0], first_position=7, num_tokens=8)
    models.timeline.append([replace(both, sequences=(mine, samples.step_record(6, seq_id=1).sequences[0]))])
    return models


@pytest.mark.parametrize(("step", "computed"), [(0, 0), (3, 3), (4, 3), (5, 3), (6, 6), (None, 6)])
def test_a_sequence_stands_where_the_newest_step_up_to_there_computed_it(
    two: Models, step: int | None, computed: int
) -> None:
    record = two.timeline.newest_of(0, step)
    assert record is not None
    assert record.step == computed


def test_what_was_not_there_yet_was_computed_by_nothing(two: Models) -> None:
    assert two.timeline.newest_of(1, 3) is None
    assert two.timeline.newest_of(9) is None


def test_late_surprisals_come_into_the_record_its_tokens_and_those_of_its_forks(models: Models) -> None:
    """Those that the step did not give_pictures, and those of another step, stay as they are."""
    record, later = samples.story(1)
    part = record.sequences[0]
    models.timeline.append([replace(record, sequences=(replace(part, surprisal=(None,) * samples.PROMPT),)), later])
    models.timeline.branch(1, 0, 0, samples.PROMPT)
    newest = models.timeline.tokens(0)[-1]
    filled: list[int] = []
    models.timeline.filled.connect(filled.append)
    models.timeline.fill(0, 0, 1, tuple(map(float, range(1, samples.PROMPT - 1))))
    assert models.timeline.awaits_surprisal(0), "one is still to come"
    models.timeline.fill(0, 0, samples.PROMPT - 1, (9.5, 9.5))
    models.timeline.fill(7, 0, 0, (1.0,))
    expected = (None, *map(float, range(1, samples.PROMPT - 1)), 9.5)
    for seq_id in (0, 1):
        assert tuple(token.surprisal for token in models.timeline.tokens(seq_id, 0)) == expected
        assert not models.timeline.awaits_surprisal(seq_id)
        shown = models.timeline.part(seq_id, 0)
        assert shown is not None
        assert shown.surprisal == expected
    assert models.timeline.tokens(0)[-1] is newest
    assert filled == [0, 0]


def test_what_is_rewound_awaits_no_surprisal(models: Models) -> None:
    first, second = samples.step_record(0, 3), samples.step_record(0, 6)
    part = replace(second.sequences[0], first_position=3, num_tokens=9, surprisal=(1.0, *[None] * 5))
    models.timeline.append([first, replace(second, step=1, sequences=(part,))])
    assert models.timeline.awaits_surprisal(0)
    models.timeline.go_to(0)
    assert not models.timeline.awaits_surprisal(0)


def test_what_is_computed_anew_behind_tokens_that_were_put_in_awaits_no_surprisal(models: Models) -> None:
    record = samples.step_record(0)
    part = replace(record.sequences[0], surprisal=(None,) * samples.PROMPT)
    models.timeline.append([replace(record, sequences=(part,))])
    assert models.timeline.awaits_surprisal(0)
    edit = EditMade(ReplaceTokens(0, 1, (7,), "re-prefill"))
    models.history.add(NodeAdded(Node(1, 0, (edit,), record.cache), True, "written"))
    models.timeline.go_to(1)
    assert [token.no_surprisal.partition(":")[0] for token in models.timeline.tokens(0)][1:] == [
        "not computed", "not computed", "not computed",
    ]  # fmt: skip
    assert not models.timeline.awaits_surprisal(0)


def test_a_fork_has_its_parents_records_until_it_is_stepped_and_none_once_its_birth_is_undone(models: Models) -> None:
    models.timeline.append(samples.story(5))
    models.timeline.branch(1, 0, 2, samples.PROMPT + 2)
    shown = models.timeline.part(1)
    assert shown is not None
    assert shown.num_tokens == samples.PROMPT + 2
    models.timeline.go_to(3)
    assert models.timeline.part(1) is None
