"""Rows edited by hand in all modes: what attention then reads, to the bit; sequences that share them keep theirs."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from engine.errors import InputError
from engine.look.candidates import NUM_CANDIDATES
from engine.session.edits import apply_edit, rows_of_state
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.edit import AddNoise, Drop, Overwrite, Rows, Scale, Zero
from engine.spec.sampling import Prompt
from tests.engine.session.edited import copy_of, edit_copy, logits_over, rows_of, running
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import prompt_ids

MODES = [name for name, preset in PRESETS.items() if not preset.spec.recomputes]
EXACT = [name for name in MODES if PRESETS[name].spec.codec.is_exact and name != "transformers-quantized"]
LOSSLESS = [name for name in MODES if PRESETS[name].lossless]


def places(session: Session, seq_id: int, layer: int) -> torch.Tensor:
    """Positions `[H_kv, S]` of the rows held."""
    return session.cache_of(seq_id).held_positions(layer).expand(2, -1)


def held_span(session: Session, seq_id: int, layer: int = 1) -> Rows:
    """Up to three adjacent rows of one layer that head 1 still holds."""
    held = places(session, seq_id, layer)[1].tolist()
    start = next((p for p in held if p + 1 in held and p + 2 in held), held[1])
    return Rows(start, start + (3 if start + 1 in held and start + 2 in held else 1), (layer,), (1,))


def slots(session: Session, seq_id: int, rows: Rows) -> list[int]:
    held = places(session, seq_id, 1)[1].tolist()
    return [held.index(position) for position in range(rows.start, rows.stop)]


@pytest.mark.parametrize("mode", MODES)
def test_zeroed_rows_are_read_as_zeros_and_no_other_number_changes(mode: str) -> None:
    session, seq_id = running(small(mode))
    rows = held_span(session, seq_id)
    before, at = rows_of(session.live.get(seq_id)), slots(session, seq_id, rows)
    live, told = edit_copy(session, Zero(seq_id, rows))
    is_grouped = mode.startswith(
        "kivi"
    )  # the whole group is coded anew: its other numbers move by up to a step of the scale
    for layer, parts in rows_of(live).items():
        for old, new in zip(before[layer], parts, strict=True):
            expected = old.clone()
            if layer == 1:
                expected[1, at] = 0.0
            assert torch.equal(new[0], old[0])
            assert torch.allclose(new, expected, atol=1.0 if is_grouped and layer == 1 else 0, rtol=0), (layer, mode)
    assert told.kl is not None
    assert told.kl > 0
    # the original sequence has not changed
    for layer, parts in rows_of(session.live.get(seq_id)).items():
        assert all(torch.equal(a, b) for a, b in zip(parts, before[layer], strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_that_changes_nothing_changes_no_bit(mode: str) -> None:
    session, seq_id = running(small(mode))
    before = rows_of(session.live.get(seq_id))
    live, told = edit_copy(session, Scale(seq_id, held_span(session, seq_id), 1.0))
    for layer, parts in rows_of(live).items():
        assert all(torch.equal(a, b) for a, b in zip(parts, before[layer], strict=True))
    assert told.kl == 0.0
    assert torch.equal(live.logits, session.logits(seq_id))  # type: ignore[arg-type]
    assert live.sequence.sampled == session.sequence(seq_id).sampled


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("part", ["keys", "values"])
def test_rows_scaled_by_two_are_exactly_twice_what_they_were(mode: str, part: str) -> None:
    session, seq_id = running(small(mode))
    rows = held_span(session, seq_id)
    chosen = Rows(rows.start, rows.stop, (1,), (1,), (0, 5), part)  # type: ignore[arg-type]
    before, at = rows_of(session.live.get(seq_id)), slots(session, seq_id, rows)
    live, _ = edit_copy(session, Scale(seq_id, chosen, 2.0))
    number = 0 if part == "keys" else 1
    expected = before[1][number].clone()
    expected[1, at, 0] *= 2
    expected[1, at, 5] *= 2
    after = rows_of(live)[1]
    assert torch.equal(after[number], expected)
    assert torch.equal(after[1 - number], before[1][1 - number])


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_drawn_by_its_seed_and_has_the_size_that_was_asked_for(mode: str) -> None:
    session, seq_id = running(small(mode))
    rows = held_span(session, seq_id)
    one, two, other = (rows_of(edit_copy(session, AddNoise(seq_id, rows, 0.5, s))[0]) for s in (3, 3, 4))
    assert torch.equal(one[1][0], two[1][0])
    assert not torch.equal(one[1][0], other[1][0])
    if mode in EXACT:
        old = rows_of(session.live.get(seq_id))[1][0][1, slots(session, seq_id, rows)]
        added = one[1][0][1, slots(session, seq_id, rows)] - old
        assert 0.35 < float(added.std() / old.std()) < 0.65


@pytest.mark.parametrize("mode", LOSSLESS)
def test_the_next_token_is_what_transformers_makes_of_the_edited_rows(mode: str) -> None:
    """In the last layer: no other row depends on those."""
    session, seq_id = running(small(mode))
    live, told = edit_copy(session, Zero(seq_id, held_span(session, seq_id)))
    token_ids, count = live.sequence.token_ids, live.cache.num_tokens
    rows = {i: (k[:, : count - 1], v[:, : count - 1]) for i, (k, v) in rows_of(live).items()}
    expected = logits_over(session, rows, token_ids[:count])
    assert live.logits is not None
    assert torch.allclose(live.logits, expected, atol=1e-5)
    before = session.logits(seq_id)
    assert before is not None
    p, q = expected.double().log_softmax(-1), before.double().log_softmax(-1)
    assert told.kl == pytest.approx(float((p.exp() * (p - q)).sum()), abs=1e-6)
    assert live.sequence.sampled_is_forced  # a forced token stays the next one
    assert {c.token_id for c in told.after} == set(expected.topk(NUM_CANDIDATES).indices.tolist())


def test_a_page_that_others_read_is_copied_before_it_is_written() -> None:
    spec = small("paged")
    session, first = running(spec)
    second = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.step()
    assert session.cache_of(second).page_counts().hit_tokens == 36
    before = rows_of(session.live.get(first))
    pool = session.live.mode.store.groups[0].pool  # type: ignore[union-attr]
    live, _ = edit_copy(session, Zero(second, Rows(5, 6)))
    assert all(
        torch.equal(a, b)
        for i, parts in rows_of(session.live.get(first)).items()
        for a, b in zip(parts, before[i], strict=True)
    )
    assert not rows_of(live)[0][0][:, 5].any()
    others = [number for number in range(live.cache.num_tokens) if number != 5]
    for layer, parts in rows_of(session.live.get(second)).items():
        for edited, own in zip(rows_of(live)[layer], parts, strict=True):
            assert torch.equal(edited[:, others], own[:, others]), "the rest of the page came along"
    mine, theirs = live.cache.page_ids_at(44)[0], session.cache_of(first).page_ids_at(44)[0]
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    assert mine[2] == theirs[2]
    pool.check()


@pytest.mark.parametrize("is_copied", [True, False])
def test_no_prompt_is_served_rows_that_were_edited_or_came_after(is_copied: bool) -> None:
    session, first = running(small("paged"))
    fresh, _ = running(small("paged"))
    live = session.live.get(first)
    if is_copied:
        made, _ = edit_copy(session, Zero(first, Rows(5, 6)))
        live.cache.close()
        live.cache = made.cache
    else:
        apply_edit(session.model, session.live.mode, live, Zero(first, Rows(5, 6)), session.text_of)
    for one in (session, fresh):
        for _ in range(6):
            one.step()
    second = session.submit(Prompt(token_ids=(*session.sequence(first).token_ids, 5)))
    session.step()
    assert session.cache_of(second).page_counts().hit_tokens == (44 if is_copied else 4)
    for layer, parts in rows_of(session.live.get(second)).items():
        for mine, theirs in zip(parts, rows_of(fresh.live.get(0))[layer], strict=True):
            assert torch.allclose(mine[:, :50], theirs[:, :50], atol=1e-5)
    session.live.mode.store.groups[0].pool.check()  # type: ignore[union-attr]


def test_rows_that_are_gone_are_refused_by_name() -> None:
    session, seq_id = running(small("sliding"))
    with pytest.raises(InputError, match="Positions 3, 4 of layer 0, kv head 0 are not in the cache"):
        edit_copy(session, Zero(seq_id, Rows(3, 5)))
    session, seq_id = running(small("h2o"))
    held = set(places(session, seq_id, 1)[1].tolist())
    gone = next(position for position in range(44) if position not in held)
    with pytest.raises(InputError, match=f"Position {gone} of layer 1, kv head 1 is not in the cache"):
        edit_copy(session, Zero(seq_id, Rows(gone, gone + 1, (1,), (1,))))


@pytest.mark.parametrize("mode", ["none", "allocated"])
def test_a_mode_that_keeps_nothing_says_so(mode: str) -> None:
    session, seq_id = running(PRESETS[mode].spec)
    with pytest.raises(InputError, match="keeps nothing between steps"):
        edit_copy(session, Zero(seq_id, Rows(0, 1)))


@pytest.mark.parametrize(
    "architecture", ["gpt2", "gemma3_text", "mistral", "deepseek_v3", "gpt_oss", "bloom", "falcon", "lfm2"]
)
@pytest.mark.parametrize("mode", ["dynamic", "static", "growing", "paged"])
def test_every_architecture_that_keeps_rows_has_them_edited(architecture: str, mode: str) -> None:
    session, seq_id = running(small(mode), architecture, length=12)
    windows = [layer.window for layer in session.model.info.geometry.attention_layers if layer.window]
    layer = session.model.info.geometry.attention_layers[-1].index
    rows = Rows(13, 15, (layer,))
    before = rows_of(session.live.get(seq_id))
    live, told = edit_copy(session, Zero(seq_id, rows))
    held = session.cache_of(seq_id).held_positions(layer)[0].tolist()
    at = [held.index(13), held.index(14)]
    for number, part in enumerate(rows_of(live)[layer]):
        expected = before[layer][number].clone()
        expected[:, at] = 0.0
        assert torch.equal(part, expected)
    if architecture == "lfm2" or (mode == "dynamic" and windows):
        assert told.kl is None  # a state has read the newest token already, or a row that it read has left a window
        assert told.why_unmeasured
        assert torch.equal(live.logits, session.logits(seq_id))
    else:
        assert told.kl is not None
        assert told.kl > 0
        assert math.isfinite(told.kl)


def test_a_layer_with_a_recurrent_state_alone_is_refused() -> None:
    session, seq_id = running(small("dynamic"), "lfm2", length=12)
    with pytest.raises(InputError, match="Layer 0 is linear"):
        edit_copy(session, Zero(seq_id, Rows(0, 1, (0,))))
    session, seq_id = running(small("dynamic"), "mamba", length=12)
    with pytest.raises(InputError, match="keeps no K and V"):
        edit_copy(session, Zero(seq_id, Rows(0, 1)))


@pytest.mark.parametrize("mode", MODES)
def test_an_edited_cache_does_not_know_the_rows_from_before_the_edit(mode: str) -> None:
    session, seq_id = running(small(mode))
    live = edit_copy(session, Zero(seq_id, held_span(session, seq_id)))[0]
    first = live.cache.by_hand.edits[0][1]
    assert not live.cache.knows(first + 1)
    assert not live.cache.crop(first + 1)
    assert live.cache.knows(live.cache.num_tokens)
    assert copy_of(session, seq_id).cache.knows(44)


@pytest.mark.parametrize("mode", LOSSLESS)
def test_rows_of_another_position_are_written_over_others(mode: str) -> None:
    session, seq_id = running(small(mode))
    cache = session.cache_of(seq_id)
    source = partial(rows_of_state, {i: held for i in range(2) if (held := cache.rows(i)) is not None}, "step 3")
    live, _ = edit_copy(session, Overwrite(seq_id, Rows(5, 8, None, (1,)), shift=20), source)
    before, after = rows_of(session.live.get(seq_id)), rows_of(live)
    for layer in range(2):
        for old, new in zip(before[layer], after[layer], strict=True):
            assert torch.equal(new[1, 5:8], old[1, 25:28])
            assert torch.equal(new[0], old[0])
    with pytest.raises(InputError, match="not in the step 3"):
        edit_copy(session, Overwrite(seq_id, Rows(5, 8), shift=37), source)


@pytest.mark.parametrize("mode", ["h2o", "int8", "streamingllm"])
def test_rows_are_dropped_in_layers_that_do_not_slide(mode: str) -> None:
    """The mask of a sliding layer counts distances by rows: without one of them it would be wrong."""
    session, seq_id = running(small(mode), "cohere2", length=24, num_steps=3)
    geometry, count = session.model.info.geometry, session.sequence(seq_id).num_tokens
    slides = [layer.index for layer in geometry.attention_layers if layer.window]
    whole = [layer.index for layer in geometry.attention_layers if not layer.window]
    held = [places(session, seq_id, index).shape[-1] for index in range(4)]
    live, _ = edit_copy(session, Drop(seq_id, Rows(count - 2, count - 1)))
    left = [live.cache.held_positions(index).shape[-1] for index in range(4)]
    assert [held[index] - left[index] for index in slides] == [0] * len(slides)
    assert [held[index] - left[index] for index in whole] == [1] * len(whole)
    for index in slides:
        with pytest.raises(InputError, match=f"Layer {index} slides"):
            edit_copy(session, Drop(seq_id, Rows(count - 2, count - 1, (index,))))
