"""The window that edits by hand are made in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QDialog, QMenu

from app.shell import Shell
from tests.app.conftest import turn


@pytest.fixture
def desk(running: Shell) -> Iterator[Shell]:
    """Twenty steps: 24 tokens are in the cache; layer 2 and kv head 1 are selected."""
    running.models.selection.update(layer=2, kv_head=1)
    turn(running)
    yield running
    for widget in QApplication.topLevelWidgets():
        if isinstance(widget, QDialog | QMenu):
            widget.close()
