"""Bytes of a layer by their kind, against sums over sequences worked out by hand."""

from __future__ import annotations

import pytest

from engine.cache.contract import HeldBytes
from engine.session.ledger import page_gaps, row_gaps, summed
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.records import ByteGap
from tests.engine.tiny import model_of, prompt_ids

ONE = HeldBytes(stored=100, reserved=160, scales=10, residual=20, positions=8, dequantised=300, lost=5, scores=11)
TWO = HeldBytes(stored=50, reserved=60, scales=4, residual=6, positions=2, dequantised=120, lost=7, scores=13)


def named(gaps: list[ByteGap]) -> dict[str, tuple[int, str]]:
    found = {gap.name: (gap.num_bytes, gap.part) for gap in gaps}
    assert len(found) == len(gaps)
    return found


def test_what_sequences_hold_is_added_up_but_only_one_copy_lives_at_a_time() -> None:
    assert named(row_gaps(summed([ONE, TWO]), CacheSpec(), 70)) == {
        "scales and offsets": (14, "stored"),
        "exact residual": (26, "stored"),
        "positions of the rows kept": (10, "reserved"),
        "room to grow": (60, "reserved"),  # reserved and not stored bytes, without the positions
        "dequantised copy": (300, "transient"),  # the larger of both: they are computed one after the other
        "rows kept for going back": (12, "looking"),
        "attention that the rule remembers": (24, "looking"),
    }


def test_room_of_a_static_cache_is_padding() -> None:
    found = named(row_gaps(summed([ONE]), CacheSpec("static", max_length=64), 60))
    assert found["padding to the reserved length"] == (52, "reserved")
    assert "room to grow" not in found


def test_shared_pages_have_their_scales_once_and_slack_is_no_more_than_what_is_unfilled() -> None:
    shared = HeldBytes(stored=40, scales=3)
    assert named(page_gaps(summed([ONE, TWO]), shared, 30, 500)) == {
        "scales and offsets": (11, "stored"),
        "page slack": (30, "reserved"),
        "pages not in use": (470, "reserved"),
        "dequantised copy": (300, "transient"),
        "attention that the rule remembers": (24, "looking"),
    }
    tight = named(page_gaps(summed([ONE]), HeldBytes(), 30, 20))
    assert (tight["page slack"][0], tight["pages not in use"][0]) == (20, 0)


def test_nothing_held_is_nothing() -> None:
    assert {size for size, _ in named(row_gaps(summed([]), CacheSpec(), 0)).values()} == {0}


# ---- of a session ----

SIZE = 4
SPECS = {
    "exact": CacheSpec("paged", page_size=SIZE, num_pages=40),
    "int8": CacheSpec("paged", page_size=SIZE, num_pages=40, codec=uniform("int8")),
}


def stored(session: Session) -> int:
    held = session.bytes()
    assert [layer.predicted for layer in held.layers] == [layer.stored for layer in held.layers]
    return held.stored


@pytest.mark.parametrize("name", SPECS)
def test_a_fork_of_pages_stores_its_own_rows_alone(name: str) -> None:
    """Ten rows, the last page half full: the fork has none of its own, then copies two and writes one."""
    session = Session(model_of("llama"), SPECS[name])
    parent = session.submit(Prompt(token_ids=prompt_ids(10)))
    session.force(parent, prompt_ids(20, seed=1))
    session.step()
    ten = stored(session)
    row = ten // 10
    child = session.fork(parent).child
    assert stored(session) == ten
    session.stop(parent)
    session.force(child, prompt_ids(20, seed=2))
    session.step()
    assert session.sequence(child).num_tokens == 11
    assert stored(session) == ten + 3 * row
    session.remove(parent)
    assert stored(session) == 11 * row


