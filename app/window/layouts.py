"""The named layouts as data: where each panel is, and its share of the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

# A grid is rows from top to bottom; a row is columns from left to right; a column is panels from top to bottom.
Grid = Sequence[Sequence[Sequence[str]]]
# Pages have a place, in front where it is shared, only while the cache has pages.
GRIDS: Mapping[str, Grid] = {
    "learn": ((("prompt", "tokens"), ("wall", "pages", "attention"), ("next_token", "inspector")),),
    "inspect": (
        (("prompt", "tokens"), ("wall", "head"), ("inspector", "next_token")),
        (("attention",), ("timings",), ("bytes",)),
    ),
    "compare": (
        (("prompt", "tokens"), ("compare",)),
        (("compared_steps",),),
    ),
    "servers": ((("prefixes",), ("reuse", "server")),),
    "truth": (
        (("prompt", "tokens"), ("wall", "sweep"), ("what_if", "damage")),
        (("parity",), ("bytes",)),
    ),
}
# Panels that share a place with another one, as tabs behind it.
Tabs = Mapping[str, tuple[str, ...]]
LISTS = ("sequences", "edits", "breakpoints", "notes")
TABS: Mapping[str, Tabs] = {
    "learn": {"attention": (*LISTS, "branches")},
    "inspect": {"bytes": LISTS, "timings": ("pages", "branches")},
    "truth": {"sweep": ("evicted", "bench"), "bytes": ("branches",)},
}
# How much room the panels have: wide from this width on, small below the width and height that a layout needs (pixels).
Room = Literal["small", "usual", "wide"]
WIDE = 2200
NEEDS: Mapping[str, tuple[int, int]] = {"inspect": (1112, 565), "truth": (1120, 580)}
# Layouts that have another grid in such a room. In a wide one attention has a column of its own; in a small one the
# bottom row is tabs, and the panels of Truth, which are large, share two places.
GRIDS_IN: Mapping[tuple[str, Room], Grid] = {
    ("inspect", "wide"): (
        (("prompt", "tokens"), ("wall", "head"), ("attention", "pages"), ("inspector", "next_token")),
        (("timings",), ("bytes",)),
    ),
    ("inspect", "small"): ((("prompt", "tokens"), ("wall", "attention"), ("inspector", "next_token")),),
    ("truth", "small"): ((("prompt", "tokens"), ("what_if", "sweep")),),
}
TABS_IN: Mapping[tuple[str, Room], Tabs] = {
    ("inspect", "wide"): {"bytes": LISTS, "timings": ("branches",)},
    ("inspect", "small"): {
        "wall": ("head", "timings", "bytes"),
        "attention": ("pages", *LISTS, "branches"),
    },
    ("truth", "small"): {"what_if": ("damage", "parity"), "sweep": ("evicted", "bench", "bytes", "branches", "wall")},
}
# Shares of the height of a column; `WEIGHT` for a panel that is not listed.
WEIGHT = 120
WEIGHTS: Mapping[str, int] = {
    "prompt": 150, "tokens": 460, "wall": 310, "head": 310, "inspector": 230, "next_token": 205, "attention": 190,
    "timings": 190, "bytes": 190,
    "what_if": 240, "damage": 300, "sweep": 410, "parity": 190,
    "compare": 600, "prefixes": 600, "reuse": 265, "server": 395, "compared_steps": 190,
}  # fmt: skip
SIDE_COLUMNS = {"prompt": (232, 290, 460), "inspector": (258, 320, 520), "next_token": (258, 320, 520)}
BOTTOM_SHARE = 0.25
BOTTOM_ROW = (190, 210, 400)
# Shares of the width between the side columns; 100 for a panel that is not listed.
WIDTHS: Mapping[str, int] = {"attention": 130, "prefixes": 170}


def room_of(layout: str, width: int, height: int) -> Room:
    """How much room the panels of a layout have in an area of so many pixels."""
    least_width, least_height = NEEDS.get(layout, (0, 0))
    if width < least_width or height < least_height:
        return "small"
    return "wide" if width >= WIDE else "usual"


def grid_of(layout: str, room: Room, *, has_pages: bool) -> Grid:
    grid = GRIDS_IN.get((layout, room), GRIDS[layout])
    return grid if has_pages else tuple(tuple(filter(None, map(_without_pages, row))) for row in grid)


def tabs_of(layout: str, room: Room, *, has_pages: bool) -> Tabs:
    tabs = TABS_IN.get((layout, room), TABS.get(layout, {}))
    return tabs if has_pages else {front: _without_pages(behind) for front, behind in tabs.items()}


def _without_pages(panels: Sequence[str]) -> tuple[str, ...]:
    return tuple(panel for panel in panels if panel != "pages")


def layout_with(panel: str) -> str:
    """Return the layout that shows a panel; if several do, Inspect or else the first one."""
    found = [name for name, grid in GRIDS.items() if any(panel in column for row in grid for column in row)]
    found += [name for name, tabs in TABS.items() if any(panel in behind for behind in tabs.values())]
    return "inspect" if "inspect" in found else found[0]
