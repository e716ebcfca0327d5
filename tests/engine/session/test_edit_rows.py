"""Rows edited by hand in all modes: what attention reads then, to the bit, and that whoever shares them keeps his."""

from __future__ import annotations

import pytest
import torch

from engine.spec.edit import Rows, Scale, Zero
from engine.spec.presets import PRESETS
from tests.engine.session.edited import edit_copy, rows_of, running

MODES = [name for name in PRESETS if name != "none"]
SPAN = range(2, 5)


def places(session, seq_id, layer):  # type: ignore[no-untyped-def]
    """Positions `[H_kv, S]` of the rows held."""
    cache = session.cache_of(seq_id)
    return cache.held_positions(layer).expand(2, -1)


def held_span(session, seq_id) -> Rows:  # type: ignore[no-untyped-def]
    """Rows of layer 1, head 1 that are held, in one run."""
    held = places(session, seq_id, 1)[1].tolist()
    start = next(p for p in held if p + 1 in held and p + 2 in held)
    return Rows(start, start + 3, (1,), (1,))


@pytest.mark.parametrize("mode", MODES)
def test_zeroed_rows_are_read_as_zeros_and_no_other_number_changes(mode: str) -> None:
    session, seq_id = running(PRESETS[mode].spec)
    rows = held_span(session, seq_id)
    before = rows_of(session.live.get(seq_id))
    live, told = edit_copy(session, Zero(seq_id, rows))
    after = rows_of(live)
    slots = [places(session, seq_id, 1)[1].tolist().index(p) for p in range(rows.start, rows.stop)]
    for layer, parts in after.items():
        for number, part in enumerate(parts):
            expected = before[layer][number].clone()
            if layer == 1:
                changed = part[1, slots]
                assert torch.equal(changed, torch.zeros_like(changed)) or mode.startswith("kivi")
                expected[1, slots] = part[1, slots]
            if not mode.startswith("kivi"):
                assert torch.equal(part, expected), (layer, number)
    assert told.kl is not None
    assert told.kl > 0
    # the session that the copy was made of has not changed
    for layer, parts in rows_of(session.live.get(seq_id)).items():
        assert all(torch.equal(a, b) for a, b in zip(parts, before[layer], strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_that_changes_nothing_changes_no_bit(mode: str) -> None:
    session, seq_id = running(PRESETS[mode].spec)
    rows = held_span(session, seq_id)
    before = rows_of(session.live.get(seq_id))
    live, told = edit_copy(session, Scale(seq_id, rows, 1.0))
    for layer, parts in rows_of(live).items():
        assert all(torch.equal(a, b) for a, b in zip(parts, before[layer], strict=True))
    assert told.kl == 0.0
    assert torch.equal(live.logits, session.logits(seq_id))  # type: ignore[arg-type]
