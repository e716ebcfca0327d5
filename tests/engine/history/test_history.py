"""The logs of a history, whose bytes have one bound."""

from __future__ import annotations

import pytest
import torch

import engine.history.history
from engine.history.history import History
from engine.model.batch import Surprisal

HIDDEN = torch.zeros(1, 65, 16)  # of 64 tokens whose successors are known: 4 KiB
ROWS = torch.zeros(4, 64)  # 1 KiB


def test_attention_rows_leave_the_room_that_surprisals_take_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.history.history, "ATTENTION_LOG_BYTES", 8 * ROWS.nbytes)
    history, surprisal = History(), Surprisal(range(65), 10**9, may_wait=True)
    surprisal.read(HIDDEN, lambda rows: torch.zeros(*rows.shape[:2], 100))
    history.surprisal.put(0, 0, 1, surprisal)
    kept = []
    for step in range(20):
        if step == 10:
            history.surprisal.clear()
        history.next_step = step
        history.log(0, torch.zeros(8), {0: ROWS})
        kept.append(history.attention.num_bytes // ROWS.nbytes)
    assert kept == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8]


def test_of_the_newest_step_the_rows_of_every_sequence_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.history.history, "ATTENTION_LOG_BYTES", 2 * ROWS.nbytes)
    history = History()
    for step in range(3):
        history.next_step = step
        for seq_id in range(3):
            history.log(seq_id, torch.zeros(8), {0: ROWS})
        found = {(at, seq_id) for at in range(3) for seq_id in range(3) if history.attention.get((at, seq_id))}
        assert found == {(step, seq_id) for seq_id in range(3)}
