"""What of an engine's events a session keeps."""

from __future__ import annotations

from msgspec.structs import replace

from engine.saved.session import SessionRecorder
from engine.spec.cache import CacheSpec
from engine.wire.events import NodeAdded
from engine.wire.records import TokensForced
from engine.wire.tree import Node
from tests.app import samples


def test_a_moment_that_was_left_becomes_a_node_and_not_the_present_one() -> None:
    recorder = SessionRecorder()
    recorder.take([samples.step_record(0), samples.step_record(1)])
    left = Node(2, 1, (TokensForced(0, (7,)),), CacheSpec())
    recorder.take([NodeAdded(left, is_live=False)])
    session = recorder.session()
    assert [node.step for node in session.nodes] == [0, 1, 2]
    assert session.live == 1
    recorder.take([NodeAdded(Node(3, 2, (), CacheSpec()), is_live=True)])
    assert recorder.session().live == 3


def test_the_text_of_a_token_is_kept_when_it_is_chosen() -> None:
    """Before a step computes it, if one ever does."""
    recorder = SessionRecorder()
    record = samples.step_record(0)
    part = replace(record.sequences[0], sampled=77, sampled_text=" end")
    recorder.take([replace(record, sequences=(part,))])
    assert recorder.session().texts == {**dict(zip(part.token_ids, part.texts, strict=True)), 77: " end"}
