"""The Compare panel on the real engine: two modes stepped together; the differences shown are those of the caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication

from app.draw.format import exact
from app.panels.compare.view import CompareView, cache_choice
from engine.wire.comparison import OtherFile
from engine.wire.exporting import Export
from engine.wire.pictures import HeadPicture
from tests.app.driver import Driver


@pytest.fixture
def driver(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp)
    yield driver
    driver.close()


def compare(driver: Driver, name: str) -> CompareView:
    view = driver.window.compare()
    view.choose("head")
    view.opponents.choose(cache_choice(name))
    view.button.click()
    driver.wait_until_idle(lambda: driver.models.comparison.now is not None and driver.models.comparison.num_scanned)
    return view


def test_int8_is_compared_with_exact_rows_step_by_step(driver: Driver) -> None:
    comparison = driver.models.comparison
    driver.send("Once upon a time")
    driver.steps(2)
    view = compare(driver, "int8")
    first = comparison.first
    assert first is not None
    assert view.verdict.text().startswith("Lossy, so it differs: ")
    view.place.click()
    driver.wait_until_idle(
        lambda: comparison.pictures is not None and comparison.pictures.a.request.layer == first.layer
    )
    pictures = comparison.pictures
    assert pictures is not None
    a, b, difference = (picture for picture in (pictures.a, pictures.b, pictures.difference))
    assert isinstance(a, HeadPicture)
    assert isinstance(b, HeadPicture)
    assert isinstance(difference, HeadPicture)
    np.testing.assert_array_equal(a.low - b.low, difference.low)
    assert float(a.low[first.position, first.channel]) == first.number
    assert float(b.low[first.position, first.channel]) == first.other_number
    numbers = first.number, first.other_number, float(difference.low[first.position, first.channel])
    one, other, less = map(exact, numbers)
    assert view.readout.text().startswith(f"A {one}   B {other}   A − B {less}   layer {first.layer} · ")
    before = comparison.num_steps
    driver.steps(1)
    driver.wait_until_idle(lambda: comparison.num_steps == before + 1)
    newest = comparison.at(None)
    assert newest is not None
    assert newest.is_beyond_rounding
    driver.window.compare().end_button.click()
    driver.wait_until_idle(lambda: comparison.now is None)


def test_two_lossless_modes_are_the_same_within_rounding(driver: Driver) -> None:
    driver.send("Once upon a time")
    driver.steps(1)
    view = compare(driver, "paged")
    assert view.verdict.text() == "Within rounding so far: 2 steps"
    assert view.place.words.startswith("All rows of K and V that both hold are the same within rounding: ")


def test_a_run_is_compared_with_the_snapshot_it_was_exported_to(driver: Driver, tmp_path: Path) -> None:
    """Equal to the last bit, as far as the tokens of the file go."""
    driver.send("Once upon a time")
    count = driver.models.timeline.num_tokens(0)
    path, comparison = tmp_path / "cache.safetensors", driver.models.comparison
    driver.loop.send(Export(path, 0))
    driver.until(path.is_file)
    driver.steps(1)
    view = driver.window.compare()
    view.choose("head")
    view.compare_with(OtherFile(path))
    driver.wait_until_idle(lambda: comparison.num_scanned and comparison.pictures is not None)
    assert view.place.words == f"All rows of K and V that both hold are the same within rounding: {count} tokens"
    pictures = comparison.pictures
    assert pictures is not None
    assert isinstance(pictures.difference, HeadPicture)
    assert pictures.difference.low.shape[0] == count
    assert not pictures.difference.low.any()
