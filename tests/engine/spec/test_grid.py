"""A grid of modes, sizes and codecs: each once, under a name that says it, and only what goes together."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.spec.cache import PRESETS, with_budget
from engine.spec.codec import parse_codec
from engine.spec.grid import SweepText, grid, parse_budgets
from engine.spec.sampling import Prompt

EXACT, INT8, APART = (parse_codec(name) for name in ("exact", "int8", "int8/kivi-4"))


def presets(*names: str) -> dict[str, object]:
    return {name: PRESETS[name].spec for name in names}


def test_every_mode_in_every_size_and_codec_once() -> None:
    modes = grid(presets("none", "dynamic", "growing", "int8", "h2o", "sliding"), (64, 0.25), (EXACT, INT8, APART))
    assert [mode.name for mode in modes] == [
        "none", "dynamic", "growing", "int8", "int8/kivi-4",
        "h2o@64", "h2o@25%", "h2o+int8@64", "h2o+int8@25%",
        "sliding@64", "sliding@25%", "sliding+int8@64", "sliding+int8@25%",
    ]  # fmt: skip
    by_name = {mode.name: mode for mode in modes}
    assert by_name["h2o+int8@64"].cache.retention.budget == 64
    assert by_name["h2o+int8@64"].cache.codec == INT8
    assert by_name["sliding@64"].cache.retention.window == 64
    assert by_name["h2o@25%"].fitted(200).retention.budget == 50
    assert by_name["int8/kivi-4"].share == 0.25, "an exact residual is one group there"
    assert by_name["int8/kivi-4"].fitted(200).codec.values.residual == 32


def test_without_sizes_and_codecs_it_is_the_modes_themselves() -> None:
    assert [(mode.name, mode.cache, mode.share) for mode in grid(presets("h2o", "paged"))] == [
        ("h2o", PRESETS["h2o"].spec, None),
        ("paged", PRESETS["paged"].spec, None),
    ]


def test_pages_take_the_codecs_that_pages_can() -> None:
    assert [mode.name for mode in grid(presets("paged"), (None,), (EXACT, INT8, APART))] == ["paged", "paged-int8"]


def test_a_budget_that_holds_no_sinks_is_left_out() -> None:
    assert [mode.name for mode in grid(presets("streamingllm"), (4, 5))] == ["streamingllm@5"]
    assert with_budget(PRESETS["streamingllm"].spec, 12).retention.window == 8
    with pytest.raises(InputError):
        with_budget(PRESETS["streamingllm"].spec, 4)


def test_budgets_as_they_are_typed() -> None:
    assert parse_budgets("64, 25%,own,64") == (64, 0.25, None)
    assert parse_budgets("1%,100%") == (0.01, 1.0)
    for text in ("0", "101%", "-3", "x", "1e3"):
        with pytest.raises(InputError, match="is no budget"):
            parse_budgets(text)


def test_a_text_refuses_what_is_none() -> None:
    prompt = Prompt(token_ids=(1, 2))
    for options in ({"kind": "poem"}, {"depth": 1.5}, {"num_tokens": 0}):
        with pytest.raises(InputError):
            SweepText("x", prompt, **options)  # type: ignore[arg-type]
