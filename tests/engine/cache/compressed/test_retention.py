"""Rules keep what they say; dropping rows is exactly masking them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from engine.cache.attention_probe import Probe
from engine.cache.compressed.retention import LayerView, cut, rule_of
from engine.errors import InputError
from engine.predict.bytes import CacheFormula, Fill
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, preset_of, tuned
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec, parse_budget
from engine.spec.terms import bytes_of
from engine.wire.pictures import RowRequest, WallRequest
from tests.engine.cache.compressed.prompts import finish_prompt
from tests.engine.cache.compressed.rules import RULES, held_and_pictured, session_of
from tests.engine.tiny import model_of

BY_RULE = pytest.mark.parametrize("name", RULES)


def view_of(
    keys: torch.Tensor, memory: torch.Tensor | None = None, weights: torch.Tensor | None = None, recent: int = 0
) -> LayerView:
    positions = torch.arange(keys.shape[1]).expand(keys.shape[0], -1)
    return LayerView(0, keys, positions, memory, weights, recent)


def test_sinks_and_the_latest_stay_and_the_best_of_the_rest() -> None:
    scores = torch.tensor([[0.0, 9.0, 1.0, 8.0, 7.0, 2.0, 0.0], [0.0, 1.0, 9.0, 1.0, 1.0, 8.0, 0.0]])
    positions = torch.arange(7).expand(2, -1)
    chosen = cut(scores, positions, RetentionSpec("knorm", budget=4, sinks=1, window=1), 4)
    assert chosen.kept.tolist() == [[0, 1, 3, 6], [0, 2, 5, 6]]
    assert chosen.evicted.tolist() == [[2, 4, 5], [1, 3, 4]]


def test_of_equal_scores_the_older_row_stays() -> None:
    chosen = cut(torch.zeros(1, 5), torch.arange(5)[None], RetentionSpec("knorm", budget=3), 3)
    assert chosen.kept.tolist() == [[0, 1, 2]]


def test_heavy_hitters_add_up_what_rows_receive() -> None:
    rule = rule_of(RetentionSpec("h2o", budget=3))
    first = Probe(sums={0: torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])})  # two query heads share one kv head
    memory = rule.remember(None, first, 0, 1)
    memory = rule.remember(memory, Probe(sums={0: torch.tensor([[[1.0, 0.0, 5.0], [1.0, 0.0, 5.0]]])}), 0, 1)
    assert memory is not None
    assert memory.tolist() == [[3.0, 3.0, 5.0]]


@pytest.mark.parametrize(
    ("attended", "expected"),
    [
        (4, [0, 0, 0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0]),
        (0, [0.2, 0.2, 0.2, 0, 0, 0, 0, 0, 0, 0]),  # zeros beyond the edge count: a mean of five, not of three
        (9, [0, 0, 0, 0, 0, 0, 0, 0.2, 0.2, 0.2]),
        (10, [0] * 10),  # what stays anyway lends nothing to its neighbours
    ],
)
def test_snapkv_pools_the_attention_of_the_last_queries(attended: int, expected: list[float]) -> None:
    """Ten rows before a window of two; the window's own rows rank with the best, since they stay."""
    rule = rule_of(RetentionSpec("snapkv", budget=6, window=2))
    rows = torch.zeros(1, 2, 3, 12)  # two query heads share a kv head; the first of three queries is not asked
    rows[0, :, 0, 6] = 1.0
    rows[0, 0, 1:, attended], rows[0, 1, 1:, attended] = 1.5, 0.5
    memory = rule.remember(None, Probe(latest={0: rows}), 0, 1)
    scores = rule.score(view_of(torch.zeros(1, 12, 4), memory, recent=2))
    assert scores[0].tolist() == pytest.approx([*expected, max(expected), max(expected)])


