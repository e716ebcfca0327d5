"""The desk that actions are tried at."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog

from app.shell import Shell
from tests.app.actions.desk import Desk
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def desk(shell: Shell, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    (tmp_path / "config.json").write_text("{}")
    chosen = {
        "getExistingDirectory": str(tmp_path),
        "getOpenFileName": (str(tmp_path / "config.json"), ""),
        "getSaveFileName": (str(tmp_path / "picture.png"), ""),
    }
    for name, answer in chosen.items():
        monkeypatch.setattr(QFileDialog, name, lambda *_, answer=answer: answer)
    return Desk(shell, engine, tmp_path)
