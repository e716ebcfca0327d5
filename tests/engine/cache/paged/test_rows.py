"""Pages of codes: what attention reads is what the growing layout reads, the bytes are real, sharing stays exact."""

from __future__ import annotations

import pytest
import torch

from engine.cache.paged.store import PageStore
from engine.errors import InputError
from engine.look.candidates import kl_divergence
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, preset_of, tuned
from engine.spec.codec import CodecSpec, Coding, LayerCoding, uniform
from engine.spec.sampling import Prompt
from tests.engine.snapshot.sessions import snapshot, written
from tests.engine.tiny import model_of, prompt_ids

CODECS = {
    "fp8-token-head": uniform("fp8-token-head"),
    "fp8-max": uniform("fp8-max", 8),
    "fp8-max-e8m0": uniform("fp8-max-e8m0", 8),
    "int8": uniform("int8"),
    "mixed": CodecSpec(Coding("int8"), Coding("fp8-max", 8), (LayerCoding(1, Coding(), Coding("fp8-token-head")),)),
}
BY_CODEC = pytest.mark.parametrize("name", CODECS)


def store_of(session: Session) -> PageStore:
    assert session.live.mode.store is not None
    return session.live.mode.store


def check(session: Session) -> None:
    for group in store_of(session).groups:
        group.pool.check(group.tables)


def session_of(codec: CodecSpec, model: str = "llama", **sizes: int) -> Session:
    return Session(model_of(model), CacheSpec("paged", codec=codec, **{"page_size": 4, **sizes}), prefill_chunk=7)


