"""The named layouts as data: where each panel is, and its share of the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# A grid is rows from top to bottom; a row is columns from left to right; a column is panels from top to bottom.
Grid = Sequence[Sequence[Sequence[str]]]
GRIDS: Mapping[str, Grid] = {
    "learn": ((("prompt", "tokens"), ("wall", "pages"), ("next_token", "attention", "inspector")),),
    "inspect": (
        (("prompt", "tokens"), ("wall", "head"), ("inspector", "next_token", "attention")),
        (("pages",), ("timings",), ("bytes",)),
    ),
    "compare": (
        (("prompt", "tokens"), ("compare",)),
        (("compared_steps",),),
    ),
    "truth": (
        (("prompt", "tokens"), ("wall", "sweep"), ("what_if", "damage")),
        (("parity",), ("bytes",)),
    ),
}
# In a window at least this wide (pixels), pages and the newest row have a column of their own.
WIDE = 2200
WIDE_GRIDS: Mapping[str, Grid] = {
    "inspect": (
        (("prompt", "tokens"), ("wall", "head"), ("attention", "pages"), ("inspector", "next_token")),
        (("timings",), ("bytes",)),
    ),
}
# Panels that share a place with another one, as tabs behind it.
TABS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "learn": {"pages": ("sequences", "edits", "stops", "notes", "branches")},
    "inspect": {"pages": ("sequences", "edits", "stops", "notes"), "timings": ("branches",)},
    "truth": {"sweep": ("evicted", "bench"), "bytes": ("branches",)},
}
# Shares of the height of a column.
WEIGHTS: Mapping[str, int] = {
    "prompt": 150, "tokens": 460, "wall": 310, "head": 310, "inspector": 230, "next_token": 205, "attention": 190,
    "timings": 190, "bytes": 190, "pages": 120, "sequences": 120, "edits": 120, "stops": 120, "notes": 120,
    "what_if": 240, "damage": 300, "sweep": 410, "parity": 190,
    "compare": 600, "compared_steps": 190,
}  # fmt: skip
SIDE_COLUMNS = {"prompt": (232, 290, 460), "inspector": (258, 320, 520), "next_token": (258, 320, 520)}
BOTTOM_SHARE = 0.25
BOTTOM_ROW = (190, 210, 400)
# Shares of the width between the side columns; 100 for a panel that is not listed.
WIDTHS: Mapping[str, int] = {"attention": 62}


def layout_with(panel: str) -> str:
    """Return the layout that shows a panel; if several do, Inspect or else the first one."""
    found = [name for name, grid in GRIDS.items() if any(panel in column for row in grid for column in row)]
    found += [name for name, tabs in TABS.items() if any(panel in behind for behind in tabs.values())]
    return "inspect" if "inspect" in found else found[0]
