"""What is viewed decides which path the timeline shows: a moment of any branch, made by a step or an edit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.kit.heatmap import edits_shown
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Zero
from engine.wire.events import NodeAdded
from engine.wire.records import EditMade, StepRecord
from engine.wire.tree import Node
from tests.app import samples


def record(step: int, parent: int | None, token_id: int) -> StepRecord:
    """Step n of its path computes token n of its sequence."""
    depth = 0 if parent is None else DEPTH[parent] + 1
    DEPTH[step] = depth
    made = samples.step_record(depth)
    part = made.sequences[0]
    if depth:
        part = replace(part, token_ids=(token_id,), texts=(f" t{token_id}",))
    return replace(made, step=step, parent=parent, sequences=(part,))


DEPTH: dict[int, int] = {}


@pytest.fixture
def grown(models: Models) -> Models:
    """0 … 5, then an edit as 6 and a step 7; after 2 the branch 8 9 10, which is live."""
    history, timeline = models.history, models.timeline
    timeline.append([record(n, n - 1 if n else None, 100 + n) for n in range(6)])
    history.add(NodeAdded(Node(6, 5, (EditMade(Zero(0, Rows(0, 2))),), CacheSpec()), True, "written", 0.25))
    DEPTH[6] = DEPTH[5]
    timeline.go_to(6)
    timeline.append([record(7, 6, 107)])
    history.go_to(2)
    timeline.go_to(2)
    timeline.append([record(8, 2, 208), record(9, 8, 209), record(10, 9, 210)])
    return models


def newest_ids(models: Models) -> list[int]:
    tokens = models.timeline.tokens(0, models.selection.now.step)
    return [token.token_id for token in tokens][samples.PROMPT :]


def test_a_moment_of_another_branch_is_shown_with_its_path(grown: Models) -> None:
    timeline, selection = grown.timeline, grown.selection
    assert (list(timeline.nodes), newest_ids(grown)) == ([0, 1, 2, 8, 9, 10], [101, 102, 208, 209, 210])
    selection.update(step=4)
    assert list(timeline.nodes) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert newest_ids(grown) == [101, 102, 103, 104]
    assert timeline.is_elsewhere
    assert not timeline.is_of_live
    assert list(timeline.live_path.nodes) == [0, 1, 2, 8, 9, 10]
    selection.update(step=None)
    assert list(timeline.nodes) == [0, 1, 2, 8, 9, 10]
    assert not timeline.is_elsewhere


def test_the_common_past_is_no_other_branch_and_the_path_stays(grown: Models) -> None:
    grown.selection.update(step=4)
    grown.selection.update(step=1)
    assert list(grown.timeline.nodes) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not grown.timeline.is_elsewhere
    grown.selection.update(step=9)
    assert list(grown.timeline.nodes) == [0, 1, 2, 8, 9, 10]


def test_the_live_step_is_followed_whoever_names_it(grown: Models) -> None:
    grown.selection.update(step=4)
    grown.selection.update(step=10)
    assert grown.selection.now.step is None
    assert grown.timeline.tip == 10


def test_an_edit_is_a_moment_of_its_own_with_the_record_of_the_step_before(grown: Models) -> None:
    timeline = grown.timeline
    grown.selection.update(step=6)
    assert (timeline.node_index(6), timeline.node_index(5), timeline.node_index(9)) == (6, 5, None)
    assert timeline.at(6) is timeline.record(5)
    assert timeline.record(6) is None
    assert [timeline.neighbour(6, -1), timeline.neighbour(6, +1)] == [5, 7]
    assert [made.step for made in grown.edits.on_path(6)] == [6]
    assert grown.edits.on_path(5) == ()


def test_steps_that_come_meanwhile_are_of_the_live_path(grown: Models) -> None:
    grown.selection.update(step=4)
    grown.timeline.append([record(11, 10, 211)])
    assert list(grown.timeline.nodes) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(grown.timeline.live_path.nodes) == [0, 1, 2, 8, 9, 10, 11]
    grown.selection.update(step=None)
    assert newest_ids(grown) == [101, 102, 208, 209, 210, 211]


def test_a_fork_that_no_step_has_computed_is_there_after_a_look_elsewhere(grown: Models) -> None:
    grown.timeline.branch(1, 0, 9, samples.PROMPT + 4)
    grown.selection.update(step=8)
    grown.selection.update(step=None)
    count = grown.timeline.num_tokens(1)
    assert count == samples.PROMPT + 4
    grown.selection.update(step=4)
    grown.selection.update(step=1)
    grown.timeline.branch(2, 0, 8, samples.PROMPT + 3)
    assert grown.timeline.num_tokens(2) == 0, "the path of the other branch is still shown"
    grown.selection.update(step=None)
    assert [grown.timeline.num_tokens(seq_id) for seq_id in (1, 2)] == [count, count - 1]


def test_how_far_a_moment_is_ahead_counts_steps_and_no_edits(grown: Models) -> None:
    grown.selection.update(step=7)
    assert grown.timeline.num_steps_ahead == 0, "it did not come of the live step"
    grown.history.go_to(3)
    grown.timeline.go_to(3)
    assert grown.timeline.is_elsewhere
    assert grown.timeline.num_steps_ahead == 3, "4, 5 and 7"
    grown.selection.update(step=2)
    assert grown.timeline.num_steps_ahead == 0


def test_a_place_ahead_is_given_up_for_a_moment(models: Models) -> None:
    models.timeline.append(samples.story(3))
    models.selection.update(step=None, ahead=12)
    assert models.selection.now.ahead == 12
    models.selection.update(position=2)
    assert models.selection.now.ahead == 12
    models.selection.update(step=1)
    assert (models.selection.now.step, models.selection.now.ahead) == (1, 0)


def test_a_fork_has_the_edits_of_the_one_it_came_of_until_then(grown: Models) -> None:
    grown.history.go_to(7)
    grown.timeline.go_to(7)
    grown.timeline.branch(1, 0, 6, samples.PROMPT + 5)
    grown.timeline.branch(2, 0, 5, samples.PROMPT + 5)
    assert [[one.step for one in edits_shown(grown, seq_id)] for seq_id in (0, 1, 2)] == [[6], [6], []]


def test_a_sequence_that_came_from_another_branch_has_the_edits_of_there(grown: Models) -> None:
    """The live branch parts after 3; the edits of another one are at 6 and, of the fork there, none."""
    history, timeline = grown.history, grown.timeline
    assert not history.is_on_path(6, history.live)
    timeline.branch(1, 0, 7, samples.PROMPT + 5)
    timeline.branch(2, 0, 5, samples.PROMPT + 5)
    timeline.branch(3, 1, 10, samples.PROMPT + 5)
    assert [[one.step for one in edits_shown(grown, seq_id)] for seq_id in (0, 1, 2, 3)] == [[], [6], [], [6]]
    history.delete((6, 7))
    assert [edits_shown(grown, seq_id) for seq_id in (1, 2)] == [(), ()]