def held(session: Session, seq_id: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = session.cache_of(seq_id).rows(layer)
    assert rows is not None
    return rows.keys.clone(), rows.values.clone()


def newest(session: Session, seq_id: int) -> torch.Tensor:
    logits = session.logits(seq_id)
    assert logits is not None
    return logits.clone()


@BY_CODEC
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral", "gemma3_text", "deepseek_v3", "lfm2"])
def test_pages_read_what_the_growing_layout_reads(name: str, architecture: str) -> None:
    if name != "int8" and architecture not in ("llama", "gemma3_text"):
        pytest.skip("one codec is enough for the others")
    codec = CODECS[name]
    paged, growing = (
        session_of(codec, architecture),
        Session(model_of(architecture), CacheSpec(codec=codec), prefill_chunk=7),
    )
    ids = [s.submit(Prompt(token_ids=prompt_ids(19))) for s in (paged, growing)]
    for session, seq_id in zip((paged, growing), ids, strict=True):
        session.force(seq_id, prompt_ids(8, seed=1))
    for _ in range(9):
        for session in (paged, growing):
            record = session.step()
            assert not record.non_finite
        check(paged)
        assert float((newest(paged, ids[0]) - newest(growing, ids[1])).abs().max()) < 1e-5
    assert paged.rows_at(ids[0], paged.sequence(ids[0]).num_tokens).provenance == "dequantised"


@BY_CODEC
def test_bytes_are_codes_and_scales_in_pages(name: str) -> None:
    session = session_of(CODECS[name], num_pages=33)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(19)))
    for _ in range(6):
        record = session.step()
    tokens = session.sequence(seq_id).num_tokens
    for layer, bytes_ in zip(session.model.info.geometry.layers, record.num_bytes.layers, strict=True):
        formula = CODECS[name].bytes_of(layer, tokens, 4).total
        assert bytes_.stored == bytes_.predicted == formula
        assert bytes_.reserved == 33 * CODECS[name].bytes_of(layer, 4, 4).total
        gaps = {gap.name: gap.num_bytes for gap in bytes_.gaps}
        slack = (-(-tokens // 4) * 4 - tokens) * formula // tokens
        assert gaps.get("page slack", 0) == slack
        assert gaps["scales and offsets"] == CODECS[name].bytes_of(layer, tokens, 4).scales
        assert gaps["dequantised copy"] > 0
    exact = session.model.info.geometry.elements_per_token * 4 * tokens
    assert record.num_bytes.stored < 0.7 * exact


@pytest.mark.parametrize("codec", [CodecSpec(), CODECS["int8"]])
@pytest.mark.parametrize("architecture", ["mistral", "gemma3_text", "lfm2"])
def test_bytes_of_windows_are_those_of_their_pages(architecture: str, codec: CodecSpec) -> None:
    session = session_of(codec, architecture)
    session.force(session.submit(Prompt(token_ids=prompt_ids(19))), prompt_ids(20, seed=1))
    for _ in range(14):
        for layer in session.step().num_bytes.layers:
            assert layer.kind == "linear" or layer.stored == layer.predicted


@BY_CODEC
def test_a_shared_prefix_and_a_fork_read_the_same_codes(name: str) -> None:
    session = session_of(CODECS[name])
    first = session.submit(Prompt(token_ids=prompt_ids(22)))
    while session.is_prefilling:
        session.step()
    again = session.submit(Prompt(token_ids=(*prompt_ids(22)[:17], *prompt_ids(6, 3))))
    while session.is_prefilling:
        session.step()
    assert session.sequences[1].hit_tokens == 16
    for layer in (0, 1):
        mine, theirs = held(session, first, layer), held(session, again, layer)
        assert torch.equal(mine[0][:, :, :16], theirs[0][:, :, :16])
    alone = session_of(CODECS[name])
    alone_id = alone.submit(Prompt(token_ids=(*prompt_ids(22)[:17], *prompt_ids(6, 3))))
    while alone.is_prefilling:
        alone.step()
    # the chunks of the two prefills differ, so rounding may move a code by one step and no more
    assert kl_divergence(newest(alone, alone_id), newest(session, again)) < 1e-3
    before = held(session, first, 1)
    fork = session.fork(first).child
    session.force(first, (5, 6, 7, 8))
    session.force(fork, (9, 10, 11, 12))
    for _ in range(4):
        session.step()
        check(session)
    after, other = held(session, first, 1), held(session, fork, 1)
    count = before[0].shape[2]
    assert torch.equal(after[0][:, :, :count], before[0])
    assert torch.equal(other[1][:, :, :count], before[1])
    assert not torch.equal(after[0][:, :, count:], other[0][:, :, count:])
    for seq_id in (first, again, fork):
        session.remove(seq_id)
    check(session)


@BY_CODEC
def test_going_back_and_stepping_again_is_exact_to_the_bit(name: str) -> None:
    session = session_of(CODECS[name])
    seq_id = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.force(seq_id, prompt_ids(20, seed=1))
    seen: list[tuple[torch.Tensor, ...]] = []
    for _ in range(12):
        session.step()
        seen.append((*held(session, seq_id, 1), newest(session, seq_id)))
    for target in (9, 4, 1, 0):
        session.go_to(target)
        for step in range(target + 1, 10):
            session.step()
            check(session)
            assert all(map(torch.equal, seen[step], (*held(session, seq_id, 1), newest(session, seq_id))))


def test_exact_becomes_coded_pages_and_back_is_prefilled_again() -> None:
    session = Session(model_of("llama"), CacheSpec())
    seq_id = session.submit(Prompt(token_ids=prompt_ids(20)))
    for _ in range(3):
        session.step()
    exact = held(session, seq_id, 0)[0]
    how = session.set_cache(PRESETS["paged-int8"].spec)
    assert how == "converted without recomputing: the rows held were quantised"
    error = float((held(session, seq_id, 0)[0] - exact).abs().max())
    assert 0 < error < float(exact.abs().max()) / 200
    session.step()
    assert session.set_cache(CacheSpec("paged")).startswith("re-prefilled")
    session.step()
    ids = session.sequence(seq_id).token_ids[: session.sequence(seq_id).num_tokens]
    expected = session.model.reference_logits(torch.tensor([ids]))[-1]
    assert float((newest(session, seq_id) - expected).abs().max()) < 1e-4


def test_a_ragged_batch_and_a_full_pool_work_on_codes() -> None:
    session = session_of(CODECS["int8"], num_pages=15)
    ids = [session.submit(Prompt(token_ids=prompt_ids(9 + 3 * i, i))) for i in range(3)]
    preempted = []
    for _ in range(30):
        record = session.step()
        check(session)
        preempted += record.preempted
        for part in record.sequences:
            if part.sampled is not None:
                sequence = session.sequence(part.seq_id)
                expected = session.model.reference_logits(torch.tensor([sequence.token_ids[: sequence.num_tokens]]))[-1]
                assert kl_divergence(expected, newest(session, part.seq_id)) < 0.1
    assert preempted
    assert set(ids) == {info.seq_id for info in session.sequences}


def test_presets_of_coded_pages_know_their_names() -> None:
    assert preset_of(tuned(CacheSpec("paged"), codec=uniform("int8"), page_size=8)).name == "paged-int8"
    assert preset_of(CacheSpec("paged", codec=uniform("fp8-max", 8))).name == "paged-fp8"
    assert not PRESETS["paged-fp8"].lossless


def test_a_group_that_does_not_divide_is_refused_before_pages_are_made() -> None:
    with pytest.raises(InputError, match="do not divide the 16 channels"):
        Session(model_of("llama"), CacheSpec("paged", codec=uniform("fp8-max", 32)))
    with pytest.raises(InputError, match="nothing to quantise"):
        Session(model_of("mamba"), CacheSpec("paged", codec=uniform("int8")))


def test_an_export_of_coded_pages_says_that_it_is_dequantised() -> None:
    session = session_of(CODECS["int8"])
    seq_id = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.force(seq_id, prompt_ids(6, seed=1))
    for _ in range(4):
        session.step()
    kept = snapshot(session, seq_id)
    assert kept.manifest["provenance"] == "dequantised"
    assert torch.equal(written(kept.tensors["layers.1.keys"]), held(session, seq_id, 1)[0])
    earlier = snapshot(session, seq_id, 13)
    assert torch.equal(written(earlier.tensors["layers.1.values"]), held(session, seq_id, 1)[1][:, :, :13])
