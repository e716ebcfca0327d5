"""What can be tried: every rule and every codec, with the parameters that their rows name."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from app.panels.what_if import WhatIfKnobs
from engine.errors import InputError
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import CodecSpec, Coding
from engine.spec.retention import RULES, RetentionSpec
from tests.app import samples


@pytest.fixture
def knobs(qapp: QApplication) -> WhatIfKnobs:
    knobs = WhatIfKnobs()
    knobs.set_num_rows(40)
    knobs.set_geometry(samples.geometry(head_dim=32))
    return knobs


def shown(knobs: WhatIfKnobs) -> list[str]:
    return [name for name, knob in knobs.knobs.items() if not knob.isHidden()]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_tried_and_begins_at_half_of_the_rows(knobs: WhatIfKnobs, name: str) -> None:
    knobs.choose(name, "int8")
    spec, preset = knobs.spec(), PRESETS[name].spec
    assert spec.retention.row is RULES[name]
    assert (spec.retention.schedule, spec.retention.sinks) == (preset.retention.schedule, preset.retention.sinks)
    assert spec.codec == CodecSpec(Coding("int8"), Coding("int8"))
    if name == "streamingllm":
        assert (spec.retention.sinks, spec.retention.window) == (4, 16)
    elif name == "sliding":
        assert spec.retention.window == 20
    else:
        assert (spec.retention.budget, spec.retention.window) == (20, None)


@pytest.mark.parametrize(
    ("rule", "codec", "values", "names"),
    [
        ("all", "exact", "", []),
        ("all", "int8", "kivi", ["bits", "group", "residual"]),
        ("all", "fp8-max", "int8", ["group"]),
        ("h2o", "int8", "", ["budget", "sinks", "window"]),
        ("sliding", "exact", "", ["window"]),
        ("streamingllm", "fp8-max", "", ["sinks", "window", "group"]),
    ],
)
def test_the_numbers_shown_are_those_of_the_rows(
    knobs: WhatIfKnobs, rule: str, codec: str, values: str, names: list[str]
) -> None:
    knobs.choose(rule, codec, values)
    assert shown(knobs) == names


def test_k_and_v_are_tried_with_codecs_of_their_own(knobs: WhatIfKnobs) -> None:
    knobs.choose("all", "int8", "kivi")
    knobs.knobs["bits"].set_value(2)
    assert knobs.spec() == CacheSpec(codec=CodecSpec(Coding("int8"), Coding("kivi-2", 32, 32)))
    assert not knobs.is_identity
    knobs.choose("all", "exact")
    assert knobs.is_identity


def test_kivi_of_v_alone_gives_way_to_a_rule_too(knobs: WhatIfKnobs) -> None:
    knobs.choose("all", "int8", "kivi")
    knobs.rule.setCurrentIndex(knobs.rule.findData("pyramidkv"))
    assert (knobs.codec.keys, knobs.codec.values) == ("exact", "exact")
    assert knobs.spec().retention.row is RULES["pyramidkv"]
    knobs.codec.choose("exact", "kivi")
    assert knobs.spec().retention.keeps_all, "what was chosen last counts"


def test_a_budget_gives_its_place_to_a_ratio_where_the_rule_takes_one(knobs: WhatIfKnobs) -> None:
    knobs.choose("tova", "exact")
    knobs.knobs["budget"].renamed.emit()
    assert shown(knobs) == ["ratio", "sinks", "window"]
    assert (knobs.spec().retention.budget, knobs.spec().retention.ratio) == (None, 0.5)
    knobs.choose("pyramidkv", "exact")
    assert shown(knobs) == ["budget", "sinks", "window"], "a pyramid spreads a budget"


def test_sizes_that_cannot_be_are_refused(knobs: WhatIfKnobs) -> None:
    knobs.choose("h2o", "exact")
    knobs.knobs["budget"].set_value(3)
    knobs.knobs["sinks"].set_value(3)
    with pytest.raises(InputError, match="sinks"):
        knobs.spec()


def test_sizes_follow_the_rows_until_a_person_sets_one(qapp: QApplication) -> None:
    knobs = WhatIfKnobs()
    knobs.set_num_rows(5)
    assert knobs.spec().retention == RetentionSpec("sinks+window", sinks=4, window=1)
    knobs.set_num_rows(440)
    assert knobs.spec().retention == RetentionSpec("sinks+window", sinks=4, window=216), "half of what is there now"
    knobs.choose("h2o", "exact")
    assert knobs.spec().retention.budget == 220
    knobs.knobs["budget"].track.setValue(9)
    knobs.set_num_rows(600)
    assert knobs.spec().retention.budget == 10, "a size that was set stays"
    knobs.choose("streamingllm", "exact")
    assert knobs.spec().retention.window == 296


@pytest.mark.parametrize(("own", "budget", "window"), [("budget", 7, None), ("window", 40, 7), ("", 40, None)])
def test_a_size_that_a_person_has_set_stays_and_the_others_follow_the_rows(
    knobs: WhatIfKnobs, own: str, budget: int, window: int | None
) -> None:
    knobs.choose("h2o", "exact")
    assert (knobs.spec().retention.budget, knobs.spec().retention.window) == (20, None)
    if own:
        knobs.knobs[own].field.setValue(7)
    knobs.set_num_rows(80)
    assert (knobs.spec().retention.budget, knobs.spec().retention.window) == (budget, window)


def test_another_rule_begins_with_a_window_of_its_own(knobs: WhatIfKnobs) -> None:
    """A budget that a person has set stays; a window is another thing in another rule."""
    knobs.choose("streamingllm", "exact")
    knobs.knobs["window"].field.setValue(7)
    assert knobs.spec().retention.window == 7
    knobs.set_num_rows(60)
    assert knobs.spec().retention.window == 7
    knobs.choose("sliding", "exact")
    assert knobs.spec().retention.window == 30
