"""Every number of the panels that list numbers says, where the mouse rests on it, what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QApplication

from app.kit.provenance import shown_record
from app.kit.widgets import ElidedLabel
from app.panels.bytes import layer_cells, ledger_lines
from app.panels.inspector import token_facts
from app.panels.sequences import HEADS as SEQUENCE_HEADS
from app.panels.tokens import TokensPanel
from app.panels.wall.view import WallView
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from tests.app.panels.desk import Desk
from tests.app.panels.recorded import give_pictures, recorded_models


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec("paged"),
        CacheSpec(codec=uniform("kivi-4", residual=32)),
        CacheSpec(retention=RetentionSpec("h2o", budget=12)),
    ],
    ids=["paged", "kivi", "h2o"],
)
def test_lines_of_inspector_and_bytes(desk: Desk, spec: CacheSpec) -> None:
    desk.run(spec, steps=8)
    models = desk.models
    record = shown_record(models)
    assert record is not None
    for token in models.timeline.tokens(models.selection.now.seq_id)[:4]:
        facts = token_facts(models, record, token)
        assert len(facts) >= 4
        assert [fact.label for fact in facts if not fact.tip] == []
    assert [line.label for line in ledger_lines(record.num_bytes, is_shared=True) if not line.tip] == []
    heads, _, _ = layer_cells(record.num_bytes)
    assert [head.text for head in heads if not head.tip] == []


def test_columns_of_sequences() -> None:
    assert all(head.tip for head in SEQUENCE_HEADS)


@pytest.mark.parametrize(("view", "words"), [(TokensPanel, "surprisal"), (WallView, "largest magnitude")])
def test_words_beside_the_titles(qapp: QApplication, show: Callable[..., Any], view: type, words: str) -> None:
    models = recorded_models()
    shown = show(view(models))
    give_pictures(models)
    (detail,) = (
        label for label in shown.findChildren(ElidedLabel) if label.text() and label.text() == shown.detail.text()
    )
    where = detail.rect().center().toPointF()
    QApplication.sendEvent(detail, QEnterEvent(where, where, where))
    assert words in detail.toolTip()
