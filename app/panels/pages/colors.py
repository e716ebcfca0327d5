"""The colours of the page grid, from the theme."""

from __future__ import annotations

from functools import lru_cache

from app.kit.owner_colors import owner_colors
from app.kit.theme import Theme
from app.panels.pages.draw import GridColors


@lru_cache(maxsize=8)
def grid_colors(theme: Theme) -> GridColors:
    return GridColors(
        free=theme.page_free,
        used=theme.page_used,
        shared=theme.page_shared,
        cached=theme.page_cached,
        kept=theme.page_kept,
        host=theme.page_host if theme.is_dark else "#b98a3c",
        null=theme.faint,
        ink=theme.text if theme.is_dark else theme.panel,
        young=theme.accent,
        owners=owner_colors(theme),
    )
