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
from engine.model.loader import LoadedModel
from engine.predict.bytes import CacheFormula, Fill
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.presets import PRESETS, preset_of
from engine.spec.retention import RetentionSpec, layers_that_drop, parse_budget
from engine.spec.sampling import Prompt
from engine.spec.tuning import tuned
from engine.wire.requests import RowRequest, WallRequest
from tests.engine.cache.compressed.rules import RULES, held_and_pictured, session_of
from tests.engine.tiny import model_of

BY_RULE = pytest.mark.parametrize("name", RULES)


def finish_prompt(session: Session) -> None:
    while session.is_prefilling:
        session.step()


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
    assert chosen.dropped.tolist() == [[2, 4, 5], [1, 3, 4]]


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
            found = [formula.stored_bytes(layer, fill) for layer in layers]
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
    assert (pyramid.budget, pyramid.retention.schedule) == (64, "pyramid")
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
        assert cache.live.get_seq_length() == seen == cache.num_tokens
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


def masked_logits(
    model: LoadedModel, ids: list[int], prompt: int, dropped_at: dict[int, dict[int, Any]]
) -> torch.Tensor:
    """Logits of the last token of a full forward in which every query sees only the rows held when it came."""
    heads = model.info.geometry.num_kv_heads or 1
    group = (model.info.geometry.num_heads or 1) // heads
    total = len(ids)
    masks: dict[int, torch.Tensor] = {}
    for layer in range(len(model.info.geometry.layers)):
        window = model.info.geometry.layers[layer].window or total
        mask = torch.ones(total, total, dtype=torch.bool).tril().triu(1 - window).repeat(1, heads, 1, 1)
        for seen, by_layer in dropped_at.items():
            for head in range(heads):
                for position in by_layer.get((layer, head), []):  # type: ignore[call-overload]
                    mask[0, head, seen:, position] = False
        masks[layer] = mask.repeat_interleave(group, 1)
    module = model.model.model
    handles = []
    for index, layer in enumerate(module.layers):

        def swap(_: Any, args: Any, kwargs: dict[str, Any], index: int = index) -> Any:
            return args, {**kwargs, "attention_mask": masks[index]}

        if hasattr(layer, "self_attn"):
            handles.append(layer.self_attn.register_forward_pre_hook(swap, with_kwargs=True))
    try:
        with torch.inference_mode():
            return model.model(torch.tensor([ids]), use_cache=False).logits[0, -1]  # type: ignore[no-any-return]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", [name for name in RULES if name != "rerotated"])
def test_dropping_rows_is_masking_their_columns(name: str) -> None:
    assert_masked("llama", RULES[name])


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text", "gpt_oss", "cohere2", "lfm2"])
@pytest.mark.parametrize("name", ["sinks+window", "h2o", "snapkv", "tova", "knorm"])
def test_in_mixed_models_full_layers_drop_rows_and_the_others_keep_theirs(name: str, architecture: str) -> None:
    assert_masked(architecture, RULES[name])


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize(
    "retention",
    [
        RetentionSpec("h2o", layer_budgets=(14, 8)),
        RetentionSpec("tova", layer_budgets=(5, 16), sinks=2),
        RetentionSpec("snapkv", budget=10, window=2, schedule="pyramid"),
        RetentionSpec("keydiff", budget=9, sinks=1, schedule="pyramid"),
    ],
)
def test_layers_with_budgets_of_their_own(architecture: str, retention: RetentionSpec) -> None:
    assert_masked(architecture, retention)


