"""Bookmarks travel in a snapshot: written with it, checked, and told to whoever opens it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.errors import InputError
from engine.snapshot.format import check
from engine.snapshot.read import SnapshotFile
from engine.spec.bookmark import Bookmark, OnHead, OnPage, OnStep, OnToken
from engine.wire.commands import OpenSnapshot, Step
from engine.wire.events import SessionOpened
from engine.wire.exporting import Export, Exported
from engine.wire.records import StepRecord
from tests.engine.loop.conftest import driver  # noqa: F401  # a fixture
from tests.engine.loop.driver import Driver, prompt

MARKS = (
    Bookmark(OnStep(1), "here it turns\n<b>bold?</b>"),
    Bookmark(OnToken(0, 0, 3), ""),
    Bookmark(OnPage(2, 0, 1), "a page"),
    Bookmark(OnHead(2, 0, 1, 1), "a sink head"),
)


def test_they_come_back_with_the_file_that_is_opened(driver: Driver, tmp_path: Path) -> None:  # noqa: F811
    driver.send(prompt(9), Step(3))
    driver.wait_for(StepRecord, 3)
    driver.rest()
    path = tmp_path / "a.safetensors"
    driver.send(Export(path, 0, records=tuple(driver.of(StepRecord)), bookmarks=MARKS))
    driver.wait_for(Exported)
    driver.forget()
    driver.send(OpenSnapshot(path))
    assert driver.wait_for(SessionOpened).bookmarks == MARKS
    with SnapshotFile(path) as file:
        assert file.manifest.bookmarks == MARKS


def test_two_for_one_place_are_damage(driver: Driver, tmp_path: Path) -> None:  # noqa: F811
    driver.send(prompt(9), Step(1))
    driver.wait_for(StepRecord, 1)
    driver.rest()
    path = tmp_path / "a.safetensors"
    driver.send(Export(path, 0))
    driver.wait_for(Exported)
    with SnapshotFile(path) as file:
        twice = replace(file.manifest, bookmarks=(Bookmark(OnStep(1), "a"), Bookmark(OnStep(1), "b")))
        with pytest.raises(InputError, match="same place"):
            check(twice, file.entries)
