"""An encoder-decoder in the window: source and decoder tokens are shown apart, self-attention and cross-attention as
groups of layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication

from app.models.places import chosen_page, place_of
from app.panels.attention import AttentionView
from app.panels.bytes import LayerBars, layer_bars
from app.panels.head import HeadView
from app.panels.inspector import InspectorView
from app.panels.timings import phase_words
from app.panels.tokens import TokensPanel
from app.panels.wall.view import WallView
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel
from tests.app.driver import Driver
from tests.app.painted import painted
from tests.engine.tiny import write_config

SOURCE, STEPS = 6, 4
CACHE = CacheSpec("paged", page_size=2)


@pytest.fixture
def bart(qapp: QApplication, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(qapp)
    path = write_config("bart", tmp_path)
    driver.loop.send(LoadModel(ModelSpec(f"shape:{path}", dtype="float32", num_threads=1), CACHE))
    driver.until(
        lambda: driver.models.status.now.model is not None and driver.models.status.now.model.geometry.has_encoder
    )
    driver.window.arrange("inspect")
    driver.send("5 6 7 8 9 10")
    driver.steps(STEPS)
    yield driver
    driver.close()


def test_source_and_decoder_are_told_apart_and_cross_layers_have_their_own_names(bart: Driver) -> None:
    panels, models = bart.window.panels, bart.models
    assert models.status.now.cache == CACHE
    wall, head, row = panels["wall"], panels["head"], panels["attention"]
    tokens = panels["tokens"]
    assert isinstance(wall, WallView)
    assert isinstance(head, HeadView)
    assert isinstance(row, AttentionView)
    assert isinstance(tokens, TokensPanel)

    assert tokens.canvas.chips.num_source == SOURCE
    assert [token.token_id for token in tokens.canvas.chips.tokens[: SOURCE + 1]] == [5, 6, 7, 8, 9, 10, 2]
    assert "read by the encoder" in tokens.canvas.chips.words(tokens.canvas.chips.tokens[SOURCE - 1])
    assert "the decoder starts from it" in tokens.canvas.chips.words(tokens.canvas.chips.tokens[SOURCE])

    layout = wall.canvas.layout_now
    assert layout is not None
    assert [label.name for label in layout.labels] == ["", "L0", "L1", "", "X0", "X1"]
    assert layout.labels[3].note == "cross-attention · 6 rows of what the encoder read, written once"
    wall.canvas.set_room(QSize(560, 60))
    assert wall.canvas.layout_now is not None
    assert len({label.x for label in wall.canvas.layout_now.labels}) == 2, "two blocks, and a note does not fit in one"
    assert any("cross-attention" in line and "…" in line for line in painted(wall.canvas))
    assert not wall.canvas.marks.alarms, "absent rows are no warning"

    inspector = panels["inspector"]
    assert isinstance(inspector, InspectorView)
    models.selection.update(layer=0, position=2)
    bart.wait_until_idle(lambda: (piece := models.pictures.row) is not None and piece.request.position == 2)
    facts = {fact.label: fact.text for fact in inspector.facts.facts}
    assert facts["read by"] == "the encoder: its rows are in the cross layers"
    written = next(text for label, text in facts.items() if label.startswith("‖k‖ "))
    assert written == "L0 none", "its rows were never in a layer of self-attention"
    assert "‖k‖ stored" not in facts, "it is stored as it was written"
    assert "surprisal" not in facts

    models.selection.update(position=SOURCE + 3)
    bart.wait_until_idle(lambda: (piece := models.pictures.row) is not None and piece.request.position == SOURCE + 3)
    facts = {fact.label: fact.text for fact in inspector.facts.facts}
    assert facts["page · slot"] == "2 · 5", "the fourth of the decoder's tokens, two a page behind the null page"
    latest = models.timeline.latest
    assert latest is not None
    assert chosen_page(models, latest) == (0, 2)
    assert place_of(models, latest, 0, 3) == SOURCE + 4
    models.selection.update(position=SOURCE - 1)
    assert chosen_page(models, latest) is None, "rows of the source are in no page"
    models.selection.update(layer=3, kv_head=1, position=None)
    bart.wait_until_idle(lambda: (piece := models.pictures.attention) is not None and piece.request.layer == 3)
    bart.wait_until_idle(lambda: (piece := models.pictures.head) is not None and piece.request.layer == 3)
    assert "Cross layer 1 · kv head 1 · K" in head.title_label.text()
    piece = models.pictures.attention
    assert piece is not None
    assert piece.positions.tolist() == list(range(SOURCE))
    assert np.allclose(piece.weights.sum(1), 1, atol=1e-5)
    assert row.state is not None
    assert (row.title_label.text(), row.state.words[:8]) == ("Attention · X1", "where 10")
    for panel in (head, row):
        panel.map.show_range(None)
        assert panel.map.visible_range == (0, SOURCE), "the decoder's tokens have no rows in this layer"
        assert panel.map.is_loaded

    latest, first = models.timeline.latest, models.timeline.records[0]
    assert latest is not None
    assert [bar.name for bar in layer_bars(latest.num_bytes)] == ["L0", "L1", "X0", "X1"]
    bars = bart.window.panels["bytes"].findChild(LayerBars)
    assert bars is not None
    bars.resize(4 * 20, 120)
    words = " ".join(painted(bars))
    assert "‹L0›" in words, "two layers may not both be called 0"
    assert "‹X0›" in words
    cross = [[layer.stored for layer in record.num_bytes.layers[2:]] for record in (first, latest)]
    assert cross == [[2 * SOURCE * 64 * 4] * 2] * 2
    assert [layer.stored for layer in latest.num_bytes.layers[:2]] == [2 * (1 + STEPS) * 64 * 4] * 2
    assert "for the encoder" in phase_words(first)
    assert "for the encoder" not in phase_words(latest)
