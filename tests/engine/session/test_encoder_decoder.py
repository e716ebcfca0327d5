"""Encoder-decoders: the encoder runs once, then the decoder step by step; compared with transformers' `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engine.analysis.parity import live_parity
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.edit import Edit, Mask, ReplaceTokens, Rows, Zero
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.measurements import CheckParity
from tests.effort import effort
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import ENCODER_DECODERS, model_of, prompt_ids

LAYOUTS = ("growing", "dynamic", "static", "none")
NUM_BLOCKS = 2


def generated(model: LoadedModel, source: tuple[int, ...], count: int, **options: Any) -> list[int]:
    """What transformers' greedy `generate` says, the token that the decoder starts from included."""
    ids = torch.tensor([source])
    with torch.inference_mode():
        return model.model.generate(ids, max_new_tokens=count, do_sample=False, num_beams=1, **options)[0].tolist()  # type: ignore[no-any-return]


def decoded(
    model: LoadedModel, source: tuple[int, ...], count: int, layout: str = "growing"
) -> tuple[Session, list[int]]:
    """A session that ran to its end, and the ids that it generated."""
    session = Session(model, PRESETS[layout].spec)
    seq_id = session.submit(Prompt(token_ids=source, sampling=SamplingParams(max_new_tokens=count)))
    while session.has_work:
        session.step()
    sequence = session.sequence(seq_id)
    assert sequence.sampled is not None
    return session, [*sequence.token_ids[len(source) :], sequence.sampled]


def started(name: str = "bart", layout: str = "growing", steps: int = 6, length: int = 7) -> Session:
    session = Session(model_of(name), PRESETS[layout].spec)
    session.submit(Prompt(token_ids=prompt_ids(length, 3)))
    for _ in range(steps):
        session.step()
    return session


# ---- the tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_the_tokens_are_those_of_transformers(name: str) -> None:
    model = model_of(name)
    assert model.info.captures_attention == (name not in ("led", "longt5"))  # these have generation code of their own
    for length, layouts in ((1, LAYOUTS if name in ("t5", "bart", "t5gemma") else ()), (19, LAYOUTS[:1])):
        source = prompt_ids(length, length)
        expected = generated(model, source, 9)
        for layout in layouts:
            session, found = decoded(model, source, 9, layout)
            assert found == expected
            for layer in session.bytes().layers:
                assert layer.stored == layer.predicted


EVERYWHERE = [
    *(("bart", name) for name in PRESETS if name not in (*LAYOUTS, "allocated", "snapkv", "pyramidkv")),
    *(("t5", name) for name in ("paged", "paged-int8", "kivi-4")),
]


@pytest.mark.parametrize(("architecture", "name"), effort(EVERYWHERE[::2], EVERYWHERE))
def test_every_mode_says_what_the_reference_says_and_holds_what_is_predicted(architecture: str, name: str) -> None:
    """Exact modes give the ids of `generate`; in the others every step has the logits of the reference driver. Cross
    layers stay exact however the decoder's own rows are coded."""
    model, source, spec = model_of(architecture), prompt_ids(11, 4), small(name)
    if spec.row.needs_cuda:
        pytest.skip("copies to and from a CUDA GPU")
    session = Session(model, spec)
    session.submit(Prompt(token_ids=source, sampling=SamplingParams(max_new_tokens=17)))
    driver, evicted = Driver.in_mode(model, spec, len(source) + 1), 0
    while session.has_work:
        record = session.step()
        computed = session.sequence(0).token_ids
        ((_, logits),) = driver.run(computed, [len(computed)])
        assert session.live.get(0).logits is not None
        assert torch.equal(logits, session.live.get(0).logits)
        evicted += sum(len(eviction.positions) for eviction in record.evictions)
        for layer in session.bytes().layers:
            assert (layer.layer, layer.stored) == (layer.layer, layer.predicted)
        assert [layer.stored for layer in session.bytes().layers[2:]] == [2 * 11 * 64 * 4 * (name != "none")] * 2
    sampled = session.sequence(0).sampled
    assert sampled is not None
    assert (evicted > 0) == (not spec.retention.keeps_all)
    if spec.is_exact:
        assert [*session.sequence(0).token_ids[11:], sampled] == generated(model, source, 17)


def test_a_window_counts_the_decoders_own_tokens() -> None:
    """Compared with a forward of transformers in which a mask leaves the same rows visible."""
    model, source = model_of("bart"), prompt_ids(11, 4)
    session = Session(model, tuned(PRESETS["streamingllm"].spec, sinks=2, window=5))
    session.submit(Prompt(token_ids=source))
    session.force(0, prompt_ids(20, 8))
    while session.sequence(0).num_tokens < 31:
        record = session.step()
    own = torch.tensor(session.sequence(0).token_ids[11:])
    count = len(own)
    queries, keys = torch.arange(count)[:, None], torch.arange(count)[None]
    reads = (keys <= queries) & ((keys < 2) | (keys >= queries - 5))  # the rows kept, and its own
    with torch.inference_mode():
        output = model.model(
            torch.tensor([source]), decoder_input_ids=own[None], decoder_attention_mask=reads[None, None]
        )
    logits = session.live.get(0).logits
    assert logits is not None
    assert torch.allclose(logits, output.logits[0, -1], atol=1e-4)
    assert record.evictions[0].positions.tolist() == [31 - 6]
    assert session.cache_of(0).positions(1).tolist() == [[11, 12, *range(26, 31)]] * 4  # type: ignore[union-attr]


