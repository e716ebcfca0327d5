"""A recurrent model in the window: the state of each layer on the wall, and one part of it in the head panel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from app.panels.attention import AttentionView
from app.panels.bytes import BytesView
from app.panels.head import HeadView
from app.panels.inspector import InspectorView
from app.panels.wall.view import WallView, state_at, state_words
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel
from tests.app.driver import Driver
from tests.engine.tiny import write_config


@pytest.fixture
def mamba(qapp: QApplication, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(qapp)
    path = write_config("mamba", tmp_path)
    driver.loop.send(LoadModel(ModelSpec(f"shape:{path}", dtype="float32", num_threads=1), CacheSpec()))
    driver.until(
        lambda: driver.models.status.now.model is not None and not driver.models.status.now.model.geometry.num_heads
    )
    driver.window.arrange("inspect")
    driver.send("5 6 7 8 9 10")
    driver.steps(2)
    yield driver
    driver.close()


def test_states_have_thumbnails_of_their_own_and_a_part_fills_the_head_panel(mamba: Driver) -> None:
    wall, head = mamba.window.panels["wall"], mamba.window.panels["head"]
    assert isinstance(wall, WallView)
    assert isinstance(head, HeadView)
    layout, piece = wall.canvas.layout_now, mamba.models.pictures.wall
    assert layout is not None
    assert piece is not None
    assert [label.name for label in layout.labels] == ["L0 state", "L1 state"]
    shown = [state_at(piece, small) for small in layout.pictures]
    assert [(one.layer, one.name) for one in shown if one is not None] == [
        (0, "convolution"), (0, "recurrence"), (1, "convolution"), (1, "recurrence"),
    ]  # fmt: skip
    assert shown[1] is not None
    assert state_words(shown[1]).startswith("state, fixed size · recurrence [1, 96, 8] float32 · max ")
    assert not wall.canvas.image.isNull()

    inspector, row, ledger = (mamba.window.panels[name] for name in ("inspector", "attention", "bytes"))
    assert isinstance(inspector, InspectorView)
    assert isinstance(row, AttentionView)
    assert isinstance(ledger, BytesView)
    facts = {fact.label: fact.text for fact in inspector.facts.facts}
    assert facts["‖k‖, ‖v‖ by layer"] == "none: layers keep a state"
    assert row.empty_text == "This model has no attention: its layers keep a state instead of rows."
    pages = mamba.window.panels["pages"]
    assert not pages.isVisible(), "there are no pages"
    assert "H_kv" not in ledger.facts.text(), "a state has no heads and no tokens to multiply by"
    assert ledger.facts.text().startswith("formula")

    mamba.models.selection.update(layer=1, kv_head=1)
    mamba.wait_until_idle(lambda: (seen := mamba.models.pictures.head) is not None and seen.request.kv_head == 1)
    found = mamba.models.pictures.head
    assert found is not None
    assert found.state_shape == (1, 96, 8)
    assert head.title_label.text() == "Layer 1 · recurrence"
