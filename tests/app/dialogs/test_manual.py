"""The manual: its pages and their links, the search, F1, and what it does not open."""

from __future__ import annotations

import re

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.actions.dialogs import open_manual
from app.dialogs.help import FIRST, GLOSSARY, MANUAL, Manual, pages, search, slug_of, terms
from app.kit.panel_rows import PANELS
from app.shell import Shell

LINK = re.compile(r"\]\(([^)]*)\)")


def opened(shell: Shell) -> Manual:
    QApplication.processEvents()
    return shell.window.findChildren(Manual)[-1]


def test_every_panel_has_a_page_and_every_file_is_one() -> None:
    assert list(pages())[:2] == [FIRST, GLOSSARY]
    assert {*PANELS, "timeline"} <= set(pages())
    assert {path.stem for path in MANUAL.glob("*.md")} <= set(pages())
    assert all(page.title and page.text.startswith("# ") for page in pages().values())


@pytest.mark.parametrize("name", list(pages()))
def test_every_link_of_a_page_leads_to_a_page_or_a_section(name: str) -> None:
    for link in LINK.findall(pages()[name].text):
        target, _, section = link.partition("#")
        if target.startswith("../"):  # a file beside the manual, for readers on the disk
            assert (MANUAL / target).is_file(), link
            continue
        page = pages()[target.removesuffix(".md") or name]
        assert not section or slug_of(section) in map(slug_of, page.sections), link


def test_the_search_puts_titles_before_headings_before_texts() -> None:
    hits = search("sink")
    assert (hits[0].page, hits[0].section) == (GLOSSARY, "Attention sink")
    assert FIRST in [hit.page for hit in hits], "it says so in its text"
    assert search("inspector")[0].page == "inspector"
    assert [hit.page for hit in search("")] == list(pages())
    assert search("quidditch") == []


def test_a_word_of_the_glossary_is_scrolled_to(shell: Shell) -> None:
    open_manual(shell, f"{GLOSSARY}#{terms()[-1]}")
    manual = opened(shell)
    assert manual.page == GLOSSARY
    assert manual.text.verticalScrollBar().value() > 0
    manual.close()


def test_links_go_to_pages_and_back_and_nowhere_else(shell: Shell, qtbot: QtBot) -> None:
    open_manual(shell, FIRST)
    manual = opened(shell)
    for link in ("https://example.org/wall.md", "file:///etc/hosts", "nothing.md", "../README.md"):
        manual.text.anchorClicked.emit(QUrl(link))
        assert manual.page == FIRST, link
    manual.text.anchorClicked.emit(QUrl("glossary.md#evict"))
    assert manual.page == GLOSSARY
    qtbot.keyClick(manual, Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    assert manual.page == FIRST
    kinds = QTextDocument.ResourceType
    assert manual.text.loadResource(kinds.ImageResource.value, QUrl("file:///etc/hosts")) is None
    manual.line.setText("inspector")
    qtbot.keyClick(manual.line, Qt.Key.Key_Return)
    assert manual.page == "inspector"
    manual.line.setText("quidditch")
    assert manual.nothing.isVisible()
    manual.close()


def test_html_in_a_page_stays_text(shell: Shell) -> None:
    open_manual(shell, FIRST)
    manual = opened(shell)
    manual.text.show_page("# A\n\n<b>bold</b> <img src='x.png'>")
    assert "<b>bold</b>" in manual.text.toPlainText()
    manual.close()


def test_f1_opens_the_page_of_the_panel_that_has_the_focus(running: Shell) -> None:
    for name, place in (("wall", running.window.wall), ("timeline", running.window.timeline)):
        place.setFocus()
        QApplication.processEvents()
        running.window.actions_["help.panel"].trigger()
        assert opened(running).page == name
        running.window.activateWindow()
    opened(running).close()