@pytest.fixture
def asked() -> Iterator[Any]:
    """The generation config of a model, put back as it was."""
    generation = model_of("bart").model.generation_config
    before = generation.to_dict()
    yield generation
    for name, value in before.items():
        setattr(generation, name, value)


@pytest.mark.parametrize(
    "rules",
    [
        {"forced_bos_token_id": 9},
        {"forced_eos_token_id": None},
        {"forced_eos_token_id": 17},
        {"no_repeat_ngram_size": 2, "min_length": 8},
        {"bad_words_ids": [[124], [38]], "suppress_tokens": [71]},
        {"repetition_penalty": 1.7, "encoder_no_repeat_ngram_size": 1},
    ],
)
def test_the_rules_of_a_generation_config_are_followed(asked: Any, rules: dict[str, Any]) -> None:
    model, source = model_of("bart"), prompt_ids(11, 2)
    plain = decoded(model, source, 8)[1]
    for name, value in rules.items():
        setattr(asked, name, value)
    found = decoded(model, source, 8)[1]
    assert found == generated(model, source, 8)
    assert found != plain


def test_the_decoder_start_token_is_added_to_a_prompt_that_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("t5")
    monkeypatch.setitem(model.__dict__, "start_id", 77)
    session = Session(model, CacheSpec())
    session.submit(Prompt(token_ids=(5, 6)))
    session.submit(Prompt(token_ids=(5, 6, 8), has_start=True))
    assert [session.sequence(seq_id).token_ids for seq_id in (0, 1)] == [[5, 6, 77], [5, 6, 8]]


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_layers_hold_the_source_and_self_attention_layers_the_decoder_tokens(layout: str) -> None:
    session = started(layout=layout, steps=1)
    cache = session.cache_of(0)
    first = [cache.rows(layer) for layer in range(2 * NUM_BLOCKS)]
    kept = [rows.keys.clone() for rows in first if rows is not None]
    records = [session.step() for _ in range(5)]
    for layer in range(2 * NUM_BLOCKS):
        rows, newest = cache.rows(layer), cache.rows_at(layer, first_position=12)
        assert rows is not None
        if layer < NUM_BLOCKS:
            assert (rows.first, rows.stop) == (7, 13)
            assert newest is not None
            assert newest.first == 12
        else:
            assert (rows.first, rows.stop) == (0, 7)
            assert newest is None
            assert torch.equal(rows.keys, kept[layer])
    assert [len(record.checksums) for record in records] == [NUM_BLOCKS] * 5


def test_the_first_step_runs_the_encoder() -> None:
    session = Session(model_of("t5"), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(5)))
    first, second = session.step(), session.step()
    assert first.timings.encoder_ms > 0 == second.timings.encoder_ms
    assert first.timings.forward_ms > 0, "the encoder took a part of the forward's time"
    assert first.timings.total_ms > first.timings.encoder_ms + first.timings.forward_ms
    part = first.sequences[0]
    assert (part.token_ids[-1], part.num_prompt_tokens, part.num_tokens) == (0, 6, 6)
    assert part.surprisal == (None,) * 6
    assert len(first.checksums) == 2 * NUM_BLOCKS
    assert part.rows is not None
    is_row = np.isfinite(part.rows.key_norm[:, 0])
    assert is_row.tolist() == [[False] * 5 + [True]] * NUM_BLOCKS + [[True] * 5 + [False]] * NUM_BLOCKS


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_attention_of_a_cross_layer_is_over_the_source(name: str) -> None:
    """Compared with the weights of transformers' eager attention."""
    for layout in ("growing", "static"):
        session = started(name, layout)
        model = session.model.model
        found = session.history.attention_at(0, 5)
        ids = session.sequence(0).token_ids[:13]
        model.set_attn_implementation("eager")
        try:
            with torch.inference_mode():
                output = model(
                    torch.tensor([ids[:7]]), decoder_input_ids=torch.tensor([ids[7:]]), output_attentions=True
                )
        finally:
            model.set_attn_implementation("kvloupe")
        for layer in range(NUM_BLOCKS):
            assert torch.allclose(found[layer], output.decoder_attentions[layer][0, :, -1], atol=1e-4)
            cross = found[NUM_BLOCKS + layer]
            assert torch.allclose(cross[:, :7], output.cross_attentions[layer][0, :, -1], atol=1e-4)
            assert bool(cross[:, 7:].isnan().all())
            assert cross.shape[1] == 13


