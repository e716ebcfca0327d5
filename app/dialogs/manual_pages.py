"""The pages of the manual: Markdown files, and a short page for each panel that has none yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct

from app.kit.panel_rows import PANELS, TIMELINE
from app.kit.style import RESOURCES

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

    def section(self, slug: str) -> str:
        """The heading whose slug this is; empty if there is none."""
        return next((heading for heading in self.sections if slug_of(heading) == slug_of(slug)), "")


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
