"""The colours of sequences, wherever they are named: one for each, from the theme."""

from __future__ import annotations

from app.kit.theme import Theme

# Hues as far apart as eight can be, of one lightness each theme, none of them the warm accent of the selection.
NUM_OWNER_COLORS = 8

_OWNERS = {
    True: ("#4d9be6", "#57b894", "#b58be8", "#d9777f", "#8fb04e", "#55b5c4", "#c98fb9", "#a39a7c"),
    False: ("#3f86d6", "#2f9b74", "#8d6fd8", "#cc5a68", "#6f9430", "#2b94a6", "#b0649b", "#857a55"),
}


def owner_colors(theme: Theme) -> tuple[str, ...]:
    return _OWNERS[theme.is_dark]


def owner_color(theme: Theme, seq_id: int) -> str:
    """The colour of a sequence, wherever it is named."""
    return owner_colors(theme)[seq_id % NUM_OWNER_COLORS]
