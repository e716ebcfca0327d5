"""The engine, a file opened without its model and the window tell the same of every sequence at every node of random
histories: with edits, forks, branches, other modes, prefix hits, preemption and half prompts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.models import Models
from engine.history.state import SequenceState
from engine.opened.session import history_events, walk
from engine.saved.session import SavedSession
from engine.wire.events import Event, ForkMade, NodeAdded, Submitted, WentTo
from engine.wire.records import EditMade, ModeChanged, SamplingChanged, StepRecord
from tests.effort import effort
from tests.engine.session.histories import TINIEST, Program, operations_of, play


def follow(models: Models, event: Event) -> None:
    """What the controller does with the events of a history."""
    match event:
        case Submitted(seq_id, token_ids, texts):
            models.timeline.begin(seq_id, token_ids, texts)
        case ForkMade():
            models.timeline.branch(event.child, event.parent, event.step, event.num_tokens)
        case WentTo(step):
            models.timeline.go_to(step)
        case NodeAdded():
            models.timeline.add_node(event)
        case StepRecord():
            models.timeline.append([event])


def without_choice(state: SequenceState) -> SequenceState:
    """Without what is chosen anew from logits, or found full in another cache, which no file says."""
    is_forced = state.sampled_is_forced
    return replace(state, sampled=state.sampled if is_forced else None, stop=None)


@pytest.mark.parametrize("mode", ["growing", "small pool", "h2o"])
def test_every_fold_says_the_same_at_every_node(mode: str) -> None:
    done, num_compared = set[str](), 0
    for seed in (*range(effort(8, 300)), 1582):  # the last one forks a fork that it removes at once
        program = play((TINIEST, mode), operations_of(seed, 10))
        num_compared += compared(program)
        done.update(program.done)
    assert num_compared > 20
    assert done >= {"step", "fork", "edit"}


def compared(program: Program) -> int:
    """Compare all nodes of a program; how many."""
    tree, models = program.session.history.tree, Models()
    saved = SavedSession(nodes=tuple(entry.node for entry in tree), live=program.session.last_step)
    states, is_chosen_anew = {}, set[int]()
    for computed in walk(saved.nodes):
        node = computed.node  # where rows come from is known to the engine alone
        then = {i: replace(each, moves=(), origins=()) for i, each in tree.at(node.step).states.items()}
        states[node.step] = computed.states
        if (node.parent in is_chosen_anew and node.work is None) or any(
            isinstance(each, EditMade | ModeChanged | SamplingChanged) for each in node.changes
        ):
            is_chosen_anew.add(node.step)
        assert computed.states.keys() == then.keys(), program.story
        for seq_id, state in computed.states.items():
            one, other = state, then[seq_id]
            if one != other:
                one, other = without_choice(one), without_choice(other)
                assert node.step in is_chosen_anew or node.work is not None, program.story
            assert one == other, f"node {node.step}, sequence {seq_id}: {program.story}"
    for event in history_events(saved, {}, {}):
        follow(models, event)
        node_step = (
            event.step if isinstance(event, StepRecord) else event.node.step if isinstance(event, NodeAdded) else None
        )
        for seq_id, state in states[node_step].items() if node_step is not None else ():
            shown = [token.token_id for token in models.timeline.tokens(seq_id)]
            assert shown[: state.num_tokens] == state.token_ids[: state.num_tokens], f"{node_step}: {program.story}"
            assert len(shown) == state.num_tokens or state.num_preemptions, f"{node_step}: {program.story}"
    return len(states)
