"""The inspector: each fact about the selected token stands at its label."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.draw.format import percent
from app.models import Models
from app.panels.attention import AttentionView
from app.panels.inspector import InspectorView
from engine.counted import significant
from engine.wire.records import NonFinite
from tests.app import samples
from tests.app.panels.recorded import STEPS, give_pictures, recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


def test_the_inspector_tells_what_is_known_of_a_token(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    give_pictures(models)
    text = view.facts.text()
    token = models.timeline.tokens(0)[13]
    assert f"13 · {token.token_id}" in text
    assert f"{token.surprisal:.2f} nats" in text
    assert "K[3, 1, 13]" in text
    assert token.surprisal is not None
    facts = facts_of(view)
    assert facts["surprisal"] == f"{token.surprisal:.2f} nats  (p {percent(math.exp(-token.surprisal))})"


def facts_of(view: InspectorView) -> dict[str, str]:
    return {fact.label: fact.text for fact in view.facts.facts}


def test_norms_are_told_as_written_and_as_stored(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    give_pictures(models)
    row, stats = models.pictures.row, samples.row_stats(1, 13 - samples.PROMPT + 1)  # of the step that wrote token 13
    assert row is not None
    written, stored = float(stats.key_norm[3].mean()), float(np.linalg.norm(row.keys[3], axis=1).mean())
    assert written != pytest.approx(stored, rel=0.01)
    facts = facts_of(view)
    assert facts["‖k‖ L0–L5"] == f"L3 {significant(written, 3)}"
    assert facts["‖k‖ stored"] == f"L3 {significant(stored, 3)}"
    # a cache that holds what was written says it once
    same = tuple(np.tile(stats.key_norm[n, :, :1] / np.sqrt(8), 8) for n in range(samples.LAYERS))
    models.pictures.put(replace(row, keys=same))
    facts = facts_of(view)
    assert facts["‖k‖ L0–L5"] == f"L3 {significant(written, 3)}"
    assert "‖k‖ stored" not in facts
    assert "‖v‖ stored" in facts
    models.pictures.put(replace(row, layers=row.layers[:3], keys=row.keys[:3], values=row.values[:3]))
    assert facts_of(view)["‖k‖ stored"] == "L3 evicted"


def test_norms_of_a_prompts_tokens_come_with_their_row(models: Models, show: Callable[..., Any]) -> None:
    """A record has those of its newest row alone."""
    first = models.timeline.records[0]
    models.timeline.replace(first.as_told)
    view = show(InspectorView(models))
    models.selection.update(position=samples.PROMPT - 1)
    last, stats = facts_of(view)["‖k‖ L0–L5"], first.sequences[0].rows
    assert stats is not None
    assert last == f"L3 {significant(float(stats.key_norm[3, :, -1].mean()), 3)}"
    models.selection.update(position=2)
    assert facts_of(view)["‖k‖, ‖v‖ by layer"] == "not recorded"
    give_pictures(models)
    row = models.pictures.row
    assert row is not None
    models.pictures.put(replace(row, written=stats.of(2)))
    assert facts_of(view)["‖k‖ L0–L5"] == f"L3 {significant(float(stats.key_norm[3, :, 2].mean()), 3)}"
    assert facts_of(view)["‖v‖ L0–L5"] == f"L3 {significant(float(stats.value_norm[3, :, 2].mean()), 3)}"


def test_a_row_of_another_token_is_not_taken_for_this_one(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    give_pictures(models)
    assert "K[3, 1, 13]" in facts_of(view)
    models.selection.update(position=5)
    assert not [label for label in facts_of(view) if label.startswith(("K[", "V["))]
    assert "‖k‖ stored" not in facts_of(view)


def test_attention_of_another_step_is_no_fact_of_this_one(models: Models, show: Callable[..., Any]) -> None:
    show(AttentionView(models))
    view = show(InspectorView(models))
    give_pictures(models)
    assert "attention L3" in facts_of(view)
    models.selection.update(step=STEPS - 1)
    assert "attention L3" not in facts_of(view)


def test_attention_that_several_tokens_share_is_said_to_need_a_closer_look(
    models: Models, show: Callable[..., Any]
) -> None:
    show(AttentionView(models))
    view = show(InspectorView(models))
    give_pictures(models)
    picture = models.pictures.attention
    assert picture is not None
    coarse = replace(picture.request, max_columns=picture.weights.shape[1] // 2)
    models.pictures.put(samples.attention_picture(coarse, picture.query_position + 1))
    assert facts_of(view)["attention L3"] == "one of 2 in a column: zoom in"


def test_attention_is_told_whatever_the_attention_panel_shows(models: Models, show: Callable[..., Any]) -> None:
    """The map is of one head, and its last row is the newest query; sums of queries do not have it."""
    show(AttentionView(models))
    view = show(InspectorView(models))
    give_pictures(models)
    newest = models.pictures.attention
    assert newest is not None
    weights = newest.weights[4:8] / 2
    request = replace(newest.request, lens="attention-map", head=5)
    picture = replace(newest, request=request, weights=weights, first_query=newest.query_position - 3)
    models.pictures.put(picture)
    assert facts_of(view)["attention L3 head 5"] == percent(float(weights[-1, 13]))
    assert not any(fact.bars for fact in view.facts.facts if fact.label.startswith("attention")), "it would be full"
    models.pictures.put(replace(picture, queries_per_row=2, first_query=newest.query_position - 7))
    assert facts_of(view)["attention L3 head 5"] == "one of 2 queries in a row: choose fewer"
    models.pictures.put(replace(newest, request=replace(newest.request, lens="attention-received")))
    assert facts_of(view)["attention L3"] == "not in the picture of attention received"


def test_a_token_that_a_past_step_has_not_reached_is_not_inspected(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    models.selection.update(step=2, position=13)
    assert view.empty.isVisible()


def test_a_bad_value_is_warned_of_at_its_token(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    record = samples.step_record(STEPS + 1)
    position = record.sequences[0].first_position
    bad = (NonFinite("keys", 2, 1, position, 4),)
    models.timeline.append([replace(record, non_finite=bad)])
    models.selection.update(position=position)
    assert "keys L2 h1 · 4" in view.facts.text()
    models.selection.update(position=5)
    assert "L2 h1" not in view.facts.text()


def test_a_token_whose_id_a_file_does_not_say_has_none(models: Models, show: Callable[..., Any]) -> None:
    record = models.timeline.records[0]
    part = record.sequences[0]
    models.timeline.clear()
    nameless = replace(part, token_ids=(-1,) * len(part.token_ids))
    models.timeline.append([replace(record, sequences=(nameless,))])
    models.selection.update(position=2)
    assert facts_of(show(InspectorView(models)))["position · id"] == "2 · not known"


def test_a_row_is_compared_with_the_one_that_was_written(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    give_pictures(models)
    assert "K changed since" not in facts_of(view), "those rows were not captured"
    row = models.pictures.row
    assert row is not None
    off = tuple(keys.copy() for keys in row.keys)
    off[3][1, 5] += 0.25
    off[3][0, 2] += 9.0  # of another head
    models.pictures.put(replace(row, written_keys=off, written_values=row.values))
    facts = facts_of(view)
    assert facts["K changed since"] == "by up to 0.250"
    assert facts["V changed since"] == "as it was written, to the bit"


def test_a_token_that_came_later_is_not_there_yet(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    give_pictures(models)
    count = models.timeline.num_tokens(0, 2)
    models.selection.update(position=count - 1, step=2)
    assert not isinstance(view.read(), str)
    models.selection.update(position=count, step=2)
    assert view.read() == f"Token {count} was not there yet after step 2."
    models.selection.update(position=models.timeline.num_tokens(0), step=None)
    assert view.read() == "Click a token, a column or a page to see everything about it."
