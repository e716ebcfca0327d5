"""Lanes of tokens along paths of random trees: as a plain reconstruction from the root has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.models import Models
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.events import ForkMade, NodeAdded
from engine.wire.records import Change, SamplingChanged, SequenceForked, StepRecord
from engine.wire.tree import Node
from tests.app import samples

PART = samples.step_record(1).sequences[0]
Tokens = tuple[tuple[int, int], ...]  # (token id, the step that computed it)


def record(
    step: int, parent: int | None, computed: dict[int, tuple[int, int]], changes: tuple[Change, ...]
) -> StepRecord:
    """A step that computed to each sequence one token `(position, token id)`."""
    parts = tuple(
        replace(
            PART, seq_id=seq_id, token_ids=(token_id,), texts=(f"t{token_id}",), first_position=position,
            num_tokens=position + 1, num_prompt_tokens=1, surprisal=(1.0,),
        )
        for seq_id, (position, token_id) in computed.items()
    )  # fmt: skip
    return replace(samples.step_record(1), step=step, parent=parent, sequences=parts, changes=changes)


@dataclass
class Tree:
    """What was done, by hand: the tokens of every sequence after every node."""

    models: Models = field(default_factory=Models)
    states: dict[int | None, dict[int, Tokens]] = field(default_factory=lambda: {None: {}})
    parents: dict[int, int | None] = field(default_factory=dict)
    records: dict[int, StepRecord] = field(default_factory=dict)
    pending: tuple[Change, ...] = ()
    live: int | None = None
    step: int = -1
    num_sequences: int = 0

    def _node(self) -> int:
        self.step += 1
        self.parents[self.step] = self.live
        return self.step

    def take_step(self, token_id: int) -> None:
        state = self._after_changes()
        if not state:
            state = {self.num_sequences: ()}
            self.num_sequences += 1
        computed = {seq_id: (len(tokens), token_id + seq_id) for seq_id, tokens in state.items()}
        parent, node = self.live, self._node()
        done = record(node, parent, computed, self.pending)
        self.states[node] = {seq: (*tokens, (computed[seq][1], node)) for seq, tokens in state.items()}
        self.records[node], self.pending, self.live = done, (), node
        self.models.timeline.append([done])

    def fork(self, choice: int) -> None:
        """Of any sequence after any node, of this branch or another."""
        places = [(node, seq) for node, state in self.states.items() for seq in state if node is not None]
        if not places or self.live is None:
            return
        node, parent = places[choice % len(places)]
        child, self.num_sequences = self.num_sequences, self.num_sequences + 1
        self.pending = (*self.pending, SequenceForked(child, parent, node))
        event = ForkMade(parent, child, node, len(self.states[node][parent]), "shared")
        self.models.timeline.branch(event.child, event.parent, event.step, event.num_tokens)

    def add_node(self, *, is_live: bool) -> None:
        """What was done so far becomes a node that no step made."""
        changes = (*self.pending, SamplingChanged(0, SamplingParams()))
        parent, state = self.live, self._after_changes()
        node = self._node()
        self.states[node] = state
        self.models.history.add(NodeAdded(Node(node, parent, changes, CacheSpec()), is_live))
        self.pending = ()
        if is_live:
            self.live = node
            self.models.timeline.go_to(node)

    def _after_changes(self) -> dict[int, Tokens]:
        state = dict(self.states[self.live])
        for change in self.pending:
            assert isinstance(change, SequenceForked)
            state[change.seq_id] = self.states[change.step][change.parent]
        return state

    def go_to(self, choice: int) -> None:
        if self.pending:
            self.add_node(is_live=False)
        nodes = [node for node in self.states if node is not None]
        if nodes:
            self.live = nodes[choice % len(nodes)]
            self.models.history.go_to(self.live)
            self.models.timeline.go_to(self.live)

    def path(self) -> list[int]:
        found, node = [], self.live
        while node is not None:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def check(self) -> None:
        timeline, path = self.models.timeline, self.path()
        steps = [node for node in path if node in self.records]
        assert [record.step for record in timeline] == steps
        assert timeline.tip == self.live
        for seq_id, tokens in self._after_changes().items():
            assert tuple((token.token_id, token.step) for token in timeline.tokens(seq_id)) == tokens
            assert [token.position for token in timeline.tokens(seq_id)] == list(range(len(tokens)))
        for node in steps:
            for seq_id, tokens in self.states[node].items():
                assert tuple((token.token_id, token.step) for token in timeline.tokens(seq_id, node)) == tokens
                assert timeline.num_tokens(seq_id, node) == len(tokens)
                part = timeline.part(seq_id, node)
                assert part is not None
                assert (part.num_tokens, part.token_ids) == (len(tokens), (tokens[-1][0],))
        gone = set(range(self.num_sequences)) - set(self._after_changes())
        assert all(len(timeline.tokens(seq_id)) == 0 for seq_id in gone), "what is not on this path has no tokens"


ACTS = st.tuples(st.sampled_from(("step", "step", "step", "go", "fork", "node")), st.integers(0, 60))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(ACTS, max_size=40))
def test_lanes_along_random_trees(qapp: object, acts: list[tuple[str, int]]) -> None:
    tree = Tree()
    for what, number in acts:
        match what:
            case "step":
                tree.take_step(number)
            case "go":
                tree.go_to(number)
            case "fork":
                tree.fork(number)
            case _ if tree.live is not None:
                tree.add_node(is_live=True)
        tree.check()


def test_a_step_costs_its_token_and_what_was_read_stays_as_it_was(models: Models) -> None:
    """No token that was there is copied: the run of before and that of now are parts of one list."""
    models.timeline.append(samples.story(5))
    before = models.timeline.tokens(0)
    assert models.timeline.tokens(0) is before
    models.timeline.append([samples.step_record(6)])
    now = models.timeline.tokens(0)
    assert (len(before), len(now)) == (samples.PROMPT + 5, samples.PROMPT + 6)
    assert now.shares_with(before)
    models.timeline.go_to(3)
    models.timeline.append([replace(samples.step_record(4), step=9)])
    assert before[-1].step == 5, "the branch that was left keeps its tokens for those who hold them"
    assert models.timeline.tokens(0)[-1].step == 9


def test_tokens_in_the_place_of_others_leave_the_past_as_it_was(models: Models) -> None:
    models.timeline.append(samples.story(4))
    old = [token.token_id for token in models.timeline.tokens(0)]
    other = samples.step_record(5)
    part = replace(other.sequences[0], token_ids=(7, 8), texts=("a", "b"), first_position=3, num_tokens=5)
    models.timeline.append([replace(other, sequences=(part,))])
    assert [token.token_id for token in models.timeline.tokens(0)] == [*old[:3], 7, 8]
    assert [token.token_id for token in models.timeline.tokens(0, 4)] == old
    assert [token.token_id for token in models.timeline.tokens(0, 0)] == old[: samples.PROMPT]
    models.timeline.append([replace(samples.step_record(6), step=6)])
    models.timeline.go_to(5)
    assert [token.token_id for token in models.timeline.tokens(0)] == [*old[:3], 7, 8]
    models.timeline.go_to(4)
    assert [token.token_id for token in models.timeline.tokens(0)] == old
