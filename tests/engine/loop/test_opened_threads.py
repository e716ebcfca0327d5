"""How many threads compute while a file is viewed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.loop.inbox import Activity, Inbox
from engine.loop.reporter import Reporter
from engine.loop.workspace import OpenFile
from engine.snapshot import save_cache
from engine.wire.commands import OpenSnapshot


@pytest.mark.parametrize("has_model", [True, False])
def test_all_cores_but_one_compute_unless_a_model_has_chosen(
    has_model: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_cache([(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))], tmp_path / "a.safetensors")
    before, activity = torch.get_num_threads(), Activity()
    reporter = Reporter(lambda event: None, lambda: None, activity, Inbox(activity, lambda event: None))  # type: ignore[arg-type, return-value]
    monkeypatch.setattr("engine.spec.model.usable_cores", lambda: 4)
    try:
        torch.set_num_threads(2)
        OpenFile(reporter).read(OpenSnapshot(path), has_model=has_model)
        assert torch.get_num_threads() == (2 if has_model else 3)
    finally:
        torch.set_num_threads(before)
