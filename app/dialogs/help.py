"""What the Help menu opens: the manual, the list of keys, all warnings in words, and what this program is.

The manual's pages are Markdown files, and a short page for each panel that has none yet. Its window opens nothing else:
links lead to pages alone, and pages load no pictures and no HTML.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from PySide6.QtCore import Qt, QUrl, qVersion
from PySide6.QtGui import QFont, QKeySequence, QShortcut, QTextBlock, QTextCursor, QTextDocument
from PySide6.QtWidgets import (
    QDialogButtonBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QTextBrowser,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from app.control.actions import Action, Actions, declared_in, native
from app.kit.dialog import Dialog, heading
from app.kit.panel_rows import PANELS, TIMELINE
from app.kit.theme import font_fixed, font_text
from app.kit.widgets import column, plain_label, push_button, row
from engine.spec.model import RESOURCES

WIDTH, HEIGHT, LIST_WIDTH, MARGIN = 940, 680, 268, 22
HIT = Qt.ItemDataRole.UserRole
NOTHING = "No page has these words: type fewer, or other ones."


class PageText(QTextBrowser):
    """Shows a page and loads nothing that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.setOpenLinks(False)
        self.setObjectName("page")
        self.setAccessibleName("Page")
        self.setFont(font_text(13.5))

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        return None

    def show_page(self, text: str) -> None:
        document = self.document()
        document.setDefaultFont(self.font())
        document.setMarkdown(text, QTextDocument.MarkdownFeature.MarkdownNoHTML | _DIALECT)
        document.setDocumentMargin(MARGIN)
        self.moveCursor(QTextCursor.MoveOperation.Start)

    def scroll_to(self, section: str) -> None:
        """Bring a heading to the top."""
        block = self.document().begin()
        while block.isValid() and not _is_heading(block, section):
            block = block.next()
        if block.isValid():
            top = self.document().documentLayout().blockBoundingRect(block).top()
            self.verticalScrollBar().setValue(int(top) - MARGIN // 2)


_DIALECT = QTextDocument.MarkdownFeature.MarkdownDialectGitHub


def _is_heading(block: QTextBlock, section: str) -> bool:
    return block.blockFormat().headingLevel() > 1 and slug_of(block.text()) == slug_of(section)


class Manual(Dialog):
    """Lists the pages, searches them, and shows one."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Manual", parent)
        self._here = ("", "")  # the name of the page that is read, and its section
        self._before: list[tuple[str, str]] = []
        self.line = QLineEdit()
        self.line.setPlaceholderText("Search the manual")
        self.line.setAccessibleName("Search the manual")
        self.list = QListWidget()
        self.list.setAccessibleName("Pages")
        self.list.setFixedWidth(LIST_WIDTH)
        self.nothing = plain_label(NOTHING, role="muted", wraps=True)
        self.text = PageText()
        self._back = push_button("Back", self._on_back, "The page before (Alt+Left)", is_small=False)
        self._back.setAutoDefault(False)  # Enter goes to what was found
        QShortcut(QKeySequence("Alt+Left"), self, self._on_back)
        left = column(self.line, (self.list, 1), self.nothing, self._back, spacing=8)
        row(left, (self.text, 1), spacing=12, margins=(14, 14, 14, 14), on=self)
        room = self.screen().availableSize()
        self.resize(min(WIDTH, room.width() - 40), min(HEIGHT, room.height() - 60))
        self.line.textChanged.connect(self._fill)
        self.line.returnPressed.connect(self._on_entered)
        self.list.currentItemChanged.connect(self._on_chosen)
        self.text.anchorClicked.connect(self._on_link)
        self._fill()

    def first_field(self) -> QWidget:
        return self.line

    @property
    def page(self) -> str:
        """The name of the page that is read."""
        return self._here[0]

    def open_page(self, where: str) -> None:
        """Show a page, or its section after a #, and the window; the first page if there is none of that name."""
        name, _, section = where.partition("#")
        self.line.clear()
        self._go(name if name in pages() else FIRST, section)
        self.show()
        self.raise_()
        self.activateWindow()
        self.text.scroll_to(section)  # its place is known only in a window that is shown

    def _go(self, name: str, section: str = "") -> None:
        if self._here[0] and self._here != (name, section):
            self._before.append(self._here)
        self._show(name, section)

    def _show(self, name: str, section: str) -> None:
        page = pages().get(name)
        if page is None:
            return
        if name != self._here[0]:
            self.text.show_page(page.text)
        self._here = name, section
        self.setWindowTitle(f"{page.title} · Manual")
        self.text.scroll_to(section) if section else self.text.verticalScrollBar().setValue(0)
        self._back.setEnabled(bool(self._before))
        self._mark()

    def _mark(self) -> None:
        """Mark the page in the list, without going anywhere."""
        items = [self.list.item(index) for index in range(self.list.count())]
        hits: list[tuple[Hit, QListWidgetItem]] = [(item.data(HIT), item) for item in items]
        fits = [
            item for hit, item in hits if (hit.page, slug_of(hit.section)) == (self._here[0], slug_of(self._here[1]))
        ]
        fits += [item for hit, item in hits if hit.page == self._here[0]]
        self.list.blockSignals(True)
        self.list.setCurrentRow(self.list.row(fits[0]) if fits else -1)
        self.list.blockSignals(False)

    def _fill(self) -> None:
        hits = search(self.line.text())
        self.list.blockSignals(True)
        self.list.clear()
        for hit in hits:
            item = QListWidgetItem(hit.words, self.list)
            item.setData(HIT, hit)
            item.setToolTip(hit.words)
        self.list.blockSignals(False)
        self.nothing.setVisible(not hits)
        self._mark()

    # ---- events --------------------------------------------------------------------------------------------------

    def _on_entered(self) -> None:
        """Go to the best page found."""
        if self.list.count():
            self._on_chosen(self.list.item(0))

    def _on_chosen(self, item: QListWidgetItem | None, _before: QListWidgetItem | None = None) -> None:
        if item is not None:
            hit: Hit = item.data(HIT)
            self._go(hit.page, hit.section)

    def _on_link(self, link: QUrl) -> None:
        """Follow a link to a page or a section; any other link leads nowhere."""
        name = link.path().removesuffix(".md") or self._here[0]
        if not link.scheme() and not link.host() and name in pages():
            self._go(name, link.fragment())

    def _on_back(self) -> None:
        if self._before:
            self._show(*self._before.pop())


MANUAL = RESOURCES / "manual"
FIRST, GLOSSARY = "first-five-minutes", "glossary"
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*$", re.MULTILINE)
_FALLBACK = "# {0}\n\n{1}\n\nWhat its words mean is in the [Glossary]({2}.md).\n"


class Page(Struct, frozen=True):
    """A page: its name (of its file without the ending, or of its panel), its title, and its text in Markdown."""

    name: str
    title: str
    text: str

    @property
    def sections(self) -> tuple[str, ...]:
        """The headings below the title, in their order."""
        return tuple(heading for marks, heading in _HEADING.findall(self.text) if len(marks) > 1)


class Hit(Struct, frozen=True):
    """A page, or one of its sections, that a search found."""

    page: str
    section: str
    words: str


@cache
def pages() -> Mapping[str, Page]:
    """Every page by its name: the introduction, the glossary, the panels in the order of the window, and the rest."""
    names = [FIRST, GLOSSARY, *_PANELS, *sorted(path.stem for path in MANUAL.glob("*.md"))]
    return {name: page for name in dict.fromkeys(names) if (page := _read(name)) is not None}


_PANELS = {**PANELS, "timeline": TIMELINE}


def _read(name: str) -> Page | None:
    path, row = MANUAL / f"{name}.md", _PANELS.get(name)
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        title = next((heading for marks, heading in _HEADING.findall(text) if len(marks) == 1), name)
        return Page(name, title, text)
    return None if row is None else Page(name, row.title, _FALLBACK.format(row.title, row.says, GLOSSARY))


def terms() -> Sequence[str]:
    """The words that the glossary explains."""
    page = pages().get(GLOSSARY)
    return () if page is None else tuple(h for marks, h in _HEADING.findall(page.text) if len(marks) == 3)


def search(words: str) -> list[Hit]:
    """The pages that contain every one of the words, those with them in the title first, then sections with them in
    the heading, then all others. Without words: every page."""
    sought = words.lower().split()
    ranked = sorted(_ranked(sought), key=_rank_of)
    return [hit for _, hit in ranked]


def _ranked(sought: Sequence[str]) -> Iterator[tuple[int, Hit]]:
    for page in pages().values():
        if _has(page.title, sought):
            yield 0, Hit(page.name, "", page.title)
        elif _has(page.text, sought):
            yield 2, Hit(page.name, "", page.title)
        if sought:
            for section in page.sections:
                if _has(section, sought):
                    yield 1, Hit(page.name, section, f"{page.title} · {section}")


def _rank_of(ranked: tuple[int, Hit]) -> int:
    return ranked[0]


def _has(text: str, sought: Sequence[str]) -> bool:
    small = text.lower()
    return all(word in small for word in sought)


def slug_of(heading: str) -> str:
    """A heading as links name it: `Attention sink` is `attention-sink`."""
    return "-".join(re.findall(r"\w+", heading.lower()))


class AboutDialog(Dialog):
    """Show the version, the licence, and the versions of Python, Qt and the main packages."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("About KV Loupe", parent)
        name = plain_label(f"KV Loupe {version('kvloupe')}".strip(), font_text(17, QFont.Weight.DemiBold))
        about = (
            "Look into the KV cache of a language model, step by step.",
            _versions(),
            "Apache License 2.0. Typefaces Inter and JetBrains Mono, SIL Open Font License 1.1.",
            "It sends nothing anywhere, and downloads nothing that you did not allow.",
        )
        facts = plain_label("\n\n".join(about), wraps=True, can_select=True)
        facts.setFixedWidth(420)
        _lay_out(self, name, facts)


class WarningsDialog(Dialog):
    """Say each warning as a sentence."""

    def __init__(self, warnings: Sequence[str], parent: QWidget) -> None:
        super().__init__("Warnings", parent)
        self.setMinimumWidth(460)
        told = warnings or ("There are no warnings.",)
        _lay_out(self, *(plain_label(words, wraps=True, can_select=True) for words in told))


def _lay_out(dialog: Dialog, *labels: QLabel) -> None:
    """Lay the labels out above a Close button."""
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    buttons.rejected.connect(dialog.reject)
    column(*labels, buttons, spacing=10, margins=(22, 20, 22, 16), on=dialog)


def version(distribution: str) -> str:
    """Return the installed version of a package without importing it."""
    from importlib import metadata  # imports the mail parser, so only when it is needed

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> str:
    parts = [f"Python {platform.python_version()}", f"Qt {qVersion()}"]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors", "numpy")]
    return " · ".join(parts)


class KeysDialog(Dialog):
    """List the actions and their keys."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__("Keys", parent)
        tree = QTreeWidget()
        tree.setColumnCount(3)
        tree.setHeaderLabels(["Action", "Key", "Where"])
        tree.setRootIsDecorated(False)
        tree.setAccessibleName("Keys")
        for title, groups in actions.menus.items():
            _add_menu(tree, title, [action for action in declared_in({title: groups}) if action.key], actions)
        tree.expandAll()
        tree.header().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        tree.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        column(tree, margins=(14, 14, 14, 14), on=self)
        self.resize(640, 620)


def _add_menu(tree: QTreeWidget, title: str, declared: Sequence[Action], actions: Actions) -> None:
    if not declared:
        return
    above = heading(tree, title.replace("&", ""))
    where = {
        "window": "anywhere",
        "picture": "in a picture",
        "rows": "in a picture, on tokens",
        "timeline": "on the timeline",
    }
    for action in declared:
        name = actions.full_name(action.name).removeprefix(f"{above.text(0)}: ")  # one in a submenu keeps its subject
        item = QTreeWidgetItem([name, native(action.key), where[action.where]])
        item.setFont(1, font_fixed())
        item.setToolTip(0, action.tip)
        above.addChild(item)
