"""Where a number stops being one that is taken: of every bound the last that is and the first that is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, tokens_that_fit
from engine.spec.bookmark import Bookmark, OnHead, OnPage, OnStep, OnToken, check_bookmarks
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.condition import TokenSpan, check_pattern, parsed
from engine.spec.edit import AddNoise, BiasLogits, Drop, Mask, Overwrite, ReplaceTokens, Rows, Zero, parse_numbers
from engine.spec.grid import SweepText
from engine.spec.model import ModelSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import MAX_CHARS, MAX_TURNS, Chat, Prompt, SamplingParams, Turn
from tests.engine.tiny import config_dict

LLAMA = CacheGeometry.from_config(config_dict("llama"))  # 2 layers, 2 kv heads of 16 channels, 128 tokens
LATENT = CacheGeometry.from_config(config_dict("deepseek_v3"))  # 16 channels of the latent, 8 of the rotary key
ENDLESS = Prompt(token_ids=(1,))


def of_ten(edit: Any) -> None:
    """An edit of a sequence of ten tokens."""
    edit.check(LLAMA, 10)


def sampled(name: str) -> Callable[[Any], Any]:
    return lambda value: SamplingParams(**{name: value})


def h2o(**given: Any) -> RetentionSpec:
    return RetentionSpec("h2o", **given)


def paged(**given: Any) -> CacheSpec:
    return CacheSpec("paged", **given)


TAKEN_AND_REFUSED: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "temperature": (sampled("temperature"), (0.0, 1e9), (-0.001, math.inf, math.nan)),
    "top-k": (sampled("top_k"), (None, 1), (0, -1)),
    "top-p": (sampled("top_p"), (None, 1e-9, 1.0), (0.0, 1.0001)),
    "min-p": (sampled("min_p"), (None, 0.0, 1.0), (-0.0001, 1.0001)),
    "new tokens": (sampled("max_new_tokens"), (None, 1), (0,)),
    "seed": (sampled("seed"), (0, 2**63 - 1), (-1, 2**63)),
    "stop strings": (lambda n: SamplingParams(stop=("x",) * n), (0, 16), (17,)),
    "length of a stop": (lambda n: SamplingParams(stop=("ok", "x" * n)), (1, 200), (0, 201)),
    "prompt": (lambda given: Prompt(**given), ({"text": "x"}, {"token_ids": (0,)}), ({"text": ""}, {"token_ids": ()},
               {}, {"text": "x", "token_ids": (0,)}, {"text": "\ud83d"})),
    "positions": (lambda span: of_ten(Zero(0, Rows(*span))), ((0, 1), (9, 10)), ((-1, 1), (9, 11), (4, 4))),
    "layers": (lambda n: of_ten(Zero(0, Rows(0, 1, (n,)))), (0, 1), (-1, 2)),
    "no layer": (lambda chosen: of_ten(Zero(0, Rows(0, 1, chosen))), (None, (1,)), ((),)),
    "kv heads": (lambda n: of_ten(Zero(0, Rows(0, 1, None, (n,)))), (0, 1), (-1, 2)),
    "channels": (lambda n: of_ten(Zero(0, Rows(0, 1, None, None, (n,)))), (0, 15), (-1, 16)),
    "channels of K": (lambda n: Zero(0, Rows(0, 1, None, None, (n,), "keys")).check(LATENT, 1), (15,), (16,)),
    "channels of V": (lambda n: Zero(0, Rows(0, 1, None, None, (n,), "values")).check(LATENT, 1), (7,), (8,)),
    "channels of both": (lambda n: Zero(0, Rows(0, 1, None, None, (n,))).check(LATENT, 1), (7,), (8,)),
    "noise": (lambda ratio: of_ten(AddNoise(0, Rows(0, 1), ratio)), (1e-6,), (0.0, -1.0, math.inf)),
    "noise's seed": (lambda seed: of_ten(AddNoise(0, Rows(0, 1), 1.0, seed)), (0, 2**63 - 1), (-1, 2**63)),
    "shift": (lambda shift: of_ten(Overwrite(0, Rows(3, 4), 1, shift=shift)), (-3, 5), (-4,)),
    "a mask": (lambda stop: of_ten(Mask(0, Rows(8, stop))), (9,), (10,)),
    "a mask taken off": (lambda stop: of_ten(Mask(0, Rows(8, stop), hidden=False)), (10,), (11,)),
    "dropped": (lambda stop: of_ten(Drop(0, Rows(8, stop))), (9,), (10,)),
    "whole rows": (lambda rows: of_ten(Drop(0, rows)), (Rows(0, 1),), (Rows(0, 1, part="keys"),
                   Rows(0, 1, channels=(1,)))),
    "replaced": (lambda at: of_ten(ReplaceTokens(0, at, (3, 4))), (0, 8), (-1, 9)),
    "the last alone": (lambda at: of_ten(ReplaceTokens(0, at, (3,))), (9,), (10,)),
    "tokens": (lambda token: of_ten(ReplaceTokens(0, 1, (token,))), (0, 127), (-1, 128)),
    "what is left": (lambda n: of_ten(ReplaceTokens(0, 10 - n, (), "re-prefill", n)), (9,), (10,)),
    "put in": (lambda n: of_ten(ReplaceTokens(0, 4, (5,) * n, "re-prefill", 0)), (1, 9), ()),
    "bias": (lambda bias: of_ten(BiasLogits(0, ((5, bias),))), (1e4, -1e4), (10_001.0, -10_001.0, math.nan)),
    "biased, banned, only": (of_ten, (BiasLogits(0, ((127, 1.0),), (127,), (126,)),), (BiasLogits(0, ((128, 1.0),)),
                             BiasLogits(0, (), (128,)), BiasLogits(0, (), (), (128,)), BiasLogits(0, (), (-1,)))),
    "budget": (lambda n: h2o(budget=n, sinks=4), (5,), (4, True)),
    "sinks and window": (lambda n: h2o(budget=12, sinks=4, window=n), (0, 8), (9, -1)),
    "ratio": (lambda ratio: h2o(ratio=ratio), (0.0, 0.999), (-0.001, 1.0)),
    "window": (lambda n: RetentionSpec("window", window=n), (1,), (0, None)),
    "budgets by layer": (lambda n: h2o(layer_budgets=(9, n), sinks=2), (3,), (2,)),
    "a page of a budget": (lambda n: paged(retention=h2o(budget=n)), (16,), (15,)),
    "page size": (lambda n: paged(page_size=n), (1, 1024), (0, 3, 2048)),
    "pages": (lambda n: paged(num_pages=n), (2,), (1,)),
    "host": (lambda gib: CacheSpec("host", host_gib=gib), (0.001, 65_536.0), (0.0, 65_537.0)),
    "static": (lambda n: CacheSpec("static", max_length=n), (1,), (0,)),
    "group": (lambda n: Coding("kivi-4", n, 64), (8, 64), (0, 4, 48)),
    "residual": (lambda n: Coding("kivi-2", 16, n), (16, 32), (0, 8, 24)),
    "layers of a codec": (lambda ns: CodecSpec(layers=tuple(LayerCoding(n, Coding("int8")) for n in ns)).check(LLAMA),
                          ((), (0, 1)), ((2,), (-1,), (1, 1))),
    "channels of a group": (lambda n: CodecSpec(values=Coding("kivi-4", n, 32)).check(LLAMA), (8, 16), (32,)),
    "span": (lambda span: TokenSpan(*span), ((0, 0), (3, 2**31 - 1)), ((-1, 0), (3, 2), (0, 2**31))),
    "newest": (lambda n: TokenSpan(newest=n), (1, 2**31 - 1), (0, 2**31)),
    "length of a condition": (lambda n: parsed("step = 1" + " " * (n - 8)), (500,), (501,)),
    "length of a pattern": (lambda n: check_pattern("x" * n), (200,), (201,)),
    "repeats": (lambda text: check_pattern(text), ("x{1000}", "(x{10}){100}", "x{2,}"), ("x{1001}", "(x{11}){100}")),
    "numbers": (lambda text: parse_numbers(text, "layers"), ("0-65535", "3-3"), ("0-65536", "4-3", "1-2-3", "-1")),
    "depth": (lambda depth: SweepText("x", ENDLESS, "recall", depth=depth), (0.0, 1.0), (-0.01, 1.01)),
    "tokens of a text": (lambda n: SweepText("x", ENDLESS, num_tokens=n), (1,), (0,)),
    "threads": (lambda n: ModelSpec(num_threads=n), (1, None), (0,)),
    "note": (lambda n: Bookmark(OnStep(0), "x" * n), (0, 2000), (2001,)),
    "place": (Bookmark, (OnToken(0, 0, 0), OnPage(0, 0, 0), OnHead(0, 0, 0, 0)), (OnStep(-1), OnToken(0, 0, -1),
              OnPage(0, -1, 0), OnHead(0, 0, 0, -1))),
    "bookmarks": (lambda n: check_bookmarks(tuple(Bookmark(OnStep(i)) for i in range(n))), (1000,), (1001,)),
    "a place": (lambda n: check_bookmarks((Bookmark(OnStep(4)), Bookmark(OnStep(n), "x"))), (5,), (4,)),
    "turns": (lambda n: Chat((Turn("user", "x"),) * n), (1, MAX_TURNS), (MAX_TURNS + 1,)),
    "characters": (lambda n: Chat((Turn("user", "x" * (n - 1)), Turn("user", "y"))), (MAX_CHARS,), (MAX_CHARS + 1,)),
    "a calculator's prompt": (lambda n: BudgetSpec(context=10, prompt=n), (1, 10, None), (0, 11, True)),
    "a calculator's context": (lambda n: BudgetSpec(context=n), (1, 10**12), (0, 10**12 + 1, 1.5)),
    "a reserved context": (lambda n: BudgetSpec(CacheSpec("static", max_length=20), n), (20,), (21,)),
    "memory": (lambda n: tokens_that_fit(LLAMA, BudgetSpec(), n), (0,), (-1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN_AND_REFUSED)
def test_the_last_that_is_taken_and_the_first_that_is_not(name: str) -> None:
    make, taken, refused = TAKEN_AND_REFUSED[name]
    for value in taken:
        make(value)
    for value in refused:
        with pytest.raises(InputError) as refusal:
            make(value)
        assert str(refusal.value).endswith("."), value
