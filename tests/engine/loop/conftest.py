"""Loops with a tiny model, and with one whose prompts take a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.loop.driver import Driver, shape_of
from tests.engine.tiny import write_config


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    yield driver.loaded()
    assert driver.loop.close(10.0)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Driver]:
    """A model whose chunk takes long enough to be caught in the middle of a prefill."""
    driver = Driver(shape_of(tmp_path, max_position_embeddings=8192, num_hidden_layers=8, hidden_size=256))
    yield driver.loaded()
    assert driver.loop.close(10.0)
