"""The one selection: what of it goes when something else of it is named."""

from __future__ import annotations

import pytest
from msgspec import structs
from PySide6.QtWidgets import QApplication

from app.models import Selected, Selection

HERE = Selected(step=3, seq_id=0, layer=2, kv_head=1, position=9, page=5, pool=1, channel=12)


@pytest.mark.parametrize(
    ("changes", "page", "channel"),
    [
        ({"layer": 4}, 5, None),
        ({"kv_head": 0}, 5, None),
        ({"lens": "values"}, 5, None),
        ({"seq_id": 1}, None, None),
        ({"position": 8}, None, 12),
        ({"step": None}, 5, 12),
        ({"change": True}, 5, 12),
        ({"seq_id": 1, "page": 7, "channel": 3}, 7, 3),
        ({"layer": 2, "position": 9}, None, None),  # the same ones, named anew
    ],
)
def test_a_page_ends_with_its_token_and_a_channel_with_its_head(
    qapp: QApplication, changes: dict[str, object], page: int | None, channel: int | None
) -> None:
    selection = Selection()
    selection.update(**structs.asdict(HERE))
    heard: list[tuple[Selected, Selected]] = []
    selection.changed.connect(lambda old, new: heard.append((old, new)))
    selection.update(**changes)
    assert (selection.now.page, selection.now.channel) == (page, channel)
    assert heard == [(HERE, selection.now)]
    selection.update(**changes)
    assert len(heard) == 1
