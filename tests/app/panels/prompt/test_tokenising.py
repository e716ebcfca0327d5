"""A paste of megabytes on the real engine: its tokenising is named, can be stopped at once, and costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QMimeData
from PySide6.QtWidgets import QApplication

from tests.app.driver import Driver
from tests.app.found import texts_in

NAMED = "Tokenising 2,000,000 characters"
LONG = {
    "sentences": ("Once upon a time there was a little dragon. " * 50_000)[:2_000_000],
    "one line without a space": "a" * 2_000_000,
}


@pytest.fixture(scope="module")
def driver(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp)
    driver.send("Once upon a time")
    yield driver
    driver.close()


def paste(driver: Driver, text: str) -> None:
    data = QMimeData()
    data.setText(text)
    driver.window.prompt.edit.set_text("")
    driver.window.prompt.edit.insertFromMimeData(data)


@pytest.mark.parametrize("kind", LONG)
def test_it_is_named_and_stopped_at_once_and_nothing_changes(driver: Driver, kind: str) -> None:
    window, models = driver.window, driver.models
    actions, before = window.actions_, models.status.now
    assert before is not None
    paste(driver, LONG[kind])
    actions["prompt.send"].trigger()
    driver.until(lambda: models.status.now.work is not None)
    assert models.status.now.work is not None
    assert models.status.now.work.label == NAMED
    assert any(told.startswith(NAMED) for told in texts_in(window.status))
    assert actions["run.cancel"].isEnabled()
    actions["run.cancel"].trigger()
    driver.wait_until_idle(lambda: models.status.failure, may_fail=True)
    assert models.status.failure == "The prompt was not taken, because it was stopped: send it again."
    assert models.status.now.work is None
    assert models.status.now.sequences == before.sequences
    assert window.prompt.draft == LONG[kind], "the draft is where it was"
    models.status.fail("")

    steps = len(models.timeline)
    actions["run.step"].trigger()  # the tokenizer that was given up may still be at it
    driver.wait_until_idle(lambda: len(models.timeline) == steps + 1)


def test_a_text_that_is_too_long_is_refused_whole(driver: Driver) -> None:
    """Nothing of it is cut off to make it fit."""
    paste(driver, LONG["sentences"][:500_000])
    driver.window.actions_["prompt.send"].trigger()
    driver.until(lambda: driver.models.status.failure, may_fail=True)
    assert "1,024" in driver.models.status.failure
    assert driver.window.prompt.draft == LONG["sentences"][:500_000]
    driver.models.status.fail("")