def assert_masked(architecture: str, retention: RetentionSpec) -> None:
    """In float64, where rounding cannot hide a wrong row: the same logits to 1e-10 as the full cache with the dropped
    columns masked, and as many rows in each layer as its budget says."""
    model = model_of(architecture)
    is_double = architecture != "gpt_oss"  # whose experts are multiplied by a kernel without float64
    if is_double:
        model.model.double()
    try:
        session, seq_id = session_of(retention, model)
        dropped_at: dict[int, dict[Any, list[int]]] = {}
        for _ in range(9):
            record = session.step()
            seen = session.sequence(seq_id).num_tokens
            for e in record.evictions:
                for head in (0, 1) if e.kv_head is None else (e.kv_head,):
                    dropped_at.setdefault(seen, {}).setdefault((e.layer, head), []).extend(e.positions.tolist())
        sequence = session.sequence(seq_id)
        newest = session.logits(seq_id)
        assert newest is not None
        assert not is_double or newest.dtype == torch.float64
        dropping = layers_that_drop(model.info.geometry)
        for number, layer in enumerate(dropping):
            rows = session.cache_of(seq_id).rows(layer)
            assert rows is not None
            mine, prompt = retention.at(number, len(dropping), 20), 20
            kept = mine.num_kept(prompt if mine.only_at_prompt_end else sequence.num_tokens)
            assert rows.keys.shape[2] == kept + (sequence.num_tokens - prompt) * mine.only_at_prompt_end
        assert dropped_at
        expected = masked_logits(model, sequence.token_ids[: sequence.num_tokens], 20, dropped_at)
        # soft caps and sink logits are computed in float32, here and in the model's own code
        tolerance = {"gemma2": 1e-5, "gpt_oss": 1e-4}.get(architecture, 1e-10)
        assert float((newest - expected).abs().max()) < tolerance
        full = model.reference_logits(torch.tensor([sequence.token_ids[: sequence.num_tokens]]))[-1]
        assert float((newest - full).abs().max()) > 1e-3, "and it is not the full cache"
    finally:
        model.model.float()


@pytest.mark.parametrize("name", RULES)
def test_a_budget_of_the_whole_context_changes_nothing(name: str) -> None:
    spec = RULES[name]
    if spec.name in ("window", "sinks+window"):
        wide = RetentionSpec(spec.name, sinks=spec.sinks, window=100, rerotate=spec.rerotate)
    elif name == "random":
        wide = RetentionSpec(spec.name, ratio=0.0)
    else:
        wide = RetentionSpec(spec.name, budget=100)
    session, seq_id = session_of(wide)
    plain, plain_id = session_of(RetentionSpec())
    for _ in range(9):
        assert not session.step().evictions
        plain.step()
    assert torch.equal(session.logits(seq_id), plain.logits(plain_id))  # type: ignore[arg-type]


def test_sinks_are_turned_to_where_they_would_stand_without_the_gap() -> None:
    """Re-rotated: the same logits as feeding sinks and window alone, at positions without a gap, in a one-layer model
    of depth: keys of deeper layers depend on what was dropped, so only the first layer's keys are compared."""
    session, seq_id = session_of(RULES["rerotated"])
    finish_prompt(session)
    for _ in range(5):
        session.step()
    ids = session.sequence(seq_id).token_ids
    held = [0, 1, *range(len(ids) - 10, len(ids))]
    plain = Session(session.model, CacheSpec())
    plain_id = plain.submit(Prompt(token_ids=tuple(ids[i] for i in held)))
    plain.step()
    mine, true = session.cache_of(seq_id).rows(0), plain.cache_of(plain_id).rows(0)
    assert mine is not None
    assert true is not None
    # distances are what attention sees: products of sinks with the window must agree
    one = mine.keys[0, :, :2] @ mine.keys[0, :, 2:].mT
    other = true.keys[0, :, :2] @ true.keys[0, :, 2:].mT
    assert torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "retention", "said"),
    [
        ("mistral", RULES["h2o"], "sliding layers"),
        ("llama", RetentionSpec("h2o", layer_budgets=(9, 9, 9)), "3 budgets are given, and 2 layers"),
        ("gemma3_text", RetentionSpec("h2o", layer_budgets=(9, 9, 9, 9)), "2 layers of this model drop rows .1, 3."),
        ("mamba", RULES["knorm"], "no rows to drop"),
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
    wall: Any = session.take_slice(WallRequest(seq_id, tokens, 0, "values", False, 5, 4))
    assert wall.absent.shape == wall.low.shape[:3]
    assert int(wall.absent.sum()) == 2 * 2 * (tokens - 12)
    lost = sorted(set(range(tokens)) - set(held))[0]
    row: Any = session.take_slice(RowRequest(seq_id, tokens, lost))
    assert 1 not in row.layers or np.isnan(row.keys[row.layers.index(1)][1]).all()
