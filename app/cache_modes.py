"""The cache modes that the window offers."""

from __future__ import annotations

from engine.config import PRESETS, Preset, cache_preset
from engine.errors import InputError

# Lossy modes drop rows or rewrite them, so a past step is no prefix of the present one and a hole is no NaN. The
# pictures do not tell these apart yet, and a picture here never lies: until they do, such modes run from the command
# line only.
MODES: dict[str, Preset] = {name: preset for name, preset in PRESETS.items() if preset.lossless}


def mode(name: str) -> Preset:
    """The mode of that name; raises `InputError` for names that do not exist and for modes that are not drawn."""
    preset = cache_preset(name)
    if name not in MODES:
        raise InputError(f"The window does not draw the lossy cache '{name}' yet: run it with kvloupe-engine.")
    return preset
