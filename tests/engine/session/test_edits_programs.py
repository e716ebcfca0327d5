"""Random programs of steps, edits, undo, redo and jumps: going to a moment restores exactly its first state."""

from __future__ import annotations

from contextlib import suppress

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.session.commands import redo_edit, undo_edit
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.edit import AddNoise, BiasLogits, Drop, Edit, Mask, Overwrite, Pin, ReplaceTokens, Rows, Scale, Zero
from engine.spec.sampling import Prompt, SamplingParams
from tests.effort import effort
from tests.engine.session.sessions import same, tensors
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import model_of, prompt_ids

numbers = st.integers(0, 5)
layers = st.sampled_from([None, (0,), (1,)])
heads = st.sampled_from([None, (0,), (1,)])


@st.composite
def rows(draw: st.DrawFn, is_whole: bool = False) -> Rows:
    start = draw(st.integers(0, 24))
    stop = start + draw(st.integers(1, 4))
    part = "both" if is_whole else draw(st.sampled_from(["keys", "values", "both"]))
    return Rows(start, stop, draw(layers), draw(heads), None, part)  # type: ignore[arg-type]


tokens = st.lists(st.integers(3, 100), min_size=1, max_size=3).map(tuple)
sequences = st.integers(0, 1)
edits = st.one_of(
    st.builds(Zero, sequences, rows()),
    st.builds(Scale, sequences, rows(), st.sampled_from([0.5, 2.0, -1.0])),
    st.builds(AddNoise, sequences, rows(), st.just(0.5), numbers),
    st.builds(Overwrite, sequences, rows(), st.none() | numbers, st.none() | sequences, st.none(), st.integers(1, 3)),
    st.builds(Mask, sequences, rows(is_whole=True), st.booleans()),
    st.builds(Pin, sequences, rows(is_whole=True), st.booleans()),
    st.builds(Drop, sequences, st.builds(lambda r: Rows(r.start // 4 * 4, r.start // 4 * 4 + 4), rows(is_whole=True))),
    st.builds(ReplaceTokens, sequences, st.integers(0, 20), tokens, st.sampled_from(["overwrite", "re-prefill"])),
    st.builds(BiasLogits, sequences, st.just(((5, 2.0),)), st.just((7,))),
)
actions = st.one_of(
    st.just("step"),
    st.just("undo"),
    st.just("redo"),
    st.just("forget what is kept"),
    st.tuples(st.just("go to"), st.integers(0, 30)),
    edits,
)
State = tuple[dict[tuple[object, ...], torch.Tensor], object]


def state_of(session: Session) -> State:
    marks = {live.seq_id: (live.sequence, tuple(live.sequence.token_ids)) for live in session.live}
    return tensors(session), marks


def act(session: Session, action: object) -> None:
    match action:
        case "step":
            session.step()
        case "undo":
            undo_edit(session)
        case "redo":
            redo_edit(session)
        case "forget what is kept":
            session.kept.clear()
        case ("go to", int(step)):
            session.go_to(step)
        case _:
            assert isinstance(action, Edit)
            make_edit(session, action)


def sound(session: Session) -> bool:
    store = session.live.mode.store
    if store is not None:
        for group in store.groups:
            group.pool.check()
    return True


@settings(max_examples=effort(25, 500), suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(PRESETS)), st.lists(actions, min_size=3, max_size=14))
def test_going_to_a_moment_restores_its_first_state(mode: str, program: list[object]) -> None:
    session = Session(model_of("llama"), small(mode))
    for length, seed in ((18, 0), (9, 1)):
        prompt = Prompt(token_ids=prompt_ids(length, seed), sampling=SamplingParams(1.0, seed=seed))
        session.force(session.submit(prompt), prompt_ids(40, seed + 7))
    for _ in range(4):
        session.step()
    known: dict[int | None, State] = {session.last_step: state_of(session)}
    for action in program:
        before, at = state_of(session), session.last_step
        is_pending = bool(session.history.changes)
        try:
            act(session, action)
        except InputError:
            after = state_of(session)
            assert same(after[0], before[0]), action
            assert after[1] == before[1], action
            assert session.last_step == at or is_pending, action
        now = state_of(session)
        if not session.history.changes:
            rows_then, marks_then = known.setdefault(session.last_step, now)
            assert now[1] == marks_then, action
            assert same(now[0], rows_then), action
        assert sound(session), action


def test_a_program_of_every_kind_of_edit_is_made() -> None:
    """Every kind of edit succeeds in some program: the test above is not empty."""
    session = Session(model_of("llama"), small("growing"))
    session.submit(Prompt(token_ids=prompt_ids(18)))
    session.step()
    made: list[Edit] = [
        Zero(0, Rows(1, 3)), Scale(0, Rows(1, 3), 2.0), AddNoise(0, Rows(3, 5), 0.5), Overwrite(0, Rows(3, 5), shift=2),
        Mask(0, Rows(6, 7)), ReplaceTokens(0, 8, (5,)), BiasLogits(0, ((5, 2.0),)),
    ]  # fmt: skip
    for number, edit in enumerate(made, 1):
        assert make_edit(session, edit)[0].node.step == number
    for number in range(len(made), 0, -1):
        undo_edit(session)
        assert session.last_step == number - 1
    with suppress(InputError):
        undo_edit(session)
    assert session.last_step == 0