def test_snapkv_asks_as_many_queries_as_it_has_rows_that_stay() -> None:
    """A budget of ten keeps five rows whatever their scores: so five queries choose the other five."""
    rule = rule_of(RetentionSpec("snapkv", budget=10))
    rows = torch.zeros(1, 1, 20, 40)
    rows[0, 0, :15, 8], rows[0, 0, 15:, 20] = 1.0, 1.0
    memory = rule.remember(None, Probe(latest={0: rows}), 0, 1)
    scores = rule.score(view_of(torch.zeros(1, 40, 4), memory, recent=5))
    assert scores[0, :35].nonzero().flatten().tolist() == [18, 19, 20, 21, 22]


def test_tova_keeps_the_same_rows_in_every_head() -> None:
    weights = torch.tensor([[0.6, 0.1, 0.3], [0.0, 0.9, 0.1]])
    scores = rule_of(RetentionSpec("tova", budget=2)).score(view_of(torch.zeros(2, 3, 4), None, weights))
    assert torch.allclose(scores, torch.tensor([0.3, 0.5, 0.2]).expand(2, -1))


def test_knorm_drops_the_longest_key_and_keydiff_the_most_common() -> None:
    keys = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]])
    assert rule_of(RetentionSpec("knorm", budget=3)).score(view_of(keys)).argmin() == 0
    assert rule_of(RetentionSpec("keydiff", budget=3)).score(view_of(keys)).argmax() == 2