@pytest.mark.parametrize("layout", [*LAYOUTS, "paged", "int8"])
def test_going_back_and_on_repeats_every_bit(layout: str) -> None:
    session = Session(model_of("t5"), PRESETS[layout].spec)
    session.submit(Prompt(token_ids=prompt_ids(7, 3)))
    records = [session.step() for _ in range(6)]
    ids = list(session.sequence(0).token_ids)
    session.go_to(records[1].step)
    again = [session.step() for _ in range(4)]
    assert session.sequence(0).token_ids == ids
    assert [one.checksums for one in again] == [one.checksums for one in records[2:]]
    child = session.fork(0, records[0].step).child
    session.step()
    for layer in range(NUM_BLOCKS, 2 * NUM_BLOCKS):
        mine, its = session.cache_of(0).rows(layer), session.cache_of(child).rows(layer)
        assert mine is not None
        assert its is not None
        assert torch.equal(mine.keys, its.keys)


def test_a_change_of_mode_keeps_the_rows_of_the_source() -> None:
    session = started()
    expected = started(steps=8).sequence(0).token_ids
    for layout in ("static", "paged", "none", "offloaded", "dynamic"):
        session.set_cache(PRESETS[layout].spec)
    session.step()
    session.step()
    assert session.sequence(0).token_ids == expected
    for layer in session.bytes().layers:
        assert layer.stored == layer.predicted


def test_steps_agree_with_a_forward_without_a_cache() -> None:
    for name in ("t5", "bart"):
        session = started(name, "static")
        *_, found = live_parity(session, CheckParity(0))
        assert (found.verdict, len(found.steps)) == ("within rounding", 6)
        rows = session.cache_of(0).rows(NUM_BLOCKS)
        assert rows is not None
        with torch.inference_mode():
            rows.values[0, 1, 4] += 2.0
        *_, found = live_parity(session, CheckParity(0))
        assert (found.verdict, found.layer, found.tensor, found.position) == ("departs", NUM_BLOCKS, "values", 4)


# ---- edits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "token_ids", "num_replaced"), [(2, (5, 9, 11), 1), (0, (5,), 7), (7, (5,), 1), (9, (5, 6), 1)]
)
def test_replaced_tokens_are_read_again_by_encoder_and_decoder(
    position: int, token_ids: tuple[int, ...], num_replaced: int
) -> None:
    session = started()
    before = list(session.sequence(0).token_ids)
    make_edit(session, ReplaceTokens(0, position, token_ids, "re-prefill", num_replaced))
    session.step()
    ids = session.sequence(0).token_ids
    expected = [*before[:position], *token_ids, *before[position + num_replaced :]]
    assert ids[: len(expected)] == expected
    source = session.sequence(0).num_prompt_tokens - 1
    *_, found = live_parity(session, CheckParity(0))
    assert found.layer is None
    rows = session.cache_of(0).rows(NUM_BLOCKS)
    assert rows is not None
    assert rows.keys.shape[2] == source == session.cache_of(0).num_source
    session.go_to(5)
    assert session.sequence(0).token_ids == before


def test_rows_of_the_source_are_edited_where_they_are() -> None:
    for rows, layers in ((Rows(2, 4), (2, 3)), (Rows(8, 9), (0, 1))):
        session = started()
        make_edit(session, Zero(0, rows))
        for layer in range(2 * NUM_BLOCKS):
            held = session.cache_of(0).rows(layer)
            assert held is not None
            is_zero = [not held.keys[0, :, place].any() for place in range(held.keys.shape[2])]
            expected = range(rows.start - held.first, rows.stop - held.first) if layer in layers else ()
            assert [place for place, is_it in enumerate(is_zero) if is_it] == list(expected)
    session = started()
    make_edit(session, Mask(0, Rows(2, 4, (3,)), True))
    session.step()
    seen = session.history.attention_at(0, session.last_step or 0)
    assert not seen[3][:, 2:4].any()
    assert seen[2][:, 2:4].any()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Zero(0, Rows(5, 9)), "read by the encoder, those from 7 on by the decoder"),
        (ReplaceTokens(0, 2, (5,), "overwrite"), "Every row of a source depends on all of it"),
        (ReplaceTokens(0, 5, (5, 6, 7), "re-prefill"), "Position 7 is the token that the decoder starts from"),
        (ReplaceTokens(0, 0, (), "re-prefill", 7), "An encoder needs a token to read"),
    ],
)
def test_an_edit_of_source_and_decoder_rows_at_once_is_refused(edit: Edit, why: str) -> None:
    session = started(steps=3)
    ids = list(session.sequence(0).token_ids)
    with pytest.raises(InputError, match=why):
        make_edit(session, edit)
    assert session.sequence(0).token_ids == ids
    assert session.step().sequences[0].num_tokens == 11


def test_coded_rows_of_the_decoder_are_said_to_be_dequantised() -> None:
    session = started(layout="int8")
    num_tokens = session.sequence(0).num_tokens
    exact_from = [layer.exact_from(num_tokens, "keys") for layer in session.cache_of(0).layers]
    assert exact_from == [num_tokens] * NUM_BLOCKS + [0] * NUM_BLOCKS, "the rows of the source are exact"
    assert session.rows_at(0, num_tokens).provenance == "dequantised"
