"""What-if on the bundled model says what a run of the other mode gives, and measurements can rebuild dropped rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.analysis.what_if import measured_damage, regret, what_if
from engine.client.thread import ThreadClient
from engine.look.candidates import kl_divergence
from engine.model.loader import LoadedModel, load
from engine.session.rerun import Reruns
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.model import ModelSpec
from engine.spec.retention import LayerBudgets
from engine.spec.sampling import Prompt
from engine.wire.commands import Force, LoadModel, Run, Step, SubmitPrompt
from engine.wire.events import Event, Failed
from engine.wire.measurements import MapDamage, MeasureRegret, Regret, WhatIf, WhatIfAnswer
from engine.wire.records import StepRecord
from tests.effort import effort
from tests.engine.analysis.live import damage_map
from tests.engine.cache.compressed.test_cache_going_back import SPECS
from tests.engine.tiny import model_of, prompt_ids, write_config

STORY = """Once upon a time there was an old miller who lived by the river with his three sons. When he died he left the
mill to the eldest, the donkey to the second, and to the youngest nothing but the cat. "What shall I do with a
cat?" said the youngest son, and sat down on a stone. "Give me a bag and a pair of boots," said the cat, "and
you shall see that I am worth more than a mill." So the boy spent his last coins on a pair of red boots. The cat
put them on, took the bag over his shoulder, and went into the woods where the rabbits played. He laid some
fresh grass in the bag, lay down beside it, and waited without moving a whisker. Before long a fat young rabbit
crept into the bag, and the cat pulled the string. Then he walked to the palace and asked to see the king. "My
master sends you this rabbit," said the cat with a low bow, and the king was pleased and gave him a piece of
gold. The next day the cat went out again, and the day after that, and every time he brought the king what he
had caught. One morning the king wished to drive along the river with his daughter, who was the most beautiful
girl in all the land, and the cat ran home as fast as his boots would carry him."""
PROMPT, STEPS, BUDGET = 240, effort(14, 30), 48
EVICTING = [name for name, preset in PRESETS.items() if not preset.spec.retention.keeps_all]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(ModelSpec("bundled", dtype="float32", device="cpu", num_threads=1))


@pytest.fixture(scope="module")
def token_ids(model: LoadedModel) -> tuple[int, ...]:
    assert model.tokenizer is not None
    ids = tuple(model.tokenizer(STORY)["input_ids"])
    assert len(ids) >= PROMPT + STEPS
    return ids[: PROMPT + STEPS]


def sized(name: str, budget: int = BUDGET) -> CacheSpec:
    spec = PRESETS[name].spec
    match name:
        case "sliding":
            return tuned(spec, window=budget)
        case "streamingllm":
            return tuned(spec, window=budget - 4)
        case "pyramidkv":
            return tuned(spec, budget=LayerBudgets(mean=budget))
        case _:
            return tuned(spec, budget=budget)


def started(model: LoadedModel, spec: CacheSpec, token_ids: tuple[int, ...], steps: int = 0) -> Session:
    """A session after the prompt, with the rest of the tokens to come."""
    session = Session(model, spec)
    session.submit(Prompt(token_ids=token_ids[:PROMPT]))
    session.force(0, token_ids[PROMPT:])
    session.step()
    while session.is_prefilling:
        session.step()
    for _ in range(steps):
        session.step()
    return session


def logits_of(session: Session) -> torch.Tensor:
    newest = session.logits(0)
    assert newest is not None
    return newest.float()


def answers(pieces: Iterator[object]) -> list[WhatIfAnswer]:
    return [piece for piece in pieces if isinstance(piece, WhatIfAnswer)]


def asked_afresh(session: Session, spec: CacheSpec) -> WhatIfAnswer:
    """The answer where nothing is kept from earlier questions."""
    kept, session.reruns = session.reruns, Reruns(session.model)
    found = answers(what_if(session, WhatIf(0, spec)))[-1]
    session.reruns = kept
    return found


def test_what_if_agrees_with_a_run_of_every_rule(model: LoadedModel, token_ids: tuple[int, ...]) -> None:
    """Mean KL over the steps, within a tenth of that of a session that ran the rule from the start."""
    exact = started(model, CacheSpec(), token_ids)
    runs = {name: started(model, sized(name), token_ids) for name in EVICTING}
    reruns = {name: Reruns(model) for name in EVICTING}
    real, told = (dict.fromkeys(EVICTING, 0.0) for _ in range(2))
    for _ in range(STEPS):
        exact.step()
        baseline = logits_of(exact)
        for name, session in runs.items():
            session.step()
            real[name] += kl_divergence(baseline, logits_of(session)) / STEPS
            exact.reruns = reruns[name]  # as if each rule alone had been asked about
            told[name] += answers(what_if(exact, WhatIf(0, sized(name))))[-1].kl / STEPS
    assert set(EVICTING) >= {
        "sliding",
        "streamingllm",
        "h2o",
        "snapkv",
        "pyramidkv",
        "tova",
        "knorm",
        "keydiff",
        "random",
    }
    for name in EVICTING:
        assert real[name] > 0.01, f"{name}: too little to compare"
        assert told[name] == pytest.approx(real[name], rel=0.1), name


@pytest.mark.parametrize("name", ["h2o", "tova"])
def test_a_run_that_is_kept_between_questions_changes_no_answer(
    name: str, model: LoadedModel, token_ids: tuple[int, ...]
) -> None:
    """An estimate comes first only where much has to be computed; one more step, a rewind or another budget go on from
    what is known, and give what a new run gives."""
    session, spec = started(model, CacheSpec(), token_ids, 12), sized(name)
    first = answers(what_if(session, WhatIf(0, spec)))
    assert [one.is_estimate for one in first] == [True, False]
    assert first[0].kl != first[1].kl
    session.step()
    wider = replace(spec, retention=replace(spec.retention, budget=BUDGET + 20))
    for trial in (spec, wider, spec):
        found = answers(what_if(session, WhatIf(0, trial)))
        anew = asked_afresh(session, trial)
        assert found[-1].kl == pytest.approx(anew.kl, rel=1e-3)
        assert (found[-1].kept_ratio, found[-1].kv_bytes) == (anew.kept_ratio, anew.kv_bytes)
    assert len(answers(what_if(session, WhatIf(0, spec)))) == 1, "nothing has to be computed for the same question"
    assert session.last_step is not None
    session.go_to(session.last_step - 8)
    found = answers(what_if(session, WhatIf(0, spec)))
    assert found[-1].kl == pytest.approx(asked_afresh(session, spec).kl, rel=1e-3)


def test_right_after_the_prompt_its_last_token_counts_as_generated(
    model: LoadedModel, token_ids: tuple[int, ...]
) -> None:
    found = answers(what_if(started(model, CacheSpec(), token_ids), WhatIf(0, sized("knorm"))))[-1]
    assert found.kl > 0.01
    assert found.kept_ratio == pytest.approx(BUDGET / (PROMPT - 1))
    assert "one token earlier" in found.note


@pytest.mark.parametrize(("length", "steps"), [(1, 1), (2, 0), (2, 3)])
def test_the_shortest_sequences_can_be_tried_in_every_mode(length: int, steps: int) -> None:
    """There may be no row before the prompt's last token, and none behind what was coded."""
    session = Session(model_of("llama"), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(0, prompt_ids(5, seed=2))
    for _ in range(1 + steps):
        session.step()
    for name, spec in SPECS.items():
        if spec.layout == "growing" and spec != CacheSpec():
            found = answers(what_if(session, WhatIf(0, spec)))[-1]
            assert 0 <= found.kl < 10, name
            assert 0 < found.kept_ratio <= 1, name


def test_what_a_trial_keeps_counts_as_held_for_looking(model: LoadedModel, token_ids: tuple[int, ...]) -> None:
    session = started(model, CacheSpec(), token_ids, 2)
    before = session.bytes().looking
    answers(what_if(session, WhatIf(0, sized("h2o"))))
    row_bytes = 2 * 6 * 4 * 32 * 4  # K and V of six layers of four heads
    assert session.bytes().looking >= before + PROMPT * row_bytes, "a prompt is kept for the next question"
    session.forget_history()
    assert session.bytes().looking == 0


# ---- rows that were dropped --------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", ["h2o", "sliding"])
def test_dropped_rows_are_rebuilt_from_the_tokens(live: str, model: LoadedModel, token_ids: tuple[int, ...]) -> None:
    """What is measured on rebuilt rows is what a cache that kept them gives; the live one stays as it is."""
    thinned, exact = started(model, sized(live), token_ids, 3), started(model, CacheSpec(), token_ids, 3)
    held = thinned.cache_of(0).rows(2)
    trial, codec = sized("tova"), PRESETS["kivi-4"].spec.codec
    found = answers(what_if(thinned, WhatIf(0, trial)))[-1]
    expected = answers(what_if(exact, WhatIf(0, trial)))[-1]
    assert found.kl == pytest.approx(expected.kl, rel=1e-3)
    assert [c.token_id for c in found.before] == [c.token_id for c in expected.before]
    assert found.exact_bytes == expected.exact_bytes
    assert (found.is_rebuilt, expected.is_rebuilt) == (True, False)
    damage, truth = damage_map(thinned, MapDamage(0, codec)), damage_map(exact, MapDamage(0, codec))
    assert damage.kl == pytest.approx(truth.kl, rel=1e-2)
    assert damage.num_rows == truth.num_rows
    request = MeasureRegret(0, trial, 64)
    *_, mine = regret(thinned, request)
    *_, theirs = regret(exact, request)
    assert isinstance(mine, Regret)
    assert isinstance(theirs, Regret)
    assert mine.kl.tolist() == pytest.approx(theirs.kl.tolist(), rel=1e-2, abs=1e-5)
    after = thinned.cache_of(0).rows(2)
    assert held is not None
    assert after is not None
    assert torch.equal(held.keys, after.keys)


def test_rebuilding_tells_how_far_it_is_and_goes_on_where_it_stood(
    model: LoadedModel, token_ids: tuple[int, ...]
) -> None:
    session = started(model, sized("sliding"), token_ids, 2)
    session.reruns = Reruns(model, 64)
    request = MapDamage(0, PRESETS["int8"].spec.codec)
    total = PROMPT + 1
    steps = [piece for piece in measured_damage(session, request) if isinstance(piece, tuple)]
    assert [piece for piece in steps if piece[1] == total] == [(n, total) for n in range(0, total, 64)]
    session.step()
    steps = [piece for piece in measured_damage(session, request) if isinstance(piece, tuple)]
    assert [piece for piece in steps if piece[1] == total + 1] == [(total, total + 1)], "one row is new"


def test_attention_before_the_newest_token_ranks_rows_better_than_chance(
    model: LoadedModel, token_ids: tuple[int, ...]
) -> None:
    session = started(model, CacheSpec(), token_ids[: PROMPT + 1], 1)
    found = {}
    for name in ("tova", "random"):
        *_, last = regret(session, MeasureRegret(0, sized(name), 4))
        assert isinstance(last, Regret)
        found[name] = last.rank_correlation
    assert found["tova"] > 0.5 > 0.3 > abs(found["random"])


# ---- over the wire -----------------------------------------------------------------------------------------------


def test_an_estimate_is_answered_at_once_and_the_run_when_nothing_else_is_to_do(tmp_path: Path) -> None:
    config = write_config("llama", tmp_path)
    loop = ThreadClient()
    loop.send(LoadModel(ModelSpec(f"shape:{config}", dtype="float32", num_threads=1), CacheSpec()))
    events: list[Event] = []

    def until(is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 300
        while not is_there():
            assert time.monotonic() < deadline, f"waited for {what}: {events[-3:]}"
            events.extend(loop.drain())
            time.sleep(0.005)

    def answered() -> list[WhatIfAnswer]:
        return [event for event in events if isinstance(event, WhatIfAnswer)]

    try:
        loop.send(SubmitPrompt(Prompt(token_ids=prompt_ids(20))))
        loop.send(Force(0, prompt_ids(60, seed=1)))
        loop.send(Run(30))
        until(lambda: sum(isinstance(event, StepRecord) for event in events) == 30, "the steps")
        loop.send(WhatIf(0, sized("tova", 12), id=7))
        until(lambda: len(answered()) == 2, "an estimate and a run")
        assert [(one.reply_to, one.is_estimate) for one in answered()] == [(7, True), (7, False)]
        # a step takes the ground away from a run that is still going on: it answers no more
        loop.send(WhatIf(0, sized("knorm", 12), id=8))
        loop.send(Step())
        until(lambda: sum(isinstance(event, StepRecord) for event in events) == 31, "one more step")
        loop.send(WhatIf(0, sized("tova", 12), id=9))
        until(lambda: answered()[-1].reply_to == 9 and not answered()[-1].is_estimate, "the next run")
        stepped = max(place for place, event in enumerate(events) if isinstance(event, StepRecord))
        later = [(e.reply_to, e.is_estimate) for e in events[stepped:] if isinstance(e, WhatIfAnswer)]
        assert {number for number, _ in later} == {9}
        assert not [event for event in events if isinstance(event, Failed)]
    finally:
        assert loop.close(300)


def test_every_number_of_an_answer_is_that_of_two_runs() -> None:
    """One that ran exactly and one that ran the rule, by hand."""
    ids = prompt_ids(24)
    exact, dropping = Session(model_of("llama"), CacheSpec()), Session(model_of("llama"), sized("h2o", 10))
    for session in (exact, dropping):
        session.submit(Prompt(token_ids=ids[:20]))
        session.force(0, ids[20:])
        session.step()
        while session.is_prefilling:
            session.step()
        for _ in range(2):
            session.step()
    found = answers(what_if(exact, WhatIf(0, sized("h2o", 10))))[-1]
    one, other = logits_of(exact).double(), logits_of(dropping).double()
    assert found.kl == pytest.approx(
        float((one.softmax(-1) * (one.log_softmax(-1) - other.log_softmax(-1))).sum()), rel=1e-4
    )
    assert found.max_abs_logit_diff == pytest.approx(max(map(abs, (one - other).tolist())), rel=1e-4)
    assert found.top1_changed == (int(one.argmax()) != int(other.argmax()))
    for candidates, logits in ((found.before, one), (found.after, other)):
        best = logits.softmax(-1).sort(descending=True)
        assert [each.token_id for each in candidates] == best.indices[: len(candidates)].tolist()
        assert [each.prob for each in candidates] == pytest.approx(best.values[: len(candidates)].tolist(), rel=1e-4)
    assert found.kv_bytes == dropping.cache_of(0).stored_bytes