def test_random_draws_the_same_for_the_same_position_and_differs_by_head_and_seed() -> None:
    keys = torch.zeros(2, 50, 4)
    one, again, other = (rule_of(RetentionSpec("random", budget=3, seed=s)).score(view_of(keys)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
    assert 0.3 < float(one.mean()) < 0.7


def test_a_pyramid_falls_evenly_and_keeps_its_mean() -> None:
    spec = RetentionSpec("snapkv", budget=256, sinks=4, schedule="pyramid")
    layers = [spec.at(number, 6) for number in range(6)]
    budgets = [layer.budget or 0 for layer in layers]
    chosen = 256 - 4 - 32  # what no rule protects; SnapKV's window is 32
    assert budgets[-1] == 4 + 32 + chosen // 20
    assert budgets[0] == 4 + 32 + 2 * chosen - chosen // 20
    assert abs(sum(budgets) - 6 * 256) <= 6
    steps = [one - next_ for one, next_ in pairwise(budgets)]
    assert max(steps) - min(steps) <= 1
    assert {layer.window for layer in layers} == {32}
    assert spec.at(0, 1).budget == 256


def test_a_pyramid_gives_on_what_a_short_prompt_leaves_over() -> None:
    """224 rows are chosen beside a window of 32: 437 in the first layer, 11 in the last, where there are so many."""
    spec = RetentionSpec("snapkv", budget=256, schedule="pyramid")

    def chosen(prompt: int | None, retention: RetentionSpec = spec) -> list[int]:
        return [(retention.at(number, 6, prompt).budget or 0) - 32 for number in range(6)]

    whole = [437, 352, 267, 182, 97, 11]
    assert chosen(None) == chosen(10_000) == chosen(469) == whole
    assert chosen(459) == [427, 346, 265, 184, 103, 21], "ten rows fewer to choose from: ten more for the last"
    assert chosen(448) == [416, 340, 263, 186, 109, 32]
    assert chosen(447) == [224] * 6, "fewer than two means to choose from are spread evenly"
    assert sum(chosen(459)) == pytest.approx(6 * 224, abs=6)
    decoding = RetentionSpec("knorm", budget=256, window=32, schedule="pyramid")
    assert chosen(100, decoding) == whole, "a rule that goes on dropping has no short prompt: tokens keep coming"


def test_a_short_prompt_under_pyramidkv_keeps_its_budgets_through_forks_and_rewinds() -> None:
    """By rows and by formula, in a fork too, and after going back into the prompt."""
    retention = RetentionSpec("snapkv", budget=10, window=2, schedule="pyramid")
    session, seq_id = session_of(retention, prompt=17, chunk=8)
    finish_prompt(session)
    session.step()
    expected = [retention.at(number, 2, 17).budget or 0 for number in range(2)]
    assert expected == [17, 3]
    assert [retention.at(number, 2).budget for number in range(2)] == [18, 2]
    for _ in range(2):
        twin = session.fork(seq_id).child
        for seq in (seq_id, twin):
            cache = session.cache_of(seq)
            assert [rows_of(session, seq, layer) for layer in range(2)] == [count + 1 for count in expected]
            layers = session.model.info.geometry.layers
            row_bytes = 2 * 2 * 16 * 4  # K and V of two heads
            formula = CacheFormula(session.cache, session.model.info.geometry, "float32")
            fill = Fill(cache.num_tokens, cache.prompt_ended_at)
            found = [bytes_of(formula.terms(layer, fill)) for layer in layers]
            assert found == [(count + 1) * row_bytes for count in expected]
        session.remove(twin)
        session.go_to(0)
        finish_prompt(session)
        session.step()


def rows_of(session: Session, seq_id: int, layer: int) -> int:
    rows = session.cache_of(seq_id).rows(layer)
    assert rows is not None
    return rows.keys.shape[2]


def test_budgets_are_read_as_they_are_written() -> None:
    assert parse_budget("64") == 64
    pyramid = tuned(PRESETS["snapkv"].spec, budget=parse_budget("pyramid:64"))
    assert preset_of(pyramid).name == "pyramidkv"
    assert (pyramid.retention.budget, pyramid.retention.schedule) == (64, "pyramid")
    assert tuned(pyramid, budget=32).retention.schedule == "pyramid"
    listed = tuned(pyramid, budget=parse_budget("64, 32"))
    assert listed.retention == RetentionSpec("snapkv", layer_budgets=(64, 32))
    assert tuned(listed, budget=16).retention == RetentionSpec("snapkv", budget=16)
    assert tuned(listed, ratio=0.5).retention == RetentionSpec("snapkv", ratio=0.5)


@BY_RULE
def test_budgets_hold_and_positions_stay_true(name: str) -> None:
    session, seq_id = session_of(RULES[name])
    finish_prompt(session)
    for _ in range(6):
        record = session.step()
        cache, seen = session.cache_of(seq_id), session.sequence(seq_id).num_tokens
        assert cache.model_cache.get_seq_length() == seen == cache.num_tokens
        expected = 12 + seen - 20 if name == "snapkv" else seen // 2 if name == "random" else 12
        for layer in range(len(cache.layers)):
            rows = cache.rows(layer)
            assert rows is not None
            assert rows.positions is not None
            assert rows.keys.shape[2] == rows.positions.shape[1] == expected
            assert bool((rows.positions.diff(dim=1) > 0).all())
            if name.startswith(("sinks", "rerot")):
                assert rows.positions[0].tolist() == [0, 1, *range(seen - 10, seen)]
        assert record.num_bytes.stored == record.num_bytes.predicted
        assert record.sequences[0].stored_bytes == record.num_bytes.stored


@BY_RULE
def test_the_record_alone_says_why(name: str) -> None:
    session, seq_id = session_of(RULES[name])
    held: set[int] = set()
    gone: dict[int, set[int]] = {0: set(), 1: set()}
    while session.last_step is None or session.last_step < 9:
        record = session.step()
        for eviction in record.evictions:
            assert eviction.seq_id == seq_id
            assert eviction.rule
            assert len(eviction.scores) == len(eviction.positions)
            if eviction.lowest_kept is not None:
                assert float(eviction.scores.max()) <= eviction.lowest_kept
            assert eviction.score_of(int(eviction.positions[0])) == float(eviction.scores[0])
            assert eviction.score_of(10_000) is None
            if eviction.layer == 0 and eviction.kv_head in (0, None):
                gone[0] |= set(eviction.positions.tolist())
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    assert rows.positions is not None
    held = set(rows.positions[0].tolist())
    assert held | gone[0] == set(range(session.sequence(seq_id).num_tokens))
    assert not held & gone[0]


@pytest.mark.parametrize(
    ("architecture", "retention", "said"),
    [
        ("mistral", RULES["h2o"], "sliding layers"),
        ("llama", RetentionSpec("h2o", layer_budgets=(9, 9, 9)), "3 budgets are given, and 2 layers"),
        ("gemma3_text", RetentionSpec("h2o", layer_budgets=(9, 9, 9, 9)), "2 layers of this model evict rows .1, 3."),
        ("mamba", RULES["knorm"], "no rows to evict"),
        *(("bloom", RULES[name], "shows no weights") for name in ("h2o", "snapkv", "tova")),
        ("deepseek_v3", RULES["knorm"], "latent"),
        ("gpt2", RULES["rerotated"], "do not"),
        ("gpt_neox", RULES["rerotated"], "do not"),
        ("cohere", RULES["rerotated"], "do not"),
    ],
)
def test_what_masks_and_positions_forbid_is_refused(architecture: str, retention: RetentionSpec, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Session(model_of(architecture), CacheSpec(retention=retention))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RetentionSpec("h3o"), "keydiff"),  # type: ignore[arg-type]
        (lambda: RetentionSpec("h2o", budget=4, sinks=4), "5 or more"),
        (lambda: RetentionSpec("h2o"), "exactly one"),
        (lambda: RetentionSpec("h2o", budget=4, ratio=0.5), "exactly one"),
        (lambda: RetentionSpec("knorm", ratio=1.0), "outside"),
        (lambda: RetentionSpec("knorm", budget=8, sinks=4, window=8), "exceed"),
        (lambda: RetentionSpec("h2o", layer_budgets=(8, 3), sinks=3), "budget of 3"),
        (lambda: RetentionSpec("h2o", layer_budgets=(8, 8), budget=8), "exactly one"),
        (lambda: RetentionSpec("h2o", ratio=0.5, schedule="pyramid"), "mean"),
        (lambda: RetentionSpec("h2o", budget=8, schedule="cone"), "pyramid"),  # type: ignore[arg-type]
        (lambda: RetentionSpec("window", window=4, layer_budgets=(8, 8)), "give window"),
        (lambda: RetentionSpec(layer_budgets=(8, 8)), "no budget"),
        (lambda: parse_budget("many"), "pyramid:256"),
        (lambda: parse_budget("8,"), "no budget"),
        (lambda: RetentionSpec("window"), "newest token"),
        (lambda: RetentionSpec("window", window=4, sinks=1), "sinks"),
        (lambda: RetentionSpec("h2o", budget=8, rerotate=True), "gap"),
        (lambda: RetentionSpec(budget=4), "no budget"),
        (lambda: CacheSpec(codec=uniform("kivi-4"), retention=RULES["h2o"]), "share scales"),
        (lambda: CacheSpec(codec=uniform("int8"), retention=RULES["rerotated"]), "second loss"),
        (lambda: tuned(CacheSpec(), budget=4), "keeps all rows"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3", "deepseek_v3", "mixtral", "cohere", "gpt_neox"])
@pytest.mark.parametrize("name", ["sinks+window", "h2o", "snapkv", "tova"])
def test_rules_run_on_models_with_full_attention(name: str, architecture: str) -> None:
    session, _ = session_of(RULES[name], model_of(architecture))
    for _ in range(7):
        record = session.step()
        assert not record.non_finite
    assert any(record.evictions for record in [record]) or name == "snapkv"


def test_pictures_leave_dropped_rows_empty() -> None:
    session, seq_id = session_of(RULES["h2o"])
    held, head = held_and_pictured(session, seq_id)
    tokens = session.sequence(seq_id).num_tokens
    assert head.positions.tolist() == list(range(tokens))
    assert np.flatnonzero(head.absent == 0).tolist() == held
    assert np.isnan(head.low[head.absent == 1]).all()
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    assert np.array_equal(head.low[head.absent == 0], rows.keys[0, 1].numpy())
    assert head.num_nan == 0
    wall: Any = session.take_picture(WallRequest(seq_id, tokens, 0, "values", False, 5, 4))
    assert wall.absent.shape == wall.low.shape[:3]
    assert int(wall.absent.sum()) == 2 * 2 * (tokens - 12)
    lost = sorted(set(range(tokens)) - set(held))[0]
    row: Any = session.take_picture(RowRequest(seq_id, tokens, lost))
    assert 1 not in row.layers or np.isnan(row.keys[row.layers.index(1)][1]).all()
