"""Going back over changes of the cache mode restores the mode of that step with its rows, or is refused."""

from __future__ import annotations

import random

import pytest
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pictures import RowPicture, RowRequest
from tests.effort import effort
from tests.engine.session.test_fork import FORCED, MODES, PROMPT, rows, same
from tests.engine.snapshot.sessions import snapshot
from tests.engine.tiny import model_of, prompt_ids

LEG = 4  # steps in every mode
PATHS = [
    ("growing", "paged", "growing"),
    ("growing", "static", "dynamic"),
    ("paged", "growing", "kivi-4"),
    ("growing", "kivi-4", "growing"),
    ("growing", "fp8", "int8"),
    ("growing", "h2o", "growing"),
    ("growing", "sliding", "paged"),
    ("none", "growing", "tova"),
    ("growing", "paged-int8", "none"),
    ("paged", "paged-tova", "growing"),
    # from lossy modes to another and back: the rows in the first mode differ from those after the return
    ("knorm", "growing", "knorm"),
    ("tova", "paged", "tova"),
    ("random", "growing", "random"),
    ("sliding", "paged", "sliding"),
    ("paged-tova", "growing", "paged-tova"),
    ("fp8", "growing", "fp8"),
    ("int8", "paged", "int8"),
    ("kivi-4", "none", "kivi-4"),
]


def begun(mode: str, architecture: str = "llama") -> Session:
    session = Session(model_of(architecture), MODES[mode], prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(PROMPT), sampling=SamplingParams(temperature=1.0, seed=5)))
    session.force(0, FORCED)
    return session


