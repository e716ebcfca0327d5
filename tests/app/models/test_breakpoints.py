"""A search of past steps finds what a run would have halted at; stops are kept, and walked through."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.models import Models
from app.models.breakpoints import Breakpoints, Search
from engine.errors import InputError
from engine.history.conditions import Attention
from engine.session.conditions import hits_at
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.condition import MAX_BREAKPOINTS, Breakpoint, TokenSpan
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.breakpoints import AttentionMass, AttentionMeasured, BreakpointHit
from engine.wire.records import SequenceForked, StepRecord
from tests.app import samples
from tests.engine.tiny import model_of, prompt_ids

STEPS = 24
LATER = perf_counter() + 1e6

COMPARED = st.one_of(
    st.builds("entropy {} {:.3f}".format, st.sampled_from(["<", ">"]), st.floats(1, 5)),
    st.builds("surprisal > {:.2f}".format, st.floats(0, 9)),
    st.builds("probability < {:.3f}".format, st.floats(0, 0.6)),
    st.builds("margin {} {:.3f}".format, st.sampled_from(["<", ">="]), st.floats(0, 0.5)),
    st.builds("norm > {:.3f}".format, st.floats(0.9, 2)),
    st.builds("attention(0) > {:.3f}".format, st.floats(0, 0.5)),
    st.builds("tokens {} {}".format, st.sampled_from(["=", ">", "!="]), st.integers(5, 30)),
    st.builds("step = {}".format, st.integers(0, STEPS)),
    st.builds("token = {}".format, st.integers(0, 127)),
    st.builds("fed = {}".format, st.integers(0, 127)),
    st.builds('text ~ "{}[0-9]*>"'.format, st.integers(1, 9)),
    st.sampled_from(["pages_allocated", "pages_shared", "nonfinite", "preempted", "differs", "sequence = 1"]),
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        inner.map("not ({})".format),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
    ),
    max_leaves=4,
)


def batch() -> Session:
    """Two sequences in pages, one of which is given tokens that it did not choose."""
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4), prefill_chunk=8)
    for seed in range(2):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        session.submit(Prompt(token_ids=prompt_ids(9 + 3 * seed, seed), sampling=sampling))
    session.force(1, prompt_ids(4, 9))
    return session


@cache
def recorded() -> tuple[StepRecord, ...]:
    session = batch()
    return tuple(session.step() for _ in range(STEPS))


def models_with(records: tuple[StepRecord, ...]) -> Models:
    models = Models()
    models.timeline.append(records)
    return models


def found(models: Models, text: str) -> Search:
    search = Search(text, models.timeline, models.comparison, {})
    while not search.is_done:
        search.go_on(LATER)
    return search


@settings(max_examples=12, deadline=None)
@given(st.lists(CONDITIONS, min_size=1, max_size=10))
def test_the_first_step_found_is_where_a_run_halts(texts: list[str]) -> None:
    """And so is every later one: the run goes on from each. One run is asked about several conditions."""
    session = batch()
    halts: list[list[tuple[int, int, object]]] = [[] for _ in texts]
    for _ in range(STEPS):
        record = session.step()
        for hit in hits_at(session, record, enumerate(texts)):
            assert hit.breakpoint_id is not None
            halts[hit.breakpoint_id].append((hit.step, hit.seq_id, hit.value))
    models = models_with(recorded())
    for text, expected in zip(texts, halts, strict=True):
        search = found(models, text)
        assert search.matches == [step for step, _, _ in expected], text
        told = [(step, search.verdicts[step].seq_id, search.verdicts[step].value) for step in search.matches]
        assert told == expected, text


def test_a_search_in_pieces_finds_what_one_at_once_does() -> None:
    models = models_with(recorded())
    whole, text = found(models, "entropy > 3 or norm > 1.2"), "entropy > 3 or norm > 1.2"
    pieces, turns = Search(text, models.timeline, models.comparison, {}), 0
    while not pieces.is_done:
        assert pieces.go_on(0.0)
        turns += 1
    assert turns == STEPS
    assert pieces.matches == whole.matches != []


def test_steps_that_come_are_searched_as_well(qtbot: QtBot) -> None:
    models = models_with(recorded()[:10])
    models.breakpoints.search("step >= 4 and step < 14")
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.queried is not None
    assert models.breakpoints.queried.matches == [4, 5, 6, 7, 8, 9]
    models.timeline.append(recorded()[10:])
    models.timeline.announce()
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.queried.matches == list(range(4, 14))


def test_going_back_searches_the_path_that_is_left(qtbot: QtBot) -> None:
    models = models_with(recorded())
    models.breakpoints.search("step >= 4")
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    models.timeline.go_to(6)
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.queried is not None
    assert models.breakpoints.queried.matches == [4, 5, 6]


@pytest.mark.parametrize(
    ("step", "direction", "expected"),
    [(None, 1, 5), (None, -1, 17), (5, 1, 11), (6, 1, 11), (17, 1, 5), (11, -1, 5), (5, -1, 17), (12, -1, 11)],
)
def test_matches_are_walked_round(qtbot: QtBot, step: int | None, direction: int, expected: int) -> None:
    models = models_with(recorded())
    assert models.breakpoints.next_match(step, direction) is None
    models.breakpoints.search("step = 5 or step = 11 or step = 17")
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.next_match(step, direction) == expected


def test_a_condition_that_is_none_is_refused_and_the_one_before_stays() -> None:
    stops = models_with(recorded()).breakpoints
    stops.search("step = 5")
    with pytest.raises(InputError, match="write entropy"):
        stops.search("entrpy > 2")
    assert stops.query == "step = 5"
    with pytest.raises(InputError, match="write entropy"):
        stops.with_added("entrpy > 2")
    stops.set(Breakpoint(number, "differs") for number in range(MAX_BREAKPOINTS))
    with pytest.raises(InputError, match="64 breakpoints already"):
        stops.with_added("step = 1")


def test_a_stop_has_an_id_of_its_own_and_is_searched_for(qtbot: QtBot) -> None:
    stops = models_with(recorded()).breakpoints
    stops.set((Breakpoint(3, "step = 2"),))
    added = stops.with_added("  step > 20 ")
    assert added == (Breakpoint(3, "step = 2"), Breakpoint(4, "step > 20"))
    stops.set(added)
    qtbot.waitUntil(lambda: all(stops.of(stop.text).is_done for stop in added))
    assert [stops.of(stop.text).matches for stop in added] == [[2], [21, 22, 23]]


def test_attention_that_no_record_has_is_asked_of_the_engine(qtbot: QtBot) -> None:
    models = models_with(recorded()[:6])
    asked: list[tuple[object, ...]] = []
    models.breakpoints.attention_wanted.connect(asked.append)
    models.breakpoints.search("attention(2-3) > 50%")
    qtbot.waitUntil(lambda: bool(asked))
    span = TokenSpan(2, 3)
    assert asked[0] == tuple((r.step, part.seq_id, span) for r in recorded()[:6] for part in r.sequences)
    masses = tuple(AttentionMass(step, 0, span, step / 6, 1.0) for step in range(1, 6))
    models.breakpoints.take_masses(AttentionMeasured(masses))
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    search = models.breakpoints.queried
    assert search is not None
    expected = [step for step in range(4, 6) if recorded()[step].of(0) is not None]
    assert search.matches == expected
    unknown = [
        r for r in recorded()[:6] if r.step not in expected and any(p.seq_id != 0 or not r.step for p in r.sequences)
    ]
    assert search.num_unknown == len(unknown)
    assert len(asked) == 1


def test_what_the_record_knows_of_attention_is_asked_of_nobody(qtbot: QtBot) -> None:
    models = models_with(recorded())
    asked: list[object] = []
    models.breakpoints.attention_wanted.connect(asked.append)
    models.breakpoints.search("attention(0) > 0 and attention(last 16) > 0")
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.queried is not None
    assert len(models.breakpoints.queried.matches) == STEPS
    assert not asked


def test_a_comparison_is_asked_whether_it_differs() -> None:
    models = models_with(recorded())
    steps = tuple(
        replace(samples.compared_step(step), step=step, top1_agrees=agrees)
        for step, agrees in ((3, True), (5, False), (7, None))
    )
    models.comparison.start(replace(samples.comparison_started(), steps=steps))
    search = found(models, "differs")
    assert search.matches == [5]
    assert search.num_unknown == STEPS - 1  # of the other sequence nothing is known where this one does not differ


def test_another_comparison_is_searched_anew_beside_stops_that_compare_nothing(qtbot: QtBot) -> None:
    models = models_with(recorded())
    models.breakpoints.set((Breakpoint(1, "step = 5"), Breakpoint(2, "differs")))
    for expected in ([5], [5, 9]):
        models.comparison.start(
            replace(
                samples.comparison_started(),
                steps=tuple(replace(samples.compared_step(n), step=n, top1_agrees=False) for n in expected),
            )
        )
        qtbot.waitUntil(lambda: all(models.breakpoints.of(stop.text).is_done for stop in models.breakpoints.listed))
        assert models.breakpoints.of("differs").matches == expected
        assert models.breakpoints.of("step = 5").matches == [5]


def test_a_hostile_pattern_is_given_up_once_for_all_steps() -> None:
    search = found(models_with(recorded()), r'text ~ "(.|..)+\d{9}$"')
    assert search.is_too_slow
    assert not search.matches


def test_a_halt_is_kept_by_its_step_until_history_begins_anew() -> None:
    models = models_with(recorded())
    hit = BreakpointHit(1, "step = 5", 5, 0, "step 5")
    models.breakpoints.take_hit(hit)
    assert models.breakpoints.hits == {5: hit}
    models.timeline.clear()
    assert not models.breakpoints.hits


def test_what_was_measured_is_of_no_other_history(qtbot: QtBot) -> None:
    models = models_with(recorded()[:3])
    asked: list[object] = []
    models.breakpoints.attention_wanted.connect(asked.append)
    models.breakpoints.search("attention(2-3) > 50%")
    qtbot.waitUntil(lambda: len(asked) == 1)
    models.breakpoints.take_masses(AttentionMeasured(()))
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    models.timeline.clear()
    models.timeline.append(recorded()[:3])
    models.timeline.announce()
    qtbot.waitUntil(lambda: len(asked) == 2)
    assert asked[0] == asked[1]
    models.breakpoints.take_masses(None)


def test_nothing_is_known_where_nobody_answers(qtbot: QtBot) -> None:
    models, asked = models_with(recorded()[:4]), list[object]()
    models.breakpoints.attention_wanted.connect(asked.append)
    models.breakpoints.search("attention(2) > 0")
    qtbot.waitUntil(lambda: bool(asked))
    models.breakpoints.take_masses(None)
    qtbot.waitUntil(lambda: models.breakpoints.queried.is_done)
    assert models.breakpoints.queried is not None
    assert models.breakpoints.queried.num_unknown == 4


def test_the_model_of_stops_is_one_of_the_models() -> None:
    assert isinstance(Models().breakpoints, Breakpoints)
    assert Attention(0.5, 1.0).peak == 1.0


def test_the_start_of_a_history_keeps_what_halted_there_and_another_history_does_not() -> None:
    models = Models()
    models.timeline.append(samples.story(5))
    models.breakpoints.take_hit(BreakpointHit(1, "step = 3", 3, 0, "3"))
    for act in (models.history.go_to, models.timeline.go_to):
        act(None)
    assert not len(models.timeline)
    assert list(models.breakpoints.hits) == [3]
    models.selection.update(step=3)
    assert models.timeline.num_tokens(0) > 0
    assert (len(models.timeline.live_path), models.timeline.live_path.num_tokens(0)) == (0, 0)
    models.history.clear()
    models.timeline.clear()
    assert not models.breakpoints.hits


def test_attention_of_the_history_before_is_asked_again_of_the_next(qtbot: QtBot) -> None:
    models = Models()
    asked: list[tuple[object, ...]] = []
    models.breakpoints.attention_wanted.connect(asked.append)
    models.breakpoints.search("attention(2-3) > 50%")
    models.timeline.append(recorded()[:3])
    models.timeline.announce()
    qtbot.waitUntil(lambda: len(asked) == 1)
    models.history.clear()
    models.timeline.clear()
    models.breakpoints.take_masses(AttentionMeasured(()))  # the answer came too late
    models.timeline.append(recorded()[:3])
    models.timeline.announce()
    qtbot.waitUntil(lambda: len(asked) == 2)
    assert asked[0] == asked[1]


def test_a_pattern_reaches_back_over_what_a_fork_was_not_computed_itself() -> None:
    """And over what was computed before the search began to look: the end of it that a pattern may reach."""
    models = Models()
    models.timeline.append(samples.story(6))
    models.timeline.branch(1, 0, 4, samples.PROMPT + 4)
    texts = [token.text for token in models.timeline.tokens(1)]
    part = replace(
        samples.step_record(5).sequences[0], seq_id=1, first_position=len(texts), num_tokens=len(texts) + 1,
        texts=("END",), token_ids=(9,), sampled_text="NEW",
    )  # fmt: skip
    fork = SequenceForked(1, 0, 4)
    models.timeline.append([replace(samples.step_record(7), sequences=(part,), parent=6, changes=(fork,))])
    words = "".join(texts[-3:]).replace(".", "[.]")
    search = found(models, f'text ~ "{words}ENDNEW"')
    assert search.matches == [7]
    assert Search("step = 1", models.timeline, models.comparison, {}).text_before(part) == "".join(texts)
