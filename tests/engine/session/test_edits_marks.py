"""Rows hidden from attention, pinned or dropped by hand, each compared with a computation without our cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.cache.contract import HeldRows
from engine.cache.layers.build import cache_argument
from engine.cache.layers.layer import ReadOnlyLayer, read_only_cache
from engine.errors import InputError
from engine.model.batch import Batch
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import Drop, Mask, Pin, Rows
from engine.spec.retention import RetentionSpec
from tests.engine.session.edited import edit_copy, edit_live, rows_of, running
from tests.engine.session.sessions import started
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import prompt_ids

MODES = [name for name, preset in PRESETS.items() if not preset.spec.recomputes]
LOSSLESS = [name for name in MODES if PRESETS[name].lossless]
HIDDEN = (4, 5, 17)


def held(session: Session, seq_id: int, layer: int, head: int = 0) -> list[int]:
    return session.cache_of(seq_id).held_positions(layer).expand(2, -1)[head].tolist()  # type: ignore[no-any-return]


def expected_logits(session: Session, seq_id: int, hides: dict[tuple[int, int], list[int]]) -> torch.Tensor:
    """What the next token gives through transformers' eager attention, whose scores are lowered where rows of a layer
    and kv head are hidden. The rows are those of the session."""
    import transformers.models.llama.modeling_llama as llama
    from transformers import DynamicCache

    model, live = session.model.model, session.live.get(seq_id)
    cache = DynamicCache(config=model.config)
    for index, (keys, values) in rows_of(live).items():
        cache.update(keys[None], values[None], index)
    assert live.sequence.sampled is not None

    def eager(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any) -> Any:
        keys, values = (llama.repeat_kv(t, module.num_key_value_groups) for t in (key, value))
        scores = query @ keys.transpose(2, 3) * scaling
        for (layer, kv_head), positions in hides.items():
            if layer == module.layer_idx:
                group = module.num_key_value_groups
                scores[:, kv_head * group : (kv_head + 1) * group, :, positions] = -1e30
        return (scores.softmax(-1) @ values).transpose(1, 2), None

    from transformers import AttentionInterface

    AttentionInterface.register("told apart", eager)
    model.set_attn_implementation("told apart")
    try:
        with torch.inference_mode():
            ids = torch.tensor([[live.sequence.sampled]])
            return model(ids, **{cache_argument(model): cache}, use_cache=True).logits[0, -1]  # type: ignore[no-any-return]
    finally:
        model.set_attn_implementation("kvloupe")


@pytest.mark.parametrize("mode", LOSSLESS)
@pytest.mark.parametrize("way", ["fused", "transformers"])
def test_hidden_rows_are_not_read_by_the_next_tokens(mode: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = running(small(mode))
    if way == "transformers":
        monkeypatch.setattr(session.model.runners, "chosen", "transformers")
    for position in HIDDEN:
        told = edit_live(session, Mask(seq_id, Rows(position, position + 1, (1,), (0,))))
        assert told.kl is not None
        assert told.kl > 0
    expected = expected_logits(session, seq_id, {(1, 0): list(HIDDEN)})
    plain = expected_logits(session, seq_id, {})
    session.step()
    got = session.logits(seq_id)
    assert got is not None
    assert torch.allclose(got, expected, atol=1e-4)
    assert not torch.allclose(got, plain, atol=1e-3)
    row = session.history.attention_at(seq_id, session.last_step or 0)[1]
    assert not row[:2, list(HIDDEN)].any()  # the two query heads of kv head 0
    assert bool((row[2:, list(HIDDEN)] > 0).all())
    assert torch.allclose(row.sum(1), torch.ones(4), atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_hiding_a_row_gives_what_its_absence_gives(mode: str) -> None:
    """In every head of every layer another row is either hidden or absent; both forwards give the same logits."""
    session, seq_id = running(small(mode))
    absent = {
        (layer, head): held(session, seq_id, layer, head)[1 + layer + head] for layer in (0, 1) for head in (0, 1)
    }
    for (layer, head), position in absent.items():
        assert edit_live(session, Mask(seq_id, Rows(position, position + 1, (layer,), (head,)))).kl != 0
    live = session.live.get(seq_id)
    layers = []
    for layer, (keys, values) in rows_of(live).items():
        keeps = [
            [slot for slot, at in enumerate(held(session, seq_id, layer, head)) if at != absent[layer, head]]
            for head in (0, 1)
        ]
        kept = [torch.stack([part[head, keeps[head]] for head in (0, 1)])[None] for part in (keys, values)]
        rows = HeldRows(kept[0], kept[1], 0)
        layers.append(ReadOnlyLayer(rows, live.cache.num_tokens - 1, is_sliding=False, keeps=False))
    scratch = read_only_cache(session.model.model.config, layers)
    ids = torch.tensor([[live.sequence.token_ids[live.cache.num_tokens - 1]]])
    expected = session.model.forward(Batch(ids, scratch)).logits[0, -1]
    assert live.logits is not None
    assert torch.allclose(live.logits, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3_text", "mistral", "deepseek_v3", "gpt_oss", "gemma2", "lfm2"])
@pytest.mark.parametrize("mode", ["dynamic", "static", "growing", "paged"])
def test_no_attention_goes_to_hidden_rows_in_any_architecture(architecture: str, mode: str) -> None:
    session, seq_id = running(small(mode), architecture, length=12)
    layer = session.model.info.geometry.attention_layers[-1].index
    edit_live(session, Mask(seq_id, Rows(13, 15, (layer,))))
    for _ in range(3):
        session.step()
        row = session.history.attention_at(seq_id, session.last_step or 0)[layer]
        assert not row[:, 13:15].any()
        assert bool((row[:, 15:] > 0).all())


def test_what_is_hidden_can_be_shown_again() -> None:
    session, seq_id = running(small("growing"))
    before = session.logits(seq_id)
    edit_live(session, Mask(seq_id, Rows(3, 9)))
    edit_live(session, Mask(seq_id, Rows(3, 9), hidden=False))
    assert not session.cache_of(seq_id).hidden_rows()
    assert torch.allclose(session.logits(seq_id), before, atol=1e-6)  # type: ignore[arg-type]


def test_hidden_rows_stay_hidden_in_another_mode() -> None:
    session, seq_id = running(small("growing"))
    edit_live(session, Mask(seq_id, Rows(3, 9, (1,))))
    session.set_cache(small("paged"))
    session.step()
    assert not session.history.attention_at(seq_id, session.last_step or 0)[1][:, 3:9].any()


def test_two_sequences_of_which_one_hides_rows() -> None:
    session, first = running(small("paged"))
    second = session.submit(session_prompt())
    session.force(second, prompt_ids(30, seed=5))
    session.step()
    edit_live(session, Mask(second, Rows(2, 4)))
    alone, only = running(small("paged"))
    for each in (session, alone):
        each.step()
    step = session.last_step or 0
    assert not session.history.attention_at(second, step)[0][:, 2:4].any()
    assert bool((session.history.attention_at(first, step)[0][:, 2:4] > 0).all())
    assert torch.allclose(session.logits(first), alone.logits(only), atol=1e-5)  # type: ignore[arg-type]


def session_prompt() -> Any:
    from engine.spec.sampling import Prompt

    return Prompt(token_ids=prompt_ids(9, seed=8))


def test_an_architecture_with_its_own_attention_says_that_it_takes_no_mask() -> None:
    session, seq_id = running(small("dynamic"), "bloom", length=12)
    with pytest.raises(InputError, match="attention code of its own"):
        edit_copy(session, Mask(seq_id, Rows(2, 3)))


def test_the_newest_row_stays_visible() -> None:
    session, seq_id = running(small("growing"))
    with pytest.raises(InputError, match="newest token reads its own row"):
        edit_copy(session, Mask(seq_id, Rows(43, 44)))


# ---- pins --------------------------------------------------------------------------------------------------------

RULES = ["h2o", "tova", "knorm", "keydiff", "random"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("is_paged", [False, True])
def test_a_pinned_row_is_kept_by_the_rule_that_would_drop_it(rule: str, is_paged: bool) -> None:
    layout = {"layout": "paged", "page_size": 2} if is_paged else {}
    spec = CacheSpec(retention=RetentionSpec(rule, budget=12, window=2), **layout)  # type: ignore[arg-type]
    plain, seq_id = running(spec, num_steps=1)
    session, _ = running(spec, num_steps=1)
    there = held(plain, seq_id, 1)
    for _ in range(30):
        plain.step()
    goes = next(position for position in there if position not in held(plain, seq_id, 1))
    edit_live(session, Pin(seq_id, Rows(goes, goes + 1, (1,), None if rule == "tova" else (0,))))
    for _ in range(30):
        session.step()
    assert goes in held(session, seq_id, 1)
    assert len(held(session, seq_id, 1)) == len(held(plain, seq_id, 1))


def pin_each(session: Session, positions: list[int]) -> None:
    for position in positions:
        edit_live(session, Pin(0, Rows(position, position + 1, (1,), (1,))))


def test_a_budget_that_cannot_hold_pinned_rows_says_so() -> None:
    session, seq_id = running(small("h2o"))
    with pytest.raises(InputError, match="cannot hold"):
        pin_each(session, held(session, seq_id, 1, 1))
    session, seq_id = running(small("sliding"))
    with pytest.raises(InputError, match="that always stay"):
        edit_copy(session, Pin(seq_id, Rows(40, 41)))
    session, seq_id = running(small("growing"))
    with pytest.raises(InputError, match="keeps every row"):
        edit_copy(session, Pin(seq_id, Rows(4, 5)))


# ---- drops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["h2o", "knorm", "int8", "fp8", "tova"])
def test_dropped_rows_are_gone_and_what_is_left_is_read_as_before(mode: str) -> None:
    session, seq_id = running(small(mode))
    position = next(p for p in held(session, seq_id, 1)[1:-1] if p in held(session, seq_id, 1, 1))
    before = rows_of(session.live.get(seq_id))
    keeps = [[i for i, at in enumerate(held(session, seq_id, 1, head)) if at != position] for head in (0, 1)]
    masked, _ = edit_copy(session, Mask(seq_id, Rows(position, position + 1, (1,))))
    live, told = edit_copy(session, Drop(seq_id, Rows(position, position + 1, (1,))))
    after = rows_of(live)
    for old, new in zip(before[1], after[1], strict=True):
        for head in (0, 1):
            assert torch.equal(new[head], old[head, keeps[head]])
    assert torch.equal(after[0][0], before[0][0])
    assert torch.allclose(live.logits, masked.logits, atol=1e-4)  # type: ignore[arg-type]
    assert told.kl is not None
    edit_live(session, Drop(seq_id, Rows(position, position + 1, (1,))))
    for _ in range(4):
        session.step()
    assert position not in held(session, seq_id, 1)


def test_whole_pages_are_dropped_from_all_layers() -> None:
    session, seq_id = running(small("paged"))
    masked, _ = edit_copy(session, Mask(seq_id, Rows(8, 16)))
    live, _ = edit_copy(session, Drop(seq_id, Rows(8, 16)))
    assert torch.allclose(live.logits, masked.logits, atol=1e-4)  # type: ignore[arg-type]
    assert live.cache.page_ids_at(44)[0][2:4] == [0, 0]
    edit_live(session, Drop(seq_id, Rows(8, 16)))
    session.step()
    assert held(session, seq_id, 0) == [*range(8), *range(16, 45)]
    session.live.mode.store.groups[0].pool.check()  # type: ignore[union-attr]
    for rows in (Rows(17, 20), Rows(20, 22), Rows(18, 24), Rows(20, 24, (1,)), Rows(20, 24, None, (0,))):
        with pytest.raises(InputError, match="whole pages are dropped"):
            edit_copy(session, Drop(seq_id, rows))


@pytest.mark.parametrize("mode", ["int8", "h2o"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_oss"])
def test_amid_a_prompt_rows_are_dropped_where_the_rest_can_still_be_read(mode: str, architecture: str) -> None:
    def logits_after(kind: type[Drop | Mask]) -> torch.Tensor:
        session, seq_id = started(architecture, small(mode), 20, 8)
        session.step()
        layers = None if kind is Drop else tuple(x.index for x in session.model.info.geometry.layers if not x.window)
        with pytest.raises(InputError, match=r"equally many rows|slides"):
            make_edit(session, Drop(seq_id, Rows(2, 4, (0,))))
        make_edit(session, kind(seq_id, Rows(2, 4, layers)))
        while session.is_prefilling:
            session.step()
        found = session.logits(seq_id)
        assert found is not None
        return found

    assert torch.allclose(logits_after(Drop), logits_after(Mask), atol=1e-4)


def test_no_row_is_dropped_that_waits_for_its_scale_or_is_counted_by_the_model() -> None:
    session, seq_id = started("llama", small("fp8"), 20, 8)
    session.step()
    with pytest.raises(InputError, match="scale at the end of the prompt"):
        make_edit(session, Drop(seq_id, Rows(2, 4)))
    for architecture, mode in (("falcon", "int8"), ("bloom", "fp8"), ("mpt", "paged")):
        session, seq_id = running(small(mode), architecture)
        with pytest.raises(InputError, match="counts rows by tokens seen"):
            make_edit(session, Drop(seq_id, Rows(8, 16)))


def test_where_no_row_can_be_dropped_the_reason_is_said() -> None:
    session, seq_id = running(small("growing"))
    with pytest.raises(InputError, match="keeps every row"):
        edit_copy(session, Drop(seq_id, Rows(4, 5)))
    session, seq_id = running(small("int8"))
    with pytest.raises(InputError, match="kv heads of a layer hold equally many rows"):
        edit_copy(session, Drop(seq_id, Rows(4, 5, None, (1,))))
    session, seq_id = running(small("kivi-4"))
    with pytest.raises(InputError, match="KIVI"):
        edit_copy(session, Drop(seq_id, Rows(4, 5)))
    rotated = CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=8, rerotate=True))
    session, seq_id = running(rotated)
    with pytest.raises(InputError, match="rotated"):
        edit_copy(session, Drop(seq_id, Rows(40, 41)))
