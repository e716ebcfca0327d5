"""Random programs on one session: steps, forks, ways back, changes of mode, journals cut short, partial pages.

Every sequence is given tokens that are known beforehand, so that what its logits depend on is its way alone: which
prompt it began with, and which modes it was in from which length on. Wherever a way is taken a second time, by a fork,
after going back, or by a replay, its logits must be those of the first time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.history import tree
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.tiny import model_of, prompt_ids

PROMPTS = (prompt_ids(19), prompt_ids(10, seed=2))  # neither fills its last page of 4
FORCED = prompt_ids(90, seed=1)
MODES = {
    "growing": CacheSpec(),
    "paged": CacheSpec("paged", page_size=4, num_pages=200),
    "h2o": CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4)),
    "window": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=9)),
    "paged h2o": CacheSpec("paged", page_size=4, num_pages=200, retention=RetentionSpec("h2o", budget=12, window=4)),
}
TOLERANCE = 1e-4  # sequences of different lengths that go through one forward round differently

OPERATIONS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("fork"), st.integers(0, 7)),
    st.tuples(st.just("rewind"), st.integers(0, 7)),
    st.tuples(st.just("mode"), st.sampled_from(sorted(MODES))),
    st.tuples(st.just("trim"), st.just(0)),
    st.tuples(st.just("submit"), st.integers(0, 1)),
    st.tuples(st.just("remove"), st.integers(0, 7)),
)


@dataclass(frozen=True)
class Way:
    """What the logits of a sequence depend on: its prompt, and every mode with the length from which it was used."""

    prompt: int
    modes: tuple[tuple[str, int], ...]


@dataclass(eq=False)
class Program:
    """A session, and the `Way` of each of its sequences after each step."""

    session: Session
    mode: str
    ways: dict[int, Way] = field(default_factory=dict)
    after: dict[int, tuple[str, dict[int, Way]]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)  # of any branch
    known: dict[tuple[Way, int], torch.Tensor] = field(default_factory=dict)
    num_repeated: int = 0

    def submit(self, prompt: int) -> None:
        if len(self.ways) < 3:
            seq_id = self.session.submit(Prompt(token_ids=PROMPTS[prompt]))
            self.session.force(seq_id, FORCED)
            self.ways[seq_id] = Way(prompt, ((self.mode, 0),))

    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.session.has_work:
                return
            record = self.session.step()
            self.steps.append(record.step)
            self.after[record.step] = (self.mode, dict(self.ways))
            for part in record.sequences:
                self._compare(part.seq_id, part.num_tokens)

    def _compare(self, seq_id: int, num_tokens: int) -> None:
        newest = self.session.logits(seq_id)
        assert newest is not None
        key = (self.ways[seq_id], num_tokens)
        self.num_repeated += key in self.known
        first = self.known.setdefault(key, newest.clone())
        difference = float((newest - first).abs().max())
        assert difference <= TOLERANCE, f"{self.ways[seq_id]} with {num_tokens} tokens is off by {difference}"

    def _some_step(self, back: int) -> int | None:
        last = self.session.last_step
        return None if last is None else self.steps[-1 - back % len(self.steps)]

    def fork(self, back: int) -> None:
        step, seq_id = self._some_step(back), next(iter(self.ways), None)
        if step is None or seq_id is None or len(self.ways) >= 3:
            return
        try:
            child = self.session.fork(seq_id, step).child
        except InputError:
            return
        mode, ways = self.after[step]
        way = ways.get(seq_id, self.ways[seq_id])
        if mode != self.mode:  # both are exact, else it would have been refused
            count = self.session.sequence(child).num_tokens
            way = replace(way, modes=(*way.modes, (self.mode, count)))
        self.ways[child] = way

    def rewind(self, back: int) -> None:
        step = self._some_step(back)
        if step is None:
            return
        try:
            self.session.go_to(step)
        except InputError:
            return
        self.mode, ways = self.after[step]
        self.ways = dict(ways)
        assert set(self.ways) == set(self.session.live.ids)

    def change(self, mode: str) -> None:
        if mode == self.mode:
            return
        self.session.set_cache(MODES[mode])
        self.mode = mode
        for seq_id, way in self.ways.items():
            self.ways[seq_id] = replace(way, modes=(*way.modes, (mode, self.session.sequence(seq_id).num_tokens)))

    def trim(self) -> None:
        """Shorten the journals in which caches note dropped rows."""
        for seq_id in self.ways:
            self.session.cache_of(seq_id).forget_past()

    def remove(self, number: int) -> None:
        if len(self.ways) > 1:
            seq_id = sorted(self.ways)[number % len(self.ways)]
            self.session.remove(seq_id)
            del self.ways[seq_id]

    def do(self, operation: str, argument: int | str) -> None:
        match operation, argument:
            case "mode", str(mode):
                self.change(mode)
            case "trim", _:
                self.trim()
            case name, int(number):
                getattr(self, name)(number)
        store = self.session.live.mode.store
        for group in store.groups if store is not None else ():
            group.pool.check(group.tables)
        assert self.session.cache == MODES[self.mode]


def run(mode: str, operations: list[tuple[str, int | str]]) -> Program:
    program = Program(Session(model_of("llama"), MODES[mode], prefill_chunk=8), mode)
    program.submit(0)
    program.step(3)
    for operation, argument in operations:
        program.do(operation, argument)
    program.step(3)
    return program


@settings(max_examples=effort(15, 300), derandomize=True, suppress_health_check=list(HealthCheck))
@given(mode=st.sampled_from(sorted(MODES)), operations=st.lists(OPERATIONS, max_size=14))
def test_a_way_taken_again_gives_the_same_logits(mode: str, operations: list[tuple[str, int | str]]) -> None:
    run(mode, operations)


@settings(max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mode=st.sampled_from(["growing", "paged"]), operations=st.lists(OPERATIONS, max_size=14))
def test_with_a_journal_that_is_soon_cut(mode: str, operations: list[tuple[str, int | str]]) -> None:
    """States that the journal no longer has are refused; those that it has come back exactly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "MAX_STEPS", 8)
        run(mode, operations)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_program_does_repeat_ways(mode: str) -> None:
    """A fork of an earlier step and a jump back are compared with the first time: the tests above are not empty."""
    program = run(mode, [("step", 4), ("fork", 2), ("step", 3), ("trim", 0), ("rewind", 2), ("step", 4)])
    assert program.num_repeated >= 4
