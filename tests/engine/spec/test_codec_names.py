"""Codecs by name: what is printed is read back, layer by layer too, and what is no name is refused in a sentence."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import CacheSpec, cache_name, cache_named
from engine.spec.codec import (
    ROW_OF_NAME,
    CodecSpec,
    Coding,
    LayerCoding,
    codec_name,
    codec_summary,
    parse_codec,
    uniform,
)


@st.composite
def codings(draw: st.DrawFn) -> Coding:
    name = draw(st.sampled_from([*ROW_OF_NAME]))
    plain = Coding(name)
    group = draw(st.sampled_from([None, 16, 32, 64])) if plain.has_groups else None
    residual = draw(st.sampled_from([None, 64, 128, 192])) if plain.is_kivi else None
    return Coding(name, group, residual)


@st.composite
def plans(draw: st.DrawFn) -> CodecSpec:
    """K and V of all layers, and some layers that are written otherwise, in runs or in any order."""
    few = draw(st.lists(codings(), min_size=1, max_size=3))
    layers = draw(st.lists(st.integers(0, 90), min_size=1, max_size=12, unique=True))
    if draw(st.booleans()):
        layers = list(range(min(layers), min(layers) + len(layers)))
    kinds = st.sampled_from(few)
    others = tuple(LayerCoding(layer, draw(kinds), draw(kinds)) for layer in layers)
    return CodecSpec(draw(kinds), draw(kinds), others)


@given(plans())
def test_a_plan_is_read_back_by_its_name_alone_and_in_a_mode(spec: CodecSpec) -> None:
    assert parse_codec(codec_name(spec)) == spec
    whole = CacheSpec(codec=spec)
    assert cache_named(cache_name(whole)) == (CacheSpec() if spec.is_exact else whole)
    assert "," not in codec_name(spec), "several caches are separated by commas"
    if not any(coding.is_kivi for coding in spec.codings) and not spec.is_exact:
        mode = replace(cache_named("h2o"), codec=spec)
        assert cache_named(cache_name(mode)) == mode


@given(st.text("kivi-248nt@=:/0159,+ .²exac", max_size=30))
@example("int8@")
@example("int8@0-4095=fp8@0=fp8")
def test_whatever_is_typed_is_a_codec_or_refused(text: str) -> None:
    try:
        spec = parse_codec(text)
    except InputError:
        return
    assert parse_codec(codec_name(spec)).layers == spec.layers


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("int8/exact", CodecSpec(Coding("int8"), Coding())),
        ("kivi-4:16", uniform("kivi-4", 16)),
        ("kivi-4::64", uniform("kivi-4", None, 64)),
        (
            "kivi-4@0=int8@5=exact",
            CodecSpec(
                Coding("kivi-4"), Coding("kivi-4"), (LayerCoding(0, Coding("int8"), Coding("int8")), LayerCoding(5))
            ),
        ),
        (
            "exact@2-4=fp8/kivi-2:16:32",
            CodecSpec(layers=tuple(LayerCoding(n, Coding("fp8"), Coding("kivi-2", 16, 32)) for n in (2, 3, 4))),
        ),
    ],
)
def test_what_a_name_means(name: str, spec: CodecSpec) -> None:
    assert parse_codec(name) == spec
    assert cache_named(name).codec == spec


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("int8@5", "names no codec for its layers: write @LAYER=NAME"),
        ("int8@5-3=fp8", "no range of layers"),
        ("int8@0-99999=fp8", "no range of layers: write the first, then the last, below 4,096"),
        ("int8@x=fp8", "'x' in 'x=fp8' is no whole number"),
        ("int8@1=fp8@0-2=exact", "named twice"),
        ("kivi-4:16:64:9", "more sizes than a group and a residual"),
        ("int8:16", "int8 has none"),
        ("int8@0=fp9", "Unknown codec 'fp9'"),
    ],
)
def test_what_is_no_name_says_what_to_write(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_codec(name)
    with pytest.raises(InputError, match=said):
        cache_named(f"growing+{name}")


def test_a_plan_is_summed_up_in_a_sentence() -> None:
    assert codec_summary(parse_codec("exact@0-2=int8@7=kivi-2/fp8")) == (
        "Layers are written by codecs of their own: INT8 in 0-2, K KIVI-2 · V FP8 in 7; the rest exact."
    )
