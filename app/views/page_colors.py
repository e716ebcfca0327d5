"""The colours of pages and of the sequences that own them, from the theme."""

from __future__ import annotations

from functools import lru_cache

from app.draw.page_grid import NUM_OWNER_COLORS, GridColors
from app.theme import Theme

# Hues as far apart as eight can be, of one lightness each theme, none of them the warm accent of the selection.
_OWNERS = {
    True: ("#4d9be6", "#57b894", "#b58be8", "#d9777f", "#8fb04e", "#55b5c4", "#c98fb9", "#a39a7c"),
    False: ("#3f86d6", "#2f9b74", "#8d6fd8", "#cc5a68", "#6f9430", "#2b94a6", "#b0649b", "#857a55"),
}


@lru_cache(maxsize=8)
def grid_colors(theme: Theme) -> GridColors:
    return GridColors(
        free=theme.page_free,
        used=theme.page_used,
        shared=theme.page_shared,
        cached=theme.page_cached,
        host=theme.page_host if theme.is_dark else "#b98a3c",
        null=theme.faint,
        ink=theme.text if theme.is_dark else theme.panel,
        young=theme.accent,
        owners=_OWNERS[theme.is_dark],
    )


def owner_color(theme: Theme, seq_id: int) -> str:
    """The colour of a sequence, wherever it is named."""
    return _OWNERS[theme.is_dark][seq_id % NUM_OWNER_COLORS]
