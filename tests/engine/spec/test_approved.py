"""What the tables of cache modes, models and conditions say, and what follows from them in words and in numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import (
    CacheSpec,
    cache_label,
    cache_name,
    cache_named,
    cache_summary,
    family_of,
    fitted,
    mode_detail,
    mode_words,
    parameters_of,
    preset_of,
    size_words,
    tuned,
    value_of,
)
from engine.spec.codec import (
    ROW_OF_NAME,
    CodecSpec,
    Coding,
    Part,
    codec_name,
    codec_summary,
    coded_bytes,
    parse_codec,
    recoded,
)
from engine.spec.grid import takes_codecs
from engine.spec.retention import RetentionSpec, parse_budget
from tests.engine.spec.modes import MODES
from tests.engine.told import approve, told

APPROVED = Path(__file__).parent / "approved"


def test_modes_are_told_as_approved() -> None:
    approve(APPROVED / "modes.txt", [line for spec in MODES.values() for line in of_mode(spec)])


def of_mode(spec: CacheSpec) -> Iterator[str]:
    is_what = ("is_paged", "recomputes", "is_compressed", "is_append_only", "is_exact")
    sizes = ("budget", "ratio", "sinks", "window", "rerotate", "backend", "bits", "group", "residual")
    yield f"{cache_name(spec)}: {cache_label(spec)} of {preset_of(spec).name}."
    yield f"  {codec_name(spec.codec)}. {cache_summary(spec)}"
    yield f"  {family_of(spec)}, form {spec.form}, {', '.join(name for name in is_what if getattr(spec, name))}"
    yield f"  lossless {preset_of(spec).lossless}, needs {preset_of(spec).needs}"
    yield f"  {mode_detail(spec)} | {mode_words(spec)} | {' · '.join(size_words(spec))}"
    yield f"  {', '.join(f'{p.name}={value_of(spec, p.name)}' for p in parameters_of(spec))}"
    yield f"  {', '.join(f'{name}={value_of(spec, name)}' for name in sizes if value_of(spec, name))}"
    shares = [fitted(spec, 40, share) for share in (None, 0.5)]
    yield f"  other codecs {takes_codecs(spec)}; for 40 tokens {' | '.join(mode_words(each) for each in shares)}"


RULE_SIZES: tuple[RetentionSpec, ...] = (
    RetentionSpec(),
    RetentionSpec("window", window=7),
    RetentionSpec("sinks+window", sinks=3, window=7),
    *(RetentionSpec(name, budget=9, sinks=2) for name in ("h2o", "snapkv", "tova", "knorm", "random")),
    RetentionSpec("h2o", ratio=0.6, sinks=1),
    RetentionSpec("snapkv", budget=12, sinks=2, window=4, schedule="pyramid"),
    RetentionSpec("snapkv", budget=60, schedule="pyramid"),
    RetentionSpec("tova", budget=7, sinks=1, schedule="pyramid"),
    RetentionSpec("keydiff", layer_budgets=(9, 5, 3)),
)


def test_numbers_of_rules_are_told_as_approved() -> None:
    lines = []
    for spec in RULE_SIZES:
        is_what = ("keeps_all", "is_by_position", "needs_weights", "watches_all", "only_at_prompt_end")
        lines.append(f"{told(spec)} {spec.ratio}: {spec.summary}")
        lines.append(f"  {', '.join(what for what in is_what if getattr(spec, what))}")
        for prompt in (None, 10, 40, 200):
            layers = [spec.at(number, 3, prompt) for number in range(3)]
            lines.append(f"  prompt of {prompt}: {[(each.budget, each.window) for each in layers]}")
        one = spec.at(0, 3 if spec.layer_budgets else 1)
        for seen in (0, 1, 4, 5, 8, 11, 16, 17, 40):
            pages = [one.num_kept_pages(seen, size) for size in (1, 4, 16)]
            lines.append(f"  of {seen}: {one.num_kept(seen)} rows, {one.recent(one.num_kept(seen))} recent, {pages}")
    approve(APPROVED / "rules.txt", lines)


def test_numbers_of_codecs_are_told_as_approved() -> None:
    lines = []
    for name in ROW_OF_NAME:
        coding = Coding(name)
        if coding.has_groups:
            coding = replace(coding, group=16)
        if coding.is_kivi:
            coding = replace(coding, residual=32)
        is_what = ("is_exact", "is_kivi", "has_groups", "waits_for_prompt", "is_frozen")
        lines.append(f"{coding.words}: {', '.join(what for what in is_what if getattr(coding, what))}")
        lines.append(f"  {coding.bits} bits, {coding.row_bytes(48)} a row of 48, {coding.shared_bytes(3)} shared")
        for part, tokens in itertools.product(get_args(Part), (0, 1, 31, 32, 70)):
            lines.append(f"  {part} of {tokens}: {told(coded_bytes(coding.terms(tokens, 3, 48, 4, part)))}")
    approve(APPROVED / "codecs.txt", lines)


def test_codecs_with_other_numbers_are_told_as_approved() -> None:
    """Bits, a group and a residual go to the part, K or V, that has them."""
    lines = []
    for name in ("exact", "int8", "fp8-max", "kivi-4", "int8/kivi-4", "fp8-max/kivi-2", "kivi-8/fp8-max"):
        for bits, group, residual in itertools.product((None, 2, 3), (None, 16), (None, 64)):
            lines.append(f"{name} {bits} {group} {residual}: {_recoded(parse_codec(name), bits, group, residual)}")
    approve(APPROVED / "recoded.txt", lines)


def _recoded(spec: CodecSpec, *numbers: int | None) -> str:
    try:
        return told(recoded(spec, *numbers))
    except InputError as refusal:
        return str(refusal)


def test_a_budget_by_layer_is_typed_and_taken() -> None:
    h2o = cache_named("h2o")
    assert tuned(h2o, budget=parse_budget("64")).retention == RetentionSpec("h2o", budget=64)
    assert tuned(h2o, budget=parse_budget("40,20")).retention == RetentionSpec("h2o", layer_budgets=(40, 20))
    pyramid = RetentionSpec("h2o", budget=30, schedule="pyramid")
    assert tuned(h2o, budget=parse_budget("pyramid:30")).retention == pyramid
    for text in ("", "x", "pyramid:", "pyramid:3,4", "64,"):
        with pytest.raises(InputError, match="is no budget"):
            parse_budget(text)


def test_a_long_plan_is_summed_up_by_its_first_layers() -> None:
    plan = "int8" + "".join(f"@{layer}=fp8" for layer in range(0, 12, 2))
    assert codec_summary(parse_codec(plan)).count("FP8") == 4
