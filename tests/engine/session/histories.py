"""Random programs on the history of a session: going to a moment must restore its state bit for bit, and so must a
replay of the moment's path in a fresh session."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs

from engine.errors import InputError
from engine.look.source import places_of
from engine.session.commands import continue_with, delete_branch, redo_edit, undo_edit
from engine.session.edits import make_edit
from engine.session.replay import Replay
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.edit import AddNoise, BiasLogits, Mask, Overwrite, ReplaceTokens, Rows, Scale, Zero
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.tiny import model_of, prompt_ids, tiniest_model

H2O = RetentionSpec("h2o", budget=9, window=3)
MODES = {
    "growing": CacheSpec(),
    "dynamic": CacheSpec("dynamic"),
    "static": CacheSpec("static"),
    "none": CacheSpec("none"),
    "paged": CacheSpec("paged", page_size=4, num_pages=60),
    "small pool": CacheSpec("paged", page_size=4, num_pages=14),
    "host": CacheSpec("host", page_size=4, num_pages=30, host_gib=0.001),
    "paged int8": CacheSpec("paged", page_size=4, num_pages=60, codec=uniform("int8")),
    "int8": CacheSpec(codec=uniform("int8")),
    "kivi": CacheSpec(codec=uniform("kivi-4", 8, 8)),
    "window": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=7)),
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=7, rerotate=True)),
    "h2o": CacheSpec(retention=H2O),
    "paged h2o": CacheSpec("paged", page_size=4, num_pages=60, retention=H2O),
}
OF_ANY_MODEL = ("growing", "dynamic", "static", "none", "paged", "small pool")
PLACES = [
    *(("llama", mode) for mode in MODES),
    *(("mistral", mode) for mode in OF_ANY_MODEL),
    *(("lfm2", mode) for mode in ("growing", "dynamic", "paged")),
    *(("mamba", mode) for mode in ("growing", "dynamic")),
    *(("bart", mode) for mode in ("growing", "small pool", "int8", "window", "paged h2o")),
]
ASIDE: dict[str, Any] = {"capture": "off", "surprisal": False, "is_scratch": True}  # checksums alone are measured
TINIEST = "the tiniest"  # of all models, in place of an architecture
OPERATIONS = (
    *("step", "step", "step", "steps", "go", "go", "fork", "submit", "remove"),
    *("force", "stop", "sample", "mode", "forget", "delete", "edit", "edit", "undo", "redo", "turn"),
)


@dataclass(frozen=True, eq=False)
class Stood:
    """One sequence after a step."""

    was: object
    token_ids: tuple[int, ...]
    rows: list[torch.Tensor]
    logits: torch.Tensor | None
    pages: tuple[int, ...]


def stands(session: Session) -> dict[int, Stood]:
    """The state of every sequence: its facts, K and V with their positions, recurrent states, logits, page tables."""
    found = {}
    for live in session.live:
        cache, rows = live.cache, list[torch.Tensor]()
        for layer in range(len(cache.layers)) if live.sequence.num_tokens else ():
            held = cache.rows(layer)
            if held is not None and held.keys.shape[2]:
                rows += [held.keys.clone(), held.values.clone()]
                rows.append(places_of(held).clone())
            rows += [state.values.clone() for state in cache.states(layer)]
        logits = None if live.logits is None else live.logits.clone()
        tables = getattr(cache, "tables", ())
        pages = tuple(number for table in tables for number in (table.num_tokens, *table.held_numbers))
        # but for what says its nodes, others on each branch
        was = structs.replace(live.sequence, computed_by=None, moves=(), origins=())
        found[live.seq_id] = Stood(was, tuple(live.sequence.token_ids), rows, logits, pages)
    return found


def difference(one: dict[int, Stood], other: dict[int, Stood]) -> str:
    """What is not equal bit for bit, in words; empty if all is."""
    if list(one) != list(other):
        return f"sequences {list(one)} and {list(other)}"
    for seq_id, mine in one.items():
        its = other[seq_id]
        if (mine.was, mine.token_ids, mine.pages) != (its.was, its.token_ids, its.pages):
            return f"sequence {seq_id}: {mine.was} {mine.pages} and {its.was} {its.pages}"
        if [tensor.shape for tensor in mine.rows] != [tensor.shape for tensor in its.rows]:
            return f"sequence {seq_id}: other numbers of rows"
        if not all(map(torch.equal, mine.rows, its.rows)):
            return f"sequence {seq_id}: other rows"
        if (mine.logits is None) != (its.logits is None):
            return f"sequence {seq_id}: logits are known to one alone"
        if mine.logits is not None and its.logits is not None and not torch.equal(mine.logits, its.logits):
            return f"sequence {seq_id}: other logits"
    return ""


@dataclass(eq=False)
class Program:
    """A session that does random operations, and its state after each of its steps."""

    architecture: str
    mode: str
    chance: random.Random
    session: Session = field(init=False)
    stood: dict[int, tuple[CacheSpec, dict[int, Stood]]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    num_compared: int = 0

    def __post_init__(self) -> None:
        is_tiniest = self.architecture == TINIEST
        model = tiniest_model() if is_tiniest else model_of(self.architecture)
        # nothing is captured that the comparisons do not need: more programs can be run in the same time
        looks = ASIDE if is_tiniest else {}
        self.session = Session(model, MODES[self.mode], prefill_chunk=9 if is_tiniest else 6, **looks)
        self.submit()

    # ---- what is done --------------------------------------------------------------------------------------------

    def do(self, what: str) -> None:
        """Do one operation. If the session refuses it, it must have changed nothing."""
        self.done.append(what)
        what = "mode_" if what == "mode" else what
        session = self.session
        before = stands(session), session.last_step, session.cache, tuple(session.history.changes)
        try:
            getattr(self, what)()
        except InputError as error:
            self.done.append(f"refused: {error}")
            assert difference(before[0], stands(session)) == "", self.story
            assert (session.last_step, session.cache, tuple(session.history.changes)) == before[1:], self.story
        self.check()

    def check(self) -> None:
        if self.session.live.mode.store is not None:
            self.session.live.mode.store.check()

    @property
    def story(self) -> str:
        return f"{self.architecture}, {self.mode}: " + ", ".join(self.done)

    def some_sequence(self) -> int:
        ids = self.session.live.ids
        return self.chance.choice(ids) if ids else 99

    def submit(self) -> None:
        if len(self.session.live) < 3:
            ids = prompt_ids(self.chance.randint(3, 15), seed=self.chance.randint(0, 2))
            sampling = SamplingParams(temperature=1.0, seed=self.chance.randint(0, 9))
            seq_id = self.session.submit(Prompt(token_ids=ids, sampling=sampling))
            self.session.force(seq_id, prompt_ids(self.chance.randint(1, 12), seed=self.chance.randint(3, 9)))

    def step(self) -> None:
        record = self.session.step()
        self.stood[record.step] = record.cache, stands(self.session)

    def steps(self) -> None:
        for _ in range(self.chance.randint(*((1, 3) if self.architecture == TINIEST else (2, 5)))):
            if self.session.has_work:
                self.step()

    def go(self) -> None:
        place = self.chance.random()
        step = self.chance.choice([*self.stood]) if self.stood and place < 0.9 else None if place < 0.95 else 10_000
        self.done.append(str(self.session.go_to(step)) + f" ({step})")
        assert self.session.last_step == step, self.story
        if step is None:
            assert not len(self.session.live)
        self._compare()

    def fork(self) -> None:
        if len(self.session.live) > 3:
            return
        step = self.chance.choice([*self.stood, None])
        known = self.session.live.ids if step is None else list(self.stood[step][1])
        seq_id = self.chance.choice(list(known)) if known else 99
        then = (stands(self.session) if step is None else self.stood[step][1]).get(seq_id)
        made = self.session.fork(seq_id, step).child
        self.done.append(f"of {seq_id} at {step}")
        assert then is not None
        is_same_mode = step is None or self.stood[step][0] == self.session.cache
        now = stands(self.session)[made]
        assert now.token_ids == then.token_ids, self.story
        if is_same_mode and not self.session.cache.recomputes:
            assert [t.shape for t in now.rows] == [t.shape for t in then.rows], self.story
            assert all(map(torch.equal, now.rows, then.rows)), self.story
            self.num_compared += 1

    def turn(self) -> None:
        """Continue a sequence with a prompt that shares its beginning."""
        seq_id = self.some_sequence()
        known = self.session.sequence(seq_id).token_ids
        start = known[: self.chance.randint(0, len(known))]
        ids = (*start, *prompt_ids(self.chance.randint(1, 9), seed=self.chance.randint(0, 9)))
        child = continue_with(self.session, seq_id, Prompt(token_ids=ids, sampling=SamplingParams(seed=1)))
        count = self.session.sequence(child).num_tokens
        self.done.append(f"of {seq_id}: {count} of {len(ids)}")
        start = [self.session.model.start_id] if self.session.model.info.geometry.has_encoder else []
        assert self.session.sequence(child).token_ids == [*ids, *start], self.story

    def remove(self) -> None:
        self.session.remove(self.some_sequence())

    def force(self) -> None:
        self.session.force(self.some_sequence(), prompt_ids(self.chance.randint(1, 4), seed=self.chance.randint(0, 99)))

    def stop(self) -> None:
        if self.chance.random() < 0.4:
            self.session.stop(self.some_sequence())

    def sample(self) -> None:
        sampling = SamplingParams(temperature=self.chance.choice((0.0, 1.0, 2.0)), seed=self.chance.randint(0, 9))
        self.session.set_sampling(sampling, self.some_sequence())

    def mode_(self) -> None:
        modes = list(MODES) if self.architecture in ("llama", "bart", TINIEST) else OF_ANY_MODEL
        self.session.set_cache(MODES[self.chance.choice([*modes])])

    def forget(self) -> None:
        """Let kept checkpoints go, so that the next way back is a fork or a replay."""
        self.session.kept.clear()
        if self.chance.random() < 0.5:
            self.session.history.logits.clear()

    def edit(self) -> None:
        seq_id = self.some_sequence()
        count = self.session.sequence(seq_id).num_tokens
        start = self.chance.randint(0, max(0, count - 1))
        rows = Rows(start, min(start + 2, max(count, start + 1)))
        seed = self.chance.randint(0, 99)
        edits = (
            Zero(seq_id, rows),
            Scale(seq_id, rows, 0.5),
            AddNoise(seq_id, rows, 1.0, seed),
            Mask(seq_id, rows),
            ReplaceTokens(seq_id, start, (7,)),
            ReplaceTokens(seq_id, start, (7, 9), "re-prefill"),
            BiasLogits(seq_id, ((5, 3.0),)),
            Overwrite(seq_id, rows, from_step=self.chance.choice([*self.stood, 0])),
        )
        edit = self.chance.choice(edits)
        make_edit(self.session, edit)
        self.done.append(f"{type(edit).__name__} of {seq_id}")
        assert self.session.last_step is not None
        self.stood[self.session.last_step] = self.session.cache, stands(self.session)

    def undo(self) -> None:
        self.done.append(undo_edit(self.session))
        self._compare()

    def redo(self) -> None:
        self.done.append(redo_edit(self.session))
        self._compare()

    def _compare(self) -> None:
        step = self.session.last_step
        if step in self.stood:
            cache, then = self.stood[step]
            assert self.session.cache == cache, self.story
            found = difference(stands(self.session), then)
            assert found == "", f"{found}: {self.story}"
            self.num_compared += 1

    def delete(self) -> None:
        if self.stood and self.chance.random() < 0.3:
            for step in delete_branch(self.session, self.chance.choice([*self.stood])):
                self.stood.pop(step, None)

    # ---- a fresh session -----------------------------------------------------------------------------------------

    def compare_with_a_fresh_session(self) -> None:
        """A fresh session that steps along the path to the live step, without going back, has the same state."""
        session = self.session
        step = session.last_step
        if step is None:
            return
        tree = session.history.tree
        nodes = tuple(tree.at(each).node for each in tree.needed_for(step))
        fresh = Session(session.model, nodes[0].cache, **ASIDE)
        replay = Replay(fresh, nodes)
        for _ in replay.steps():
            pass
        assert replay.is_exact, f"{replay.why_not_exact}: {self.story}"
        session.go_to(None)
        session.go_to(step)
        assert difference(stands(session), stands(fresh)) == "", self.story
        self.num_compared += 1


def run(seed: int, num_operations: int = 14, place: tuple[str, str] | None = None) -> Program:
    """Run the program that belongs to a seed."""
    chance = random.Random(seed)
    program = Program(*(place or chance.choice(PLACES)), chance)
    for _ in range(num_operations):
        program.do(chance.choice(OPERATIONS))
    for what in ("submit", "steps", "go"):
        program.do(what)
    program.compare_with_a_fresh_session()
    program.check()
    return program


Operations = tuple[tuple[str, int], ...]  # each with the seed of its arguments


def play(place: tuple[str, str], operations: Operations) -> Program:
    """A program of these operations, which ends with some steps; what one of them does, it does without the others."""
    program = Program(*place, random.Random(len(operations)))
    for what, seed in (*operations, ("steps", 1)):
        program.chance.seed(seed)
        program.do(what)
    program.compare_with_a_fresh_session()
    program.check()
    return program


def operations_of(seed: int, num_operations: int) -> Operations:
    """A short program, which is the same for a seed, and begins with some steps, so that there is what to act on."""
    chance = random.Random(seed)
    names = ["steps", *chance.choices(OPERATIONS, k=num_operations - 1)]
    return tuple((name, chance.randrange(1 << 30)) for name in names)


def shortest(place: tuple[str, str], operations: Operations) -> Operations:
    """A program that still fails and of which no operation can be left out."""
    number = 0
    while number < len(operations):
        fewer = operations[:number] + operations[number + 1 :]
        try:
            play(place, fewer)
            number += 1
        except Exception:
            operations = fewer
    return operations
