"""What must hold after every action of a random program: rows as they stood, bytes that add up, pages with owners.

`test_programs` compares the logits of a way taken twice; here the state is viewed, and what is refused must have
changed nothing. Journals are short, pages small, and prompts end in the middle of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache import lost_rows
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pages import KEPT
from tests.effort import effort
from tests.engine.tiny import model_of, prompt_ids

H2O = RetentionSpec("h2o", budget=9, window=3)
KNORM = RetentionSpec("knorm", budget=9, window=3)
MODES = {
    "growing": CacheSpec(),
    "static": CacheSpec("static"),
    "none": CacheSpec("none"),
    "paged": CacheSpec("paged", page_size=4, num_pages=40),
    "kivi": CacheSpec(codec=uniform("kivi-4", 8, 8)),
    "fp8": CacheSpec(codec=uniform("fp8")),
    "h2o": CacheSpec(retention=H2O),
    "knorm int8": CacheSpec(retention=KNORM, codec=uniform("int8")),
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=7, rerotate=True)),
    "paged h2o": CacheSpec("paged", page_size=4, num_pages=40, retention=H2O),
    "paged knorm": CacheSpec("paged", page_size=4, num_pages=40, retention=KNORM),
}
LOST_BYTES = 3_000  # room for a few evictions


@dataclass(frozen=True)
class Stood:
    """One sequence after a step: its mark, its rows and logits, and the mode they were in."""

    mark: object
    rows: list[torch.Tensor]
    logits: torch.Tensor | None


def rows_of(session: Session, seq_id: int) -> list[torch.Tensor]:
    cache, found = session.cache_of(seq_id), []
    for layer in range(len(cache.layers)):
        held = cache.rows(layer)
        if held is not None and held.keys.shape[2]:
            found += [held.keys.clone(), held.values.clone()]
            found += [] if held.positions is None else [held.positions.clone()]
    return found


class Programs(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(sorted(MODES)), length=st.integers(5, 15))
    def build(self, mode: str, length: int) -> None:
        self.context = contextlib.ExitStack()
        self.context.enter_context(patch.object(lost_rows, "MAX_BYTES", LOST_BYTES))
        self.session = Session(model_of("llama"), MODES[mode], prefill_chunk=8)
        self.stood: dict[int, dict[int, Stood]] = {}
        self.seed = 0
        self.begin(length)

    def teardown(self) -> None:
        self.context.close()

    # ---- actions -------------------------------------------------------------------------------------------------

    def begin(self, length: int) -> None:
        self.seed += 1
        seq_id = self.session.submit(Prompt(token_ids=prompt_ids(length, seed=self.seed)))
        self.force(seq_id)

    def force(self, seq_id: int) -> None:
        """Force many tokens: a random model would end its text at any moment."""
        self.seed += 1
        self.session.force(seq_id, prompt_ids(60, seed=self.seed))

    @property
    def seq_ids(self) -> list[int]:
        return [info.seq_id for info in self.session.sequences]

    def now(self) -> dict[int, Stood]:
        session = self.session
        found = {}
        for seq_id in self.seq_ids:
            logits = session.logits(seq_id)
            found[seq_id] = Stood(
                session.sequence(seq_id), rows_of(session, seq_id), None if logits is None else logits.clone()
            )
        return found

    @contextlib.contextmanager
    def or_unchanged(self) -> Iterator[None]:
        """Do an operation; if it is refused, check that it changed nothing."""
        before, spec = self.now(), self.session.cache
        try:
            yield
        except InputError:
            assert self.session.cache == spec
            self.compare(before)

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.session.has_work:
                return
            record = self.session.step()
            self.stood[record.step] = self.now()

    @precondition(lambda self: len(self.seq_ids) < 3)
    @rule(length=st.integers(3, 14))
    def submit(self, length: int) -> None:
        self.begin(length)

    @precondition(lambda self: len(self.seq_ids) < 3 and self.session.last_step is not None)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.seq_ids))
        step = data.draw(st.none() | st.sampled_from(sorted(self.stood)))
        with self.or_unchanged():
            made = self.session.fork(parent, step)
            then = self.stood[step].get(parent) if step is not None else self.now()[parent]
            if then is not None and not self.session.cache.recomputes:
                self.same_rows(rows_of(self.session, made.child), then.rows)
            self.force(made.child)

    @precondition(lambda self: len(self.seq_ids) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.session.remove(data.draw(st.sampled_from(self.seq_ids)))

    @rule(mode=st.sampled_from(sorted(MODES)))
    def set_cache(self, mode: str) -> None:
        with self.or_unchanged():
            self.session.set_cache(MODES[mode])

    @precondition(lambda self: bool(self.stood))
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.stood)))
        with self.or_unchanged():
            self.session.go_to(step)
            assert self.session.last_step == step
            assert set(self.seq_ids) == set(self.stood[step])
            self.compare(self.stood[step])

    # ---- what must hold ------------------------------------------------------------------------------------------

    def compare(self, then: dict[int, Stood]) -> None:
        now = self.now()
        for seq_id, stood in then.items():
            if seq_id in now:
                assert now[seq_id].mark == stood.mark
                if not self.session.cache.recomputes:  # a scratch may still hold later rows
                    self.same_rows(now[seq_id].rows, stood.rows)

    def same_rows(self, mine: list[torch.Tensor], its: list[torch.Tensor]) -> None:
        assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in its]
        for one, other in zip(mine, its, strict=True):
            assert torch.equal(one, other)

    @invariant()
    def bytes_add_up(self) -> None:
        if not hasattr(self, "session"):
            return
        for layer in self.session.bytes().layers:
            assert layer.predicted == layer.stored
            stored = sum(gap.num_bytes for gap in layer.gaps if gap.part == "stored")
            assert stored <= layer.stored <= layer.reserved
            assert layer.reserved - layer.stored == sum(g.num_bytes for g in layer.gaps if g.part == "reserved")

    @invariant()
    def pages_have_one_owner_a_reference(self) -> None:
        store: Any = self.session.live.mode.store if hasattr(self, "session") else None
        for group in store.groups if store is not None else ():
            group.pool.check(group.tables)

    @invariant()
    def a_shared_row_is_stored_once(self) -> None:
        store: Any = self.session.live.mode.store if hasattr(self, "session") else None
        if store is None:
            return
        layers = {layer.layer: layer.stored for layer in self.session.bytes().layers}
        for group in store.groups:
            slots = {
                table.slot(position)
                for table in group.tables
                if table.seq_id != KEPT
                for position in range(table.num_tokens)
                if table.page_ids[position // table.page_size]
            }
            for layer in group.layers:
                assert layers[layer.index] == store.layer_bytes(layer.index, len(slots)).stored

    @invariant()
    def rows_are_as_many_as_tokens_or_positions(self) -> None:
        for seq_id in self.seq_ids if hasattr(self, "session") else ():
            cache = self.session.cache_of(seq_id)
            for layer in range(len(cache.layers)):
                rows, positions = cache.rows(layer), cache.positions(layer)
                if rows is None:
                    continue
                assert (rows.positions is None) == (positions is None)
                if positions is not None:
                    assert positions.shape == rows.keys.shape[1:3]
                    assert bool((positions.diff(dim=1) > 0).all())
                    assert rows.stop <= max(cache.num_tokens, self.session.sequence(seq_id).num_tokens)


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(
    max_examples=effort(12, 200), stateful_step_count=12, derandomize=True, suppress_health_check=list(HealthCheck)
)