def test_a_row_of_a_page_counts_once_however_much_of_the_page_its_sharers_have() -> None:
    """Forks of fewer tokens begin in the middle of pages that the first one has filled since."""
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4))
    parent = session.submit(Prompt(token_ids=prompt_ids(15)))
    session.force(parent, prompt_ids(20, seed=1))
    session.step()
    row = stored(session) // 15
    forks = [session.fork(parent, num_tokens=count).child for count in (6, 7, 13)]
    tables = [session.cache_of(seq_id).tables[0] for seq_id in (parent, *forks)]
    session.stop(parent)
    for number, fork in enumerate(forks):
        session.force(fork, prompt_ids(20, seed=number))
    for _ in range(3):
        assert session.live.mode.store is not None
        slots = {table.slot(position) for table in tables for position in range(table.num_tokens)}
        assert stored(session) == len(slots) * row
        assert len(slots) < sum(table.num_tokens for table in tables)
        session.step()
        tables = [session.cache_of(seq_id).tables[0] for seq_id in (parent, *forks)]


@pytest.mark.parametrize(
    ("spec", "after_prompt", "after_a_step"),
    [
        # a float32 number for every row of two kv heads: all twenty, then those that are kept; in pages, two full ones
        # and two rows
        (CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4)), 20 * 2 * 4, 12 * 2 * 4),
        (CacheSpec("paged", page_size=SIZE, retention=RetentionSpec("h2o", budget=12, window=4)), 160, 10 * 2 * 4),
        # the weights of four queries in four heads, until the prompt ends
        (CacheSpec(retention=RetentionSpec("snapkv", budget=12, window=4)), 4 * 4 * 20 * 4, 0),
        (CacheSpec(retention=RetentionSpec("knorm", budget=12, window=4)), 0, 0),
    ],
)
def test_attention_statistics_of_a_rule_have_their_line(spec: CacheSpec, after_prompt: int, after_a_step: int) -> None:
    session = Session(model_of("llama"), spec, prefill_chunk=20)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(21)))
    session.force(seq_id, prompt_ids(9, seed=1))
    found = []
    for _ in range(3):
        held = session.step().num_bytes
        gaps = [{gap.name: gap for gap in layer.gaps}.get("attention that the rule remembers") for layer in held.layers]
        (size,) = {gap.num_bytes if gap else 0 for gap in gaps}
        found.append(size)
        kept = sum(gap.num_bytes for layer in held.layers for gap in layer.gaps if gap.part == "looking")
        assert held.looking >= kept
    assert found[0] == after_prompt
    assert found[2] == after_a_step


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec(codec=uniform("fp8")),
        CacheSpec(codec=uniform("kivi-4", 8, 8)),
        CacheSpec(retention=RetentionSpec("h2o", budget=12)),
    ],
    ids=["fp8", "kivi", "h2o"],
)
def test_rows_that_wait_for_the_end_of_the_prompt_are_coded_or_dropped_there_and_not_before(
    spec: CacheSpec,
) -> None:
    session = Session(model_of("llama"), spec, prefill_chunk=16)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(32)))
    for _ in range(5):
        session.step()
    for step, ended_at in ((2, 32), (1, 32), (0, None)):
        session.go_to(step)
        assert session.cache_of(seq_id).prompt_ended_at == ended_at
        held = session.bytes()
        assert held.stored == held.predicted


def test_exact_rows_that_kivi_keeps_for_going_back_have_their_line() -> None:
    """The prompt's rows once it has ended, and rows of a residual that was coded since."""
    session = Session(model_of("llama"), CacheSpec(codec=uniform("kivi-4", 8, 8)), prefill_chunk=32)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(33)))
    session.force(seq_id, prompt_ids(40, seed=1))
    found = []
    for _ in range(17):
        layers = session.step().num_bytes.layers
        found.append(sum(gap.num_bytes for layer in layers for gap in layer.gaps if gap.name.startswith("rows kept")))
    assert found[0] == 0 < found[1]
    coded_at = [number for number, size in enumerate(found) if size > found[1]]
    assert coded_at == [8, 16], "a group was coded, and no newer rows have taken its room yet"
