"""What views want to be sent: which panels stay where they are, and what is forgotten when."""

from __future__ import annotations

from app.draw.grid import TokenRange
from app.models.selection import Viewport, WantedPictures


def test_a_panel_stays_at_a_place_of_its_own_until_another_model(qapp: object) -> None:
    viewport = Viewport()
    told: list[WantedPictures] = []
    viewport.changed.connect(lambda: told.append(viewport.now))
    assert not viewport.is_pinned("head")
    assert not viewport.is_pinned("attention")
    viewport.update(head_place=(2, 1))
    assert (viewport.is_pinned("head"), viewport.is_pinned("attention")) == (True, False)
    viewport.update(head_place=None, attention_layer=0)
    assert (viewport.is_pinned("head"), viewport.is_pinned("attention")) == (False, True)
    viewport.update(attention_layer=0)
    assert len(told) == 2, "the same again is no news"
    viewport.update(head_place=(2, 1), head_range=TokenRange(1, 2), attention_range=TokenRange(3, 4))
    viewport.forget_places()
    assert (viewport.now.head_place, viewport.now.attention_layer) == (None, None)
    assert viewport.now.head_range == TokenRange(1, 2)
    viewport.show_all()
    assert (viewport.now.head_range, viewport.now.attention_range) == (None, None)
