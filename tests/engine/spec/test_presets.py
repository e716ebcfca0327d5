"""Cache modes by name: what a combination is called, in print and in words, and what it says of itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.errors import InputError
from engine.spec.cache import (
    LAYOUTS,
    PRESETS,
    CacheSpec,
    cache_label,
    cache_name,
    cache_named,
    cache_summary,
    mode_detail,
    mode_words,
    parameters_of,
    preset_of,
    size_words,
    tuned,
    value_of,
)
from engine.spec.codec import (
    CODECS,
    ROW_OF_NAME,
    CodecSpec,
    Coding,
    LayerCoding,
    codec_name,
    codec_summary,
    parse_codec,
    uniform,
)
from engine.spec.retention import RULES


def combinations() -> list[str]:
    """Every layout that takes codecs and rules, with every rule and pairs of codecs, where they go together."""
    names = []
    codecs = ("", "int8", "fp8-max", "kivi-2", "int8/kivi-2", "exact/fp8-head", "fp8-token-head/int8")
    for layout, rule, codec in itertools.product(("", "paged"), ("", *RULES), codecs):
        name = "+".join(part for part in (layout, rule, codec) if part)
        try:
            cache_named(name or "growing")
        except InputError:
            continue
        names.append(name or "growing")
    return names


def test_every_combination_is_read_back_by_the_name_that_it_is_printed_by() -> None:
    names = combinations()
    assert len(names) > 60
    for name in names:
        spec = cache_named(name)
        assert cache_named(cache_name(spec)) == spec, name
    labels = {cache_label(cache_named(name)) for name in names}
    assert len(labels) == len({cache_named(name) for name in names}), "two modes have one label"


@pytest.mark.parametrize(
    ("name", "printed", "label"),
    [
        ("int8/kivi-2", "int8/kivi-2", "K INT8 · V KIVI-2"),
        ("exact/kivi-2", "exact/kivi-2", "K exact · V KIVI-2"),
        ("int8/int8", "int8", "INT8"),
        ("paged+int8", "paged-int8", "Paged INT8"),
        ("int8+paged", "paged-int8", "Paged INT8"),
        ("paged+int8/fp8-token-head", "paged+int8/fp8-token-head", "Paged · K INT8 · V FP8 per token"),
        ("sliding+int8", "sliding+int8", "Sliding · INT8"),
        ("paged+h2o+int8", "paged+h2o+int8", "Paged · H2O · INT8"),
        ("offloaded", "offloaded", "Offloaded"),
    ],
)
def test_a_mode_has_its_true_name(name: str, printed: str, label: str) -> None:
    spec = cache_named(name)
    assert (cache_name(spec), cache_label(spec)) == (printed, label)


def test_k_and_v_are_written_apart() -> None:
    codec = cache_named("h2o+int8/fp8-token-head").codec
    assert (codec.keys.name, codec.values.name) == ("int8", "fp8-token-head")
    assert "Keys: int8" in cache_summary(cache_named("int8/kivi-2"))
    assert "Values: Keys per channel" in cache_summary(cache_named("int8/kivi-2"))


@pytest.mark.parametrize("name", ["h2o+tova", "int8+fp8", "paged+growing", "paged+offloaded"])
def test_a_choice_is_made_once(name: str) -> None:
    with pytest.raises(InputError, match="two values for one choice"):
        cache_named(name)


SIZES: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
    ("growing", {}, (), "as it is"),
    ("paged", {"page_size": 32}, ("page size 32",), "page size 32"),
    ("static", {"max_length": 4096}, ("max length 4,096",), "max length 4,096"),
    ("h2o+int8", {"budget": 40}, ("budget 40", "8 bits"), "budget 40 · INT8"),
    ("tova", {"ratio": 0.25}, ("ratio 0.25",), "ratio 0.25"),
    ("streamingllm", {"rerotate": True}, ("sinks 4", "window 252", "rerotate"), "sinks 4 · window 252 · rerotate"),
    ("kivi-2", {"group": 16, "residual": 32}, ("2 bits", "group 16", "residual 32"), "KIVI-2 · group 16 · residual 32"),
    (
        "int8/kivi-4",
        {},
        ("8 and 4 bits", "group 32", "residual 128"),
        "K INT8 · V KIVI-4 · group 32 · residual 128",
    ),
    ("transformers-quantized", {"backend": "quanto", "bits": 4}, ("quanto", "4 bits"), "quanto · 4 bits"),
]


@pytest.mark.parametrize(("name", "given", "sizes", "words"), SIZES, ids=[row[0] for row in SIZES])
def test_what_sizes_a_mode_in_words(name: str, given: dict[str, Any], sizes: tuple[str, ...], words: str) -> None:
    spec = tuned(cache_named(name), **given)
    assert size_words(spec) == sizes
    assert mode_words(spec) == words


@pytest.mark.parametrize(
    ("name", "given", "detail"),
    [
        ("growing", {}, "exact · lossless"),
        ("paged", {}, "exact · lossless"),
        ("paged", {"page_size": 32}, "exact · lossless · page size 32"),
        ("static", {"max_length": 512}, "exact · lossless · max length 512"),
        ("kivi-2", {}, "lossy · 2 bits · group 32 · residual 128"),
        ("int8/kivi-2", {}, "lossy · 8 and 2 bits · group 32 · residual 128"),
        ("h2o", {}, "lossy · budget 256"),
        ("h2o+exact/int8", {}, "lossy · budget 256 · exact and 8 bits"),
        ("tova", {"ratio": 0.5}, "lossy · ratio 0.5"),
        ("paged+tova", {"budget": 40, "page_size": 8}, "lossy · budget 40 · page size 8"),
        ("streamingllm", {}, "lossy · sinks 4 · window 252"),
        ("transformers-quantized", {}, "lossy · fp8"),
    ],
)
def test_the_selector_says_what_a_mode_is_beside_its_name(name: str, given: dict[str, Any], detail: str) -> None:
    assert mode_detail(tuned(cache_named(name), **given)) == detail


def test_every_parameter_of_every_row_is_kept_somewhere() -> None:
    """What a row names is a part of the spec, and the preset has the default that the row says."""
    for name, preset in PRESETS.items():
        for parameter in parameters_of(preset.spec):
            held = value_of(preset.spec, parameter.name)
            expected = 2 if name == "kivi-2" and parameter.name == "bits" else parameter.default
            assert held == expected, (name, parameter.name)
    assert {p.name for row in (*LAYOUTS.values(), *RULES.values(), *CODECS.values()) for p in row.parameters} == {
        p.name for preset in (*PRESETS.values(),) for p in parameters_of(preset.spec)
    }  # fmt: skip


def test_every_row_says_what_it_is() -> None:
    for row in RULES.values():
        assert row.summary.endswith(".")
        assert row.formula.startswith("score(j) = ")
        assert row.paper
        assert row.victim
        assert row.score
    for codec in CODECS.values():
        assert codec.summary.endswith(".")
        assert codec.formula
    labels = [preset.label for preset in PRESETS.values()]
    assert len(set(labels)) == len(labels)


def test_kivi_is_one_row_with_three_names() -> None:
    assert [name for name in ROW_OF_NAME if name.startswith("kivi")] == ["kivi-8", "kivi-4", "kivi-2"]
    assert {Coding(name).row for name in ("kivi-8", "kivi-4", "kivi-2")} == {CODECS["kivi"]}
    assert Coding("kivi-2").label == "KIVI-2"
    assert codec_name(parse_codec("kivi-8")) == "kivi-8"


def test_a_mixed_codec_has_the_parameters_of_both_parts() -> None:
    mixed = CacheSpec(codec=parse_codec("int8/kivi-2"))
    assert [p.name for p in parameters_of(mixed)] == ["bits", "group", "residual"]
    changed = tuned(mixed, group=16, residual=64)
    assert (changed.codec.keys, changed.codec.values) == (Coding("int8"), Coding("kivi-2", 16, 64))
    assert [value_of(changed, name) for name in ("bits", "group", "residual")] == [2, 16, 64]


def test_every_preset_knows_its_own_name() -> None:
    for preset in PRESETS.values():
        assert preset_of(preset.spec) is preset
    assert preset_of(tuned(PRESETS["kivi-4"].spec, bits=2)).name == "kivi-2"
    assert preset_of(CacheSpec(codec=uniform("fp8-token-head"))).name == "fp8"


@pytest.mark.parametrize(
    ("spec", "name", "label"),
    [
        (CacheSpec(codec=parse_codec("int8/kivi-4")), "int8/kivi-4", "K INT8 · V KIVI-4"),
        (CacheSpec(codec=parse_codec("exact/fp8")), "exact/fp8", "K exact · V FP8"),
        (CacheSpec(codec=uniform("fp8-token-head")), "fp8-token-head", "FP8 per token"),
        (CacheSpec(codec=uniform("kivi-8")), "kivi-8", "KIVI-8"),
        (CacheSpec(codec=CodecSpec(layers=(LayerCoding(0, Coding("int8")),))), "exact@0=int8/exact", "codec by layer"),
        (CacheSpec("paged", codec=uniform("fp8-max", 8)), "paged+fp8-max", "Paged · FP8 of MAX, float32"),
        (CacheSpec("paged", codec=uniform("int8")), "paged-int8", "Paged INT8"),
        (tuned(PRESETS["h2o"].spec, codec=uniform("int8")), "h2o+int8", "H2O · INT8"),
        (tuned(PRESETS["h2o"].spec, layout="paged"), "paged+h2o", "Paged · H2O"),
        (tuned(PRESETS["h2o"].spec, budget=7), "h2o", "H2O"),
        (tuned(PRESETS["kivi-4"].spec, residual=64), "kivi-4", "KIVI-4"),
    ],
    ids=str,
)
def test_a_codec_that_no_preset_has_is_named_as_it_is(spec: CacheSpec, name: str, label: str) -> None:
    assert (cache_name(spec), cache_label(spec)) == (name, label)
    is_preset = name == preset_of(spec).name
    assert (cache_summary(spec) == preset_of(spec).summary) == is_preset
    assert is_preset or spec.codec.is_exact or codec_summary(spec.codec) in cache_summary(spec)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h2o+int9", "Unknown rule or codec 'int9'"),
        ("h3o+int8", "Unknown cache 'h3o'"),
        ("int8/kivi-5", "Unknown codec 'kivi-5'"),
        ("a/b/c", "NAME/NAME"),
        ("+int8", "Unknown cache ''"),
        ("paged+kivi-4", "in pages"),
        ("dynamic+int8", "as it is"),
        ("h2o+tova", "two values for one choice"),
        ("int8 ", "Unknown cache 'int8 '"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        cache_named(name)