def walked(path: tuple[str, ...], num_steps: int, architecture: str = "llama") -> Session:
    """A session that takes so many steps in each mode of a path, one after the other."""
    session = begun(path[0], architecture)
    for step in range(num_steps):
        if step and step % LEG == 0:
            session.set_cache(MODES[path[step // LEG]])
        session.step()
    return session


@pytest.mark.parametrize("path", PATHS, ids="-".join)
@pytest.mark.parametrize("target", effort([3, 9], [2, 3, 5, 7, 9]))
def test_the_state_of_a_step_in_another_mode_comes_back_to_the_bit(path: tuple[str, ...], target: int) -> None:
    session, twin = walked(path, 3 * LEG), walked(path, target + 1)
    how = session.go_to(target)
    assert session.cache == twin.cache == MODES[path[target // LEG]]
    is_other = path[target // LEG] != path[-1]
    assert ("back in the cache mode" in how) == is_other
    assert session.sequence(0) == twin.sequence(0)
    if is_other or not session.cache.recomputes:  # a scratch cache may still hold later rows behind those
        assert same(rows(session, 0), rows(twin, 0))
    for _ in range(3):
        mine, its = session.step().sequences[0], twin.step().sequences[0]
        assert (mine.token_ids, mine.sampled, mine.stored_bytes) == (its.token_ids, its.sampled, its.stored_bytes)
        mine_logits, its_logits = session.logits(0), twin.logits(0)
        assert mine_logits is not None
        assert its_logits is not None
        assert torch.equal(mine_logits, its_logits)


@pytest.mark.parametrize("architecture", ["mistral", "lfm2", "gemma2"])
def test_windows_and_recurrent_states_come_back_as_well(architecture: str) -> None:
    path = ("growing", "paged", "dynamic")
    session, twin = walked(path, 12, architecture), walked(path, 7, architecture)
    session.go_to(6)
    assert same(rows(session, 0), rows(twin, 0))
    session.step(), twin.step()
    mine, its = session.logits(0), twin.logits(0)
    assert mine is not None
    assert its is not None
    assert torch.equal(mine, its)


@pytest.mark.parametrize("architecture", ["mistral", "gemma2"])
def test_a_window_that_is_computed_anew_every_step_comes_back_by_one_forward(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, twin = walked(("none", "none"), 8, architecture), walked(("none",), 4, architecture)
    session.kept.clear()
    forwards, forward = list[int](), session.model.forward
    monkeypatch.setattr(
        session.model, "forward", lambda *a, **k: forwards.append(a[0].ids.shape[1]) or forward(*a, **k)
    )  # type: ignore[func-returns-value]
    assert session.go_to(3) == "repeated 1 step from a checkpoint"
    assert forwards == [PROMPT + 3]
    assert same(rows(session, 0), rows(twin, 0))
    assert snapshot(session, 0).manifest["provenance"] == "recomputed"
    session.fork(0, 1)
    twin.go_to(1)
    assert forwards[1:] == [PROMPT + 1, PROMPT + 1]
    assert same(rows(session, 1), rows(twin, 0))


def test_pictures_before_a_change_of_mode_stay_honest_after_going_back() -> None:
    session, plain = walked(("growing", "kivi-4", "growing"), 12), walked(("growing",), 3)
    session.go_to(6)
    piece = session.take_picture(RowRequest(0, PROMPT + 1, 3))
    assert piece.provenance == "as stored now"  # type: ignore[union-attr]
    session.go_to(3)
    piece, true = (s.take_picture(RowRequest(0, PROMPT + 1, 3)) for s in (session, plain))
    assert isinstance(piece, RowPicture)
    assert isinstance(true, RowPicture)
    assert piece.provenance == true.provenance == "live cache"
    assert (piece.keys[0] == true.keys[0]).all()


@pytest.mark.parametrize("mode", ["knorm", "sliding", "paged-tova", "int8", "kivi-4"])
def test_a_mode_left_and_taken_again_without_a_step_gives_back_what_it_had(mode: str) -> None:
    session, twin = walked((mode,), 4), walked((mode,), 4)
    session.set_cache(MODES["growing"])
    session.set_cache(MODES[mode])
    assert not same(rows(session, 0), rows(twin, 0)), "changing the mode twice would round and drop other rows"
    assert session.go_to(3).endswith("it was kept as it stood")
    assert same(rows(session, 0), rows(twin, 0))


def test_a_change_of_mode_without_a_step_is_undone_by_going_back_to_now() -> None:
    session = walked(("growing",), 4)
    session.set_cache(MODES["kivi-4"])
    assert "Growing" in session.go_to(3)
    assert session.cache == MODES["growing"]
    assert same(rows(session, 0), rows(walked(("growing",), 4), 0))


def refused(session: Session, step: int, why: str) -> None:
    before = session.sequences, session.last_step, session.cache, rows(session, session.sequences[0].seq_id)
    with pytest.raises(InputError, match=why):
        session.go_to(step)
    assert (session.sequences, session.last_step, session.cache) == before[:3]
    assert same(rows(session, session.sequences[0].seq_id), before[3])


def test_what_cannot_be_exact_is_refused_and_changes_nothing() -> None:
    session = walked(("growing",), 4)
    for step in (-1, 4, 99):
        refused(session, step, f"There is no step {step} to go to: steps 0 … 3 are kept")


def test_going_back_over_a_fork_and_over_the_end_of_a_sequence() -> None:
    session = walked(("growing",), 4)
    child = session.fork(0).child
    session.step()
    forked = rows(session, child)
    session.go_to(2)
    assert [info.seq_id for info in session.sequences] == [0]
    session.go_to(4)
    assert [info.seq_id for info in session.sequences] == [0, child]
    assert same(rows(session, child), forked)
    session.go_to(3)
    second = session.submit(Prompt(token_ids=prompt_ids(5)))
    assert second > child, "numbers of sequences are never used twice"
    there = [session.step().step for _ in range(3)]
    then = rows(session, second)
    session.remove(second)
    gone = session.step().step
    for step, seq_ids in ((there[-1], [0, second]), (gone, [0]), (4, [0, child]), (there[-1], [0, second])):
        session.go_to(step)
        assert [info.seq_id for info in session.sequences] == seq_ids
    assert same(rows(session, second), then)


def test_a_mode_that_has_no_room_any_more_is_refused() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=9))
    session.submit(Prompt(token_ids=prompt_ids(20)))
    session.force(0, FORCED)
    session.step()
    session.set_cache(MODES["growing"])
    session.step()
    session.submit(Prompt(token_ids=prompt_ids(20, seed=4)))
    session.step()
    how = session.go_to(0)  # at that moment the newer sequence did not exist: its pages are not needed
    assert "Paged" in how
    assert [info.num_tokens for info in session.sequences] == [20]


def test_an_earlier_mode_too_small_for_later_sequences_comes_back_without_them() -> None:
    session = Session(model_of("llama"), CacheSpec("static", max_length=16))
    session.submit(Prompt(token_ids=prompt_ids(6)))
    session.force(0, FORCED)
    session.step()
    session.set_cache(MODES["growing"])
    session.step()
    second = session.submit(Prompt(token_ids=prompt_ids(40, seed=4)))
    late = session.step().step
    session.go_to(0)
    assert (session.cache.layout, [info.seq_id for info in session.sequences]) == ("static", [0])
    session.go_to(late)
    assert (session.cache.layout, session.sequence(second).num_tokens) == ("growing", 40)


def test_a_sequence_that_the_step_did_not_compute_keeps_its_logits() -> None:
    session = walked(("growing",), 4)
    newest = session.logits(0)
    session.submit(Prompt(token_ids=prompt_ids(6)))
    session.step()
    session.step()
    session.go_to(4)
    again = session.logits(0)
    assert newest is not None
    assert again is not None
    assert torch.equal(again, newest)


def state(session: Session, seq_id: int) -> tuple[object, list[torch.Tensor], torch.Tensor]:
    logits = session.logits(seq_id)
    assert logits is not None
    held = [] if session.cache.recomputes else rows(session, seq_id)
    return replace(session.sequence(seq_id), origins=()), held, logits


def equal(one: tuple[object, list[torch.Tensor], torch.Tensor], other: object) -> bool:
    mark, held, logits = other  # type: ignore[misc]
    return one[0] == mark and same(one[1], held) and torch.equal(one[2], logits)


@pytest.mark.parametrize("seed", range(16))
def test_whatever_was_done_any_step_comes_back_and_can_be_forked(seed: int) -> None:
    """Random steps, changes of mode, forced tokens, forks and jumps back: each step has its first state again."""
    chance = random.Random(seed)
    architecture = chance.choice(("llama", "llama", "llama", "mistral", "gpt2"))
    modes = [m for m in MODES if architecture == "llama" or MODES[m].is_exact]
    session = begun(chance.choice(modes), architecture)
    seen: dict[int, tuple[CacheSpec, tuple[object, list[torch.Tensor], torch.Tensor]]] = {}
    for _ in range(60):
        last = session.last_step
        what = chance.choices(("step", "mode", "force", "back", "fork"), (10, 2, 1, 3, 1))[0]
        if what == "step" and session.sequence(0).num_tokens < 60:
            session.force(0, (chance.randrange(3, 120),))
            step = session.step().step
            seen[step] = session.cache, state(session, 0)
        elif what == "mode":
            session.set_cache(MODES[chance.choice(modes)])
        elif what == "back" and last is not None:
            target = chance.choice(sorted(seen))  # of any branch
            session.go_to(target)
            assert (session.cache, session.last_step) == (seen[target][0], target)
            assert equal(state(session, 0), seen[target][1]), f"step {target}"
        elif what == "fork" and last is not None:
            target = chance.choice(sorted(seen))
            then = seen[target]
            if then[0] != session.cache:
                continue  # in another mode only what is exact in both can be forked
            child = session.fork(0, target).child
            mark, held, logits = state(session, child)
            assert (mark, same(held, then[1][1])) == (then[1][0], True), f"step {target}"
            assert torch.equal(logits, then[1][2])
            session.remove(child)
