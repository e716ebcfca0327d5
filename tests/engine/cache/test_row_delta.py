"""What a step says it did to the rows, against the rows before and after it, number by number."""

from __future__ import annotations

import pytest
import torch

from engine.cache.contract import NO_ROWS, RowDelta, hull
from engine.cache.sequence_cache import SequenceCache
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.tiny import model_of, prompt_ids

KIVI = uniform("kivi-4", 8, 8)
SPECS = {name: PRESETS[name].spec for name in ("none", "dynamic", "static", "growing", "paged", "int8", "fp8")}
SPECS |= {
    "transformers": PRESETS["transformers-quantized"].spec,
    "kivi": CacheSpec(codec=KIVI),
    "paged int8": CacheSpec("paged", page_size=4, codec=uniform("int8")),
    "h2o": CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4)),
    "h2o fp8": CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4), codec=uniform("fp8")),
    "sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=8)),
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=8, rerotate=True)),
    "snapkv": CacheSpec(retention=RetentionSpec("snapkv", budget=12, window=4)),
    "paged h2o": CacheSpec("paged", page_size=4, retention=RetentionSpec("h2o", budget=12, window=4)),
}
WINDOWED = ("dynamic", "static", "growing", "paged", "int8")
CASES = [("llama", name) for name in SPECS] + [("mistral", name) for name in WINDOWED] + [("lfm2", "dynamic")]
CASES += [("bart", name) for name in ("growing", "h2o", "paged h2o", "kivi")]

Places = dict[tuple[int, int], torch.Tensor]


def places(cache: SequenceCache, layer: int, part: str) -> Places:
    """Every row of a layer, by head and position."""
    rows = cache.rows(layer)
    if rows is None:
        return {}
    tensor = rows.keys if part == "keys" else rows.values
    heads, count = tensor.shape[1:3]
    where = rows.positions
    if where is None:
        where = torch.arange(rows.first, rows.first + count).expand(heads, -1)
    return {(h, int(where[h, slot])): tensor[0, h, slot].clone() for h in range(heads) for slot in range(count)}


def all_places(cache: SequenceCache) -> list[dict[str, Places]]:
    return [{part: places(cache, layer, part) for part in ("keys", "values")} for layer in range(len(cache.layers))]


def check(before: dict[str, Places], after: dict[str, Places], delta: RowDelta) -> None:
    """Nothing happened that the delta does not tell, and it tells of no row that went but is there."""
    gone = set(delta.left_window)
    evicted = {(h, int(p)) for went in delta.evicted for h, row in enumerate(went) for p in row}
    for part, rewritten in (("keys", delta.rewritten_keys), ("values", delta.rewritten_values)):
        then, now = before[part], after[part]
        assert {p for _, p in now.keys() - then.keys()} <= set(delta.written), part
        lost = then.keys() - now.keys()
        assert lost == {(h, p) for h, p in then if p in gone or (h, p) in evicted}
        assert not evicted & now.keys()
        changed = {p for h, p in then.keys() & now.keys() if not torch.equal(then[h, p], now[h, p])}
        assert changed <= set(rewritten), part
        assert all(p < delta.written.start for p in rewritten)


@pytest.mark.parametrize(("architecture", "name"), effort(CASES[::2], CASES))
def test_a_step_tells_all_that_it_did_to_the_rows(architecture: str, name: str) -> None:
    session = Session(model_of(architecture), SPECS[name], prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(20)))
    session.force(seq_id, prompt_ids(30, seed=1))
    cache = session.cache_of(seq_id)
    before = all_places(cache)
    start, first = cache.num_tokens, before
    for _ in range(22):
        had = cache.num_tokens
        session.step()
        after, deltas = all_places(cache), cache.changes_since(had)
        assert deltas is not None
        for mine, now, delta in zip(before, after, deltas, strict=True):
            check(mine, now, delta)
        before = after
    whole = cache.changes_since(start)
    assert whole is not None
    for then, now, delta in zip(first, before, whole, strict=True):
        if now["keys"] and architecture != "bart":
            assert delta.written == range(cache.num_tokens)
        assert not then["keys"]


@pytest.mark.parametrize(
    ("name", "quiet", "busy"),
    [
        ("kivi", (NO_ROWS, range(14, 15)), (range(16, 23), range(15, 16))),
        ("rotated sinks", (range(2), NO_ROWS), (range(2), NO_ROWS)),
        ("int8", (NO_ROWS, NO_ROWS), (NO_ROWS, NO_ROWS)),
    ],
)
def test_which_older_rows_a_step_rewrites(name: str, quiet: tuple[range, range], busy: tuple[range, range]) -> None:
    """KIVI quantises values one by one and keys a residual of 8 at a time, with the 24th token the third; rotated sinks
    move with every row that goes."""
    session = Session(model_of("llama"), SPECS[name])
    seq_id = session.submit(Prompt(token_ids=prompt_ids(12)))
    session.force(seq_id, prompt_ids(30, seed=1))
    cache = session.cache_of(seq_id)
    while cache.num_tokens < 24:
        session.step()
    last, both = cache.changes_since(23), cache.changes_since(22)
    assert last is not None
    assert both is not None
    assert [(d.rewritten_keys, d.rewritten_values) for d in last] == [busy] * 2
    expected = hull(quiet[0], busy[0]), hull(quiet[1], busy[1])
    assert [(d.rewritten_keys, d.rewritten_values) for d in both] == [expected] * 2


def test_what_happened_before_going_back_is_not_told_after_it() -> None:
    session = Session(model_of("llama"), SPECS["h2o"])
    seq_id = session.submit(Prompt(token_ids=prompt_ids(12)))
    session.force(seq_id, prompt_ids(30, seed=1))
    for _ in range(4):
        session.step()
    cache = session.cache_of(seq_id)
    assert cache.changes_since(cache.num_tokens - 2) is not None
    session.go_to(1)
    session.step()
    cache = session.cache_of(seq_id)  # the one before is kept with the moment that was left
    assert cache.changes_since(cache.num_tokens - 1) is not None
    assert cache.changes_since(cache.num_tokens - 2) is None


def test_two_deltas_in_one() -> None:
    one = RowDelta(range(3), rewritten_keys=range(1, 2), evicted=(torch.tensor([[0]]),))
    other = RowDelta(range(3, 5), rewritten_values=range(2), left_window=range(1), evicted=(torch.tensor([[1]]),))
    both = one.then(other)
    assert (both.written, both.rewritten_keys, both.rewritten_values) == (range(5), range(1, 2), range(2))
    assert (both.left_window, [int(e) for e in both.evicted]) == (range(1), [0, 1])
    assert RowDelta(range(2)).then(RowDelta(range(2, 3))).is_plain
    assert not both.is_plain
    assert (hull(range(0), range(3, 4)), hull(range(1, 2), range(5, 7))) == (range(3, 4), range(1, 7))


def test_what_happened_is_known_from_step_to_step_and_not_in_between() -> None:
    cache = SequenceCache(CacheSpec(), model_of("llama").model.config, 64)
    for num_tokens in (4, 6, 7):
        cache.commit(num_tokens)

    def written(since: int, until: int | None = None) -> range | None:
        found = cache.changes_since(since, until)
        return None if found is None else found[0].written

    assert written(0) == range(7)
    assert written(4) == range(4, 7)
    assert written(4, 6) == range(4, 6)
    assert written(7) == NO_ROWS
    assert (written(5), written(0, 5), written(4, 5)) == (None, None, None)
