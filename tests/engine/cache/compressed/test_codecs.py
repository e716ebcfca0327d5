"""Codecs stay within their stated bounds, take the bytes their formula says, and KIVI codes what its paper codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.import_utils import is_optimum_available, is_optimum_quanto_available

from engine.cache.compressed import kivi
from engine.cache.compressed.codecs import from_e4m3, row_codec
from engine.cache.compressed.stores import RowStore
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.codec import CodecSpec, Coding, LayerCoding, Part, coded_bytes, uniform
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

FP8 = ("fp8", "fp8-head", "fp8-token-head", "fp8-max", "fp8-max-e8m0")
SCALES = st.sampled_from([1e-4, 0.1, 1.0, 30.0, 1000.0])


def random_rows(seed: int, scale: float, offset: float = 0.0, tokens: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, tokens, 32, generator=generator) * scale + offset


@settings(max_examples=30)
@given(seed=st.integers(0, 999), scale=SCALES, offset=st.sampled_from([0.0, -5.0, 100.0]))
def test_int8_is_within_half_a_step(seed: int, scale: float, offset: float) -> None:
    rows = random_rows(seed, scale, offset)
    codec = row_codec(Coding("int8"))
    numbers, scales = codec.encode(rows)
    assert (numbers.dtype, scales.dtype) == (torch.int8, torch.float16)
    error = (codec.decode((numbers, scales), torch.float32) - rows).abs()
    assert bool((error <= scales.float() * 0.5 * (1 + 1e-5)).all())


@settings(max_examples=30)
@given(name=st.sampled_from(FP8), seed=st.integers(0, 999), scale=SCALES)
def test_e4m3_is_within_a_sixteenth(name: str, seed: int, scale: float) -> None:
    rows = random_rows(seed, scale)
    codec = row_codec(Coding(name)).freeze(rows)  # type: ignore[arg-type]
    codes = codec.encode(rows)
    assert codes[0].dtype == torch.uint8
    error = (codec.decode(codes, torch.float32) - rows).abs()
    # below 2^-6 of a scale e4m3 is subnormal and the bound absolute; a power-of-two scale is at most twice amax / 448
    floor = rows.abs().max() / 448 * 2 * 2.0**-10
    assert bool((error <= torch.maximum(rows.abs() * 2.0**-4, floor)).all())


@settings(max_examples=40)
@given(
    bits=st.sampled_from([2, 4, 8]),
    group=st.sampled_from([16, 32]),
    part=st.sampled_from(["keys", "values"]),
    seed=st.integers(0, 999),
    scale=SCALES,
    offset=st.sampled_from([0.0, -5.0, 100.0]),
)
def test_kivi_is_within_half_a_step(bits: int, group: int, part: str, seed: int, scale: float, offset: float) -> None:
    rows = random_rows(seed, scale, offset)
    codec, axis = kivi.Kivi(bits, group, part), 2 if part == "keys" else 3  # type: ignore[arg-type]
    parts = codec.encode(rows)
    assert parts[0].dtype == torch.int32
    assert parts[0].numel() == rows.numel() * bits // 32
    error = (codec.decode(parts, torch.float32) - rows).abs()
    step = parts[1].float().repeat_interleave(group, axis)
    assert bool((error <= step * 0.5 * (1 + 1e-4) + 1e-7 * rows.abs()).all())


def test_codes_are_packed_low_bits_first() -> None:
    codes = torch.zeros(16)
    codes[0], codes[1], codes[15] = 3, 1, 2
    word = kivi.packed(codes, 2)
    assert int(word) % 2**32 == 3 + (1 << 2) + (2 << 30)
    assert torch.equal(kivi.unpacked(word, 2), codes)


def test_kivi_keeps_what_the_paper_keeps() -> None:
    """S = 300, R = 128: 256 keys and 172 values are coded, the rest is exact to the bit."""
    rows = random_rows(0, 1.0, tokens=300)
    coded = {}
    for part in ("keys", "values"):
        store = RowStore(Coding("kivi-2", 32, 128), part)  # type: ignore[arg-type]
        store.append(rows)
        assert torch.equal(store.read(), rows), "the prompt attends exactly"
        store, _ = store.settled()
        same = (store.read() == rows).flatten(0, 1).all(-1).all(0)
        coded[part] = int((~same).sum())
        assert bool(same[coded[part] :].all())
    assert coded == {"keys": 256, "values": 172}


@pytest.mark.parametrize("part", ["keys", "values"])
def test_kivi_decodes_its_latest_rows_as_it_decodes_all(part: Part) -> None:
    store = RowStore(Coding("kivi-4", 16, 32), part)
    store.append(torch.randn(1, 2, 70, 32))
    store, _ = store.settled()
    store.append(torch.randn(1, 2, 20, 32))
    whole = store.read()
    assert 0 < store.num_final(90) < 90
    assert all(torch.equal(store.read(first), whole[:, :, first:]) for first in range(91))


def test_kivi_flushes_keys_by_the_residual_and_values_one_by_one() -> None:
    rows = random_rows(0, 1.0, tokens=80)
    keys, values = (RowStore(Coding("kivi-4", 16, 32), part) for part in ("keys", "values"))  # type: ignore[arg-type]
    for store in (keys, values):
        store.append(rows[:, :, :40])
    keys, values = keys.settled()[0], values.settled()[0]
    for count in range(41, 81):
        newest = rows[:, :, count - 1 : count]
        for store, part in ((keys, "keys"), (values, "values")):
            read = store.append(newest)
            assert torch.equal(
                read[:, :, -32:] if part == "values" else read[:, :, -1:],
                rows[:, :, count - 32 if part == "values" else count - 1 : count],
            )
            num_coded = count // 32 * 32 if part == "keys" else count - 32
            exact = store.read()[:, :, num_coded:]
            assert torch.equal(exact, rows[:, :, num_coded:count])
            assert store.stored == coded_bytes(store.coding.terms(count, 2, 32, 4, part))


@pytest.mark.parametrize("name", [*FP8, "int8", "kivi-4", "kivi-2"])
def test_a_store_goes_back_to_the_bit(name: str) -> None:
    rows = random_rows(1, 2.0, tokens=90)
    store = RowStore(Coding(name), "keys") if "kivi" not in name else RowStore(Coding(name, 16, 16), "keys")  # type: ignore[arg-type]
    store.append(rows[:, :, :30])
    store, _ = store.settled()
    seen = {30: store.read().clone()}
    for count in range(31, 91):
        store.append(rows[:, :, count - 1 : count])
        seen[count] = store.read().clone()
    for count in (75, 64, 63, 33, 30):
        store.crop(count)
        assert torch.equal(store.read(), seen[count])
    for count in range(31, 91):
        store.append(rows[:, :, count - 1 : count])
        assert torch.equal(store.read(), seen[count])


@pytest.mark.parametrize(
    "name", ["fp8", "fp8-head", "fp8-token-head", "fp8-max", "fp8-max-e8m0", "int8", "kivi-4", "kivi-2"]
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nothing_not_finite_is_hidden(name: str, bad: float) -> None:
    rows = random_rows(2, 1.0)
    rows[0, 1, 5, 7] = bad
    group = 16 if "kivi" in name or "max" in name else None
    store = RowStore(Coding(name, group, 16 if "kivi" in name else None), "values")  # type: ignore[arg-type]
    store.append(rows)
    assert not bool(store.settled()[0].read()[0, 1, 5].isfinite().all())


@pytest.mark.parametrize("name", [*FP8, "int8", "kivi-4", "kivi-2"])
def test_measured_bytes_are_the_formula_and_really_smaller(name: str) -> None:
    model = model_of("llama")
    group = 16 if "kivi" in name or "max" in name else None
    coding = Coding(name, group, 32 if "kivi" in name else None)  # type: ignore[arg-type]
    session = Session(model, CacheSpec(codec=CodecSpec(coding, coding)), prefill_chunk=40)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(90)))
    session.force(seq_id, prompt_ids(20, seed=1))
    for _ in range(12):
        record = session.step()
        if record.phase == "decode":
            for layer in record.num_bytes.layers:
                assert abs(layer.stored - layer.predicted) <= 0.01 * layer.predicted
    assert (
        record.num_bytes.stored
        < 0.62 * model.info.geometry.elements_per_token * 4 * session.sequence(seq_id).num_tokens
    )
    assert session.rows_at(seq_id, session.sequence(seq_id).num_tokens).provenance == "dequantised"


def test_different_codecs_for_keys_values_and_layers() -> None:
    model = model_of("llama")
    codec = CodecSpec(Coding("int8"), Coding("kivi-4", 16, 16), (LayerCoding(1, Coding(), Coding("fp8-head")),))
    session = Session(model, CacheSpec(codec=codec))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(60)))
    exact = Session(model, CacheSpec())
    exact_id = exact.submit(Prompt(token_ids=prompt_ids(60)))
    session.step()
    exact.step()
    for layer in (0, 1):
        mine, true = session.cache_of(seq_id).rows(layer), exact.cache_of(exact_id).rows(layer)
        assert mine is not None
        assert true is not None
        if layer == 1:
            assert float((mine.keys - true.keys).abs().max()) < 0.2, "exact but for what int8 did to the layer below"
        assert not torch.equal(mine.values, true.values)


def test_a_codec_hardly_changes_the_model_and_a_coarse_one_does() -> None:
    model = model_of("llama")
    errors = {}
    for name in ("int8", "kivi-8", "kivi-2"):
        spec = CacheSpec(codec=uniform(name, 16, 16) if "kivi" in name else uniform("int8"))  # type: ignore[arg-type]
        session = Session(model, spec)
        seq_id = session.submit(Prompt(token_ids=prompt_ids(60)))
        session.force(seq_id, prompt_ids(8, seed=1))
        for _ in range(8):
            session.step()
        ids = session.sequence(seq_id).token_ids
        newest = session.logits(seq_id)
        assert newest is not None
        errors[name] = float((newest - model.reference_logits(torch.tensor([ids]))[-1]).abs().max())
    assert errors["int8"] < 0.5 < errors["kivi-2"]
    assert errors["kivi-8"] < 0.5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Coding("fp9"), "fp8-max-e8m0"),  # type: ignore[arg-type]
        (lambda: Coding("int8", group=32), "Groups"),
        (lambda: Coding("fp8", residual=32), "residual"),
        (lambda: Coding("kivi-2", group=24), "multiple"),
        (lambda: Coding("kivi-4", group=32, residual=48), "multiple"),
        (lambda: CacheSpec("paged", codec=uniform("fp8")), "shared among prompts"),
        (lambda: CacheSpec("paged", codec=uniform("fp8-head")), "shared among prompts"),
        (lambda: CacheSpec("paged", codec=uniform("kivi-4")), "attend to its exact rows"),
        (lambda: CacheSpec("host", host_gib=1.0, codec=uniform("int8")), "travel"),
        (lambda: CacheSpec("dynamic", codec=uniform("int8")), "as it is"),
        (lambda: CacheSpec("none", codec=uniform("int8")), "keeps nothing"),
        (lambda: tuned(PRESETS["int8"].spec, bits=4), "fixed"),
        (lambda: tuned(PRESETS["kivi-4"].spec, bits=3), "2, 4 or 8"),
        (lambda: tuned(PRESETS["transformers-quantized"].spec, bits=4), "one scale per tensor"),
        (lambda: CacheSpec(codec=CodecSpec(layers=(LayerCoding(0), LayerCoding(0)))), "twice"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(make: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("architecture", "codec", "said"),
    [
        ("llama", uniform("kivi-2"), "do not divide the 16 channels"),
        ("llama", CodecSpec(layers=(LayerCoding(7, Coding("int8"), Coding()),)), "layer 7"),
        ("mamba", uniform("int8"), "nothing to quantise"),
        ("lfm2", CodecSpec(layers=(LayerCoding(0, Coding("int8"), Coding()),)), "linear"),
    ],
)
def test_what_a_model_cannot_have_is_refused(architecture: str, codec: CodecSpec, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Session(model_of(architecture), CacheSpec(codec=codec))


@pytest.mark.parametrize(
    "architecture", ["llama", "mistral", "gemma3_text", "gpt2", "deepseek_v3", "lfm2", "falcon", "bloom"]
)
def test_int8_runs_on_every_kind_of_model(architecture: str) -> None:
    session = Session(model_of(architecture), CacheSpec(codec=uniform("int8")), prefill_chunk=7)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(20)))
    session.force(seq_id, prompt_ids(6, seed=1))
    for _ in range(7):
        session.step()
    ids = session.sequence(seq_id).token_ids[: session.sequence(seq_id).num_tokens]
    newest = session.logits(seq_id)
    assert newest is not None
    expected = session.model.reference_logits(torch.tensor([ids]))[-1]
    kl = torch.nn.functional.kl_div(newest.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="sum")
    assert 0 < float(kl) < 0.1


def test_transformers_quantiser_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tuned(PRESETS["transformers-quantized"].spec, backend="hqq")
    with pytest.raises(InputError, match="The hqq quantiser is not installed: install hqq or use fp8"):
        Session(model_of("llama"), spec)
    half_there = tmp_path / "hqq-1.0.dist-info"  # as a package without what it needs
    half_there.mkdir()
    (half_there / "METADATA").write_text("Metadata-Version: 2.1\nName: hqq\nVersion: 1.0\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"The hqq quantiser cannot be imported \(.+\): install hqq or use fp8"):
        Session(model_of("llama"), spec)
    (tmp_path / "optimum_quanto-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: optimum-quanto\nVersion: 1.0\n"
    (tmp_path / "optimum_quanto-1.0.dist-info" / "METADATA").write_text(metadata, "utf-8")
    (tmp_path / "optimum" / "quanto").mkdir(parents=True)
    (tmp_path / "optimum" / "quanto" / "__init__.py").write_text("raise RuntimeError('made for another torch')")
    for is_known in (is_optimum_available, is_optimum_quanto_available):  # transformers looks once
        is_known.cache_clear()
    with pytest.raises(
        InputError, match=r"The quanto quantiser cannot be imported \(made for another torch\): install"
    ):
        Session(model_of("llama"), tuned(spec, backend="quanto"))
    sys.modules.pop("optimum", None)  # its folder goes with the test
    for is_known in (is_optimum_available, is_optimum_quanto_available):
        is_known.cache_clear()
    with pytest.raises(InputError, match="full attention in every layer"):
        Session(model_of("mistral"), PRESETS["transformers-quantized"].spec)


def test_our_fp8_reads_what_transformers_reads() -> None:
    model = model_of("llama")
    logits = []
    for name in ("fp8", "transformers-quantized"):
        session = Session(model, PRESETS[name].spec, prefill_chunk=64)
        seq_id = session.submit(Prompt(token_ids=prompt_ids(30)))
        session.force(seq_id, prompt_ids(5, seed=1))
        for _ in range(5):
            session.step()
        newest = session.logits(seq_id)
        assert newest is not None
        logits.append(newest)
    assert float((logits[0] - logits[1]).abs().max()) < 1e-4


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_group_of_kivi_lies_within_what_its_codes_can_say(bits: int) -> None:
    """Offset and scale are float16: rounded the other way, the smallest or the largest number would be cut off."""
    generator = torch.Generator().manual_seed(bits)
    groups = torch.randn(1, 2, 64, 8, generator=generator) * torch.logspace(-3, 2, 64)[:, None]
    codes, scales, offsets = kivi.quantised(groups, 3, bits)
    low, step = offsets.float(), scales.float()
    assert bool((low <= groups.amin(3, keepdim=True)).all())
    assert bool((low + step * (2**bits - 1) >= groups.amax(3, keepdim=True)).all())
    # float32 rounds the quotient: half a step, and no more than a hair
    assert bool(((codes * step + low - groups).abs() <= step * 0.5001).all())


def test_every_e4m3_byte_is_the_number_that_torch_says() -> None:
    codes = torch.arange(256).to(torch.uint8)
    expected, found = codes.view(torch.float8_e4m3fn).float(), from_e4m3(codes)
    is_number = ~expected.isnan()
    assert torch.equal(found.isnan(), ~is_number)
    assert torch.equal(found[is_number].view(torch.int32), expected[is_number].view(torch.int32))
