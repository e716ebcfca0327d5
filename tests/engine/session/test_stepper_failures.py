"""A step, a prompt, a change of mode or a replay that fails changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.errors import Cancelled, InputError
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.faults import Injected, counting, failing_at
from tests.engine.session.failing import PHASES, failures, small, work_of
from tests.engine.session.sessions import GROWING, LOSSLESS, facts, prepared, same, stale, started, tensors
from tests.engine.tiny import prompt_ids

CASES = [
    *(("tiniest", cache, phase) for cache in LOSSLESS for phase in ("first chunk", "second chunk", "decode")),
    *(("tiniest", cache, "two sequences") for cache in ("growing", "dynamic", "static", "paged")),
    *((name, cache, "decode") for name in ("lfm2", "mistral", "gpt_oss") for cache in ("growing", "dynamic", "paged")),
    ("lfm2", "paged", "second chunk"),
    ("mistral", "static", "second chunk"),
]


@pytest.mark.parametrize(("architecture", "cache", "phase"), CASES)
def test_a_step_that_fails_anywhere_changes_nothing(architecture: str, cache: str, phase: str) -> None:
    """Calls of the engine's and the model's own functions fail, all of them in a growing cache; then the step succeeds
    as if nothing had failed."""
    session, twin = prepared(architecture, cache, phase), prepared(architecture, cache, phase)
    with counting() as clean:
        expected = twin.step()
    every = 1 if (architecture, cache, phase) == ("tiniest", "growing", "decode") else effort(14, 1)
    before, held = facts(session), tensors(session)
    number, outcome = 1, failing_at(1, session.step)
    while isinstance(outcome, Injected):
        assert facts(session) == before, f"call {number} of {clean.seen}, {outcome}"
        now = tensors(session)
        assert same({k: v for k, v in held.items() if k in now or k[0] not in stale(session)}, now), str(outcome)
        number += every
        outcome = failing_at(number, session.step) if number <= clean.seen else session.step()
    assert number > clean.seen * 0.8, "some calls happen only once, but not so many"
    record = outcome
    assert [s.token_ids for s in record.sequences] == [s.token_ids for s in expected.sequences]
    assert [s.sampled for s in record.sequences] == [s.sampled for s in expected.sequences]
    for one, other in zip(record.sequences, expected.sequences, strict=True):
        assert [x is None for x in one.surprisal] == [x is None for x in other.surprisal]
        assert [x or 0.0 for x in one.surprisal] == pytest.approx([x or 0.0 for x in other.surprisal], abs=1e-4)
    assert record.step == expected.step
    assert same(tensors(session), tensors(twin))
    assert record.num_bytes.stored == expected.num_bytes.stored


H2O = RetentionSpec("h2o", budget=7, window=3)
LOSSY = {
    "int8": CacheSpec(codec=uniform("int8")),
    "kivi": CacheSpec(codec=uniform("kivi-4", 8, 8)),
    "h2o": CacheSpec(retention=H2O),
    "snapkv": CacheSpec(retention=RetentionSpec("snapkv", budget=6, window=2)),
    "tova int8": CacheSpec(retention=RetentionSpec("tova", budget=7), codec=uniform("int8")),
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=5, rerotate=True)),
    "paged": CacheSpec("paged", page_size=4, num_pages=12),
    "paged int8": CacheSpec("paged", page_size=4, num_pages=12, codec=uniform("int8")),
    "paged h2o": CacheSpec("paged", page_size=1, num_pages=30, retention=RetentionSpec("h2o", budget=6, window=2)),
}


@pytest.mark.parametrize("phase", ["second chunk", "decode"])
@pytest.mark.parametrize("mode", LOSSY)
def test_a_step_that_fails_at_any_site_changes_nothing_where_rows_are_coded_dropped_or_in_pages(
    mode: str, phase: str
) -> None:
    """Lines that call something fail, other ones in each mode, at their first call and at their last: rows and their
    positions, what journals and rules remember, in bytes. The prompt ends with the second chunk, and rows are coded
    and dropped."""
    first = list(LOSSY).index(mode)
    found = failures(LOSSY[mode], phase, lambda count: {1, count}, every=effort(7, 1), first=first)
    assert found.not_undone == []
    assert found.has_dropped or LOSSY[mode].retention.keeps_all or (mode, phase) == ("snapkv", "decode")
    assert found.num_missed <= found.num_sites // 50, "nearly every site is reached"


@pytest.mark.parametrize("name", PRESETS)
def test_what_fails_in_any_preset_changes_nothing(name: str) -> None:
    """Some lines in every preset, in another phase of each: steps, edits, branches, ways back and other commands. All
    of them: `python -m tests.benchmarks.failed_steps`."""
    number = [*PRESETS].index(name)
    architecture = "llama" if name == "kivi-2" else "tiniest"  # 16 codes of 2 bits fill a word
    spec = small(PRESETS[name].spec)
    for phase in [PHASES[number % len(PHASES)]] if effort(0, 1) == 0 else PHASES:
        found = failures(spec, phase, lambda count: {count}, architecture, every=effort(60, 1), first=number)
        assert found.not_undone == [], phase
        assert found.num_failed + found.num_missed, phase


@pytest.mark.parametrize("name", PRESETS)
def test_the_edit_that_is_made_to_fail_can_be_made_in_every_preset(name: str) -> None:
    """It names rows that are there, also where the rule drops even rows among the newest, as keydiff does."""
    session = prepared("llama" if name == "kivi-2" else "tiniest", small(PRESETS[name].spec), "edit")
    work_of(session, "edit")()
    assert session.last_step is not None
    assert session.history.tree.at(session.last_step).node.changes


def test_what_a_failed_step_did_to_pages_is_told_with_the_next_one() -> None:
    """A rule drops a page, whose rows come back to another one."""
    found = failures(LOSSY["paged h2o"], "second chunk", lambda count: {count}, within="history")
    assert found.not_undone == []
    assert found.num_failed > 20


@pytest.mark.parametrize("phase", ["edit", "branch"])
def test_a_command_that_fails_at_any_site_of_the_history_changes_nothing(phase: str) -> None:
    """Moments made by the failed command are gone again, and all pages belong to their owners of before."""
    found = failures(LOSSY["paged"], phase, lambda count: {1, count}, within="session", every=effort(10, 1))
    assert found.not_undone == []
    assert found.num_failed > 2


@pytest.mark.parametrize(("mode", "phase"), [("dynamic", "decode"), ("paged", "decode"), ("static", "first chunk")])
def test_a_step_that_finds_no_room_for_a_tensor_changes_nothing(mode: str, phase: str) -> None:
    """Calls of torch fail as well: K may have the new rows by then and V not."""
    found = failures(PRESETS[mode].spec, phase, lambda count: {count}, of_torch=True, within="cache")
    assert found.not_undone == []
    assert found.num_failed > 20


@pytest.mark.parametrize("cache", ["growing", "dynamic", "static", "paged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])  # through the decoder; through transformers
def test_a_prefill_that_is_cancelled_between_two_layers_changes_nothing(architecture: str, cache: str) -> None:
    """Cancelled at each check in turn, in the second of three chunks; then the step succeeds as if never cancelled."""
    session, twin = (prepared(architecture, cache, "second chunk") for _ in range(2))
    before, held = facts(session), tensors(session)
    looks: list[int] = []
    twin.step(lambda: looks.append(0))
    assert len(looks) >= 2, "one of every layer"
    for last in range(1, len(looks) + 1):
        remaining = iter(range(1, last))

        def check(remaining: Iterator[int] = remaining) -> None:
            if next(remaining, None) is None:
                raise Cancelled

        with pytest.raises(Cancelled):
            session.step(check)
        assert facts(session) == before
        now = tensors(session)
        assert same({k: v for k, v in held.items() if k in now or k[0] not in stale(session)}, now)
    session.step()
    assert same(tensors(session), tensors(twin))
    newest, expected = session.logits(0), twin.logits(0)
    assert newest is not None
    assert expected is not None
    assert torch.equal(newest, expected)


def test_a_decode_step_is_not_interrupted() -> None:
    session, _ = started()
    session.step()
    session.step(lambda: pytest.fail("a decode step is short"))


def test_a_prompt_that_is_refused_changes_nothing() -> None:
    session, seq_id = started()
    session.step()
    before = facts(session)
    for prompt in (prompt_ids(129), (5, 128), (-1,)):
        with pytest.raises(InputError):
            session.submit(Prompt(token_ids=prompt))
    with pytest.raises(InputError, match="no tokenizer"):
        session.submit(Prompt(text="text"))
    assert facts(session) == before
    assert [i.seq_id for i in session.sequences] == [seq_id]


def test_a_cache_that_is_refused_leaves_the_old_one() -> None:
    session, seq_id = started(length=20)
    session.step()
    held = tensors(session)
    for spec in (
        CacheSpec("static", max_length=10),
        CacheSpec("static", max_length=1000),
        CacheSpec("paged", num_pages=2),
    ):
        with pytest.raises(InputError):
            session.set_cache(spec)
        assert session.cache == GROWING
        assert same(tensors(session), held)
    session.step()
    assert session.sequence(seq_id).num_tokens == 21


@pytest.mark.parametrize("cache", [n for n in LOSSLESS if n != "growing"])
def test_a_change_of_cache_that_fails_leaves_the_old_one(cache: str) -> None:
    session, _ = started("mistral", length=20, chunk=6)
    for _ in range(4):
        session.step()
    before, held = facts(session), tensors(session)
    number, outcome = 1, failing_at(1, lambda: session.set_cache(PRESETS[cache].spec))
    while isinstance(outcome, Injected):
        assert session.cache == GROWING, str(outcome)
        assert facts(session) == before, str(outcome)
        assert same(tensors(session), held), str(outcome)
        number += effort(11, 1)
        outcome = failing_at(number, lambda: session.set_cache(PRESETS[cache].spec))
    assert session.cache == PRESETS[cache].spec
    session.step()


@pytest.mark.parametrize("cache", ["dynamic", "static", "paged", "none"])
def test_a_way_back_whose_replay_fails_changes_nothing(cache: str) -> None:
    """Rows that left a window must be replayed; when the replay fails, the session is as before."""
    session, twin = prepared("mistral", cache, "decode"), prepared("mistral", cache, "decode")
    for _ in range(8):
        session.step()
        twin.step()
    before, held = facts(session), tensors(session)
    with pytest.MonkeyPatch.context() as patch:

        def fail(*args: object) -> None:
            raise MemoryError("no room")

        patch.setattr("engine.session.replay.Replay.steps", fail)
        if cache == "paged":
            session.go_to(3)  # its pages are still there
        else:
            with pytest.raises(MemoryError):
                session.go_to(3)
            assert facts(session) == before
            assert same(tensors(session), held)
    assert cache == "paged" or "repeated" in session.go_to(3)
    twin.go_to(3)
    assert session.last_step == twin.last_step == 3
    assert session.step().sequences[0].token_ids == twin.step().sequences[0].token_ids
    assert same(tensors(session), tensors(twin))


def test_a_page_that_a_failed_step_had_filled_is_not_found_by_its_tokens() -> None:
    """The step fails after its rows are written: a page filled with them must not serve the next prompt."""
    found = failures(LOSSY["paged"], "first chunk", lambda count: {count}, within="session/states")
    assert found.num_failed
    assert found.not_undone == []
