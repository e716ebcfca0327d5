"""The report of a comparison: every number, every picture, and no text that a browser would execute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QFileDialog

from app.draw.format import exact
from engine.spec.bookmark import Bookmark, OnHead, OnStep
from engine.wire.comparison import ComparisonScanned
from tests.app import samples
from tests.app.panels.compare.desk import CompareDesk
from tests.app.panels.compare.test_view import DEPARTURE

pytestmark = pytest.mark.one_window

TAGS = frozenset(
    ("html", "head", "meta", "title", "style", "body", "h1", "h2", "dl", "dt", "dd", "figure", "img", "figcaption",
     "div", "table", "thead", "tbody", "tr", "th", "td")
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>\u202e&\x00"


def saved(desk: CompareDesk, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    told: list[str] = []
    desk.view.message.connect(told.append)
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    desk.shell.window.actions_["compare.report"].trigger()
    return (path.read_text("utf-8") if path.is_file() else ""), told


def test_a_report_holds_the_numbers_and_the_pictures(
    compared: CompareDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared.tell(ComparisonScanned(24, DEPARTURE))
    page, told = saved(compared, tmp_path / "report.html", monkeypatch)
    assert told == [f"Report saved to {tmp_path / 'report.html'}"]
    step = samples.compared_step(7)
    assert step.kl is not None
    cells = re.findall(r"<tr><td>7</td>(.*?)</tr>", page)[0]
    numbers = re.findall(r"<td>(.*?)</td>", cells)
    assert numbers[:4] == [str(samples.PROMPT + 7), exact(step.kl), exact(0.7), "same"]
    assert numbers[-4:] == ["3.0", "4.0", "4096", "1024"]
    assert len(re.findall(r"<tr><td>", page)) == 21
    assert page.count("data:image/png;base64,") == 5, "the maps and four plots"
    assert "the same tokens in KIVI-2" in page
    assert "channel 5: 1.0625 against 1.5" in page
    assert "A, B, and A − B: K of every layer and head, at 24 tokens" in page
    assert "sha256:Tales" in page
    assert "kvloupe " in page
    assert "default-src 'none'" in page


def test_texts_of_a_model_are_escaped(desk: CompareDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = samples.comparison_started(2)
    top = tuple(replace(one, text=HOSTILE) for one in started.steps[0].top[0])
    steps = tuple(replace(step, top=(top, top)) for step in started.steps)
    desk.start(replace(started, steps=steps, b=replace(started.b, name=HOSTILE, model=HOSTILE, cache=HOSTILE)))
    page, _ = saved(desk, tmp_path / "report.html", monkeypatch)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert "\x00" not in page
    assert set(re.findall(r"<(\w+)", page)) <= TAGS
    assert not re.findall(r"(?:src|href)=\"(?!data:image/png)", page)


def test_notes_are_a_section_of_it(compared: CompareDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _ = saved(compared, tmp_path / "none.html", monkeypatch)
    assert "<h2>Notes</h2>" not in page
    compared.shell.models.bookmarks.set_all((Bookmark(OnHead(7, 0, 2, 1), HOSTILE), Bookmark(OnStep(9), "look here")))
    page, _ = saved(compared, tmp_path / "report.html", monkeypatch)
    section = page.split("<h2>Notes</h2>")[1].split("<h2>")[0]
    assert re.findall(r"<td>(.*?)</td>", section)[3:] == ["9", "the step itself", "look here"]
    assert re.findall(r"<td>(.*?)</td>", section)[:2] == ["7", "layer 2, kv head 1"]
    assert "<script>" not in section
    assert "&lt;script&gt;" in section


def test_a_report_that_cannot_be_written_is_one_sentence_and_no_file(
    compared: CompareDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.html").mkdir()
    _, told = saved(compared, tmp_path / "folder.html", monkeypatch)
    assert len(told) == 1
    assert str(tmp_path / "folder.html") in told[0]
    assert told[0].endswith(".")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_without_a_comparison_there_is_no_report(desk: CompareDesk) -> None:
    action = desk.shell.window.actions_["compare.report"]
    assert not action.isEnabled()
    assert "compare two runs first" in action.toolTip()
    desk.start()
    assert action.isEnabled()
