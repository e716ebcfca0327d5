"""Where the program stores its settings and sessions."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def sessions_path() -> Path:
    """Return the folder of the sessions' journals, by the conventions of this system."""
    return Path(platformdirs.user_data_dir("kvloupe", appauthor=False)) / "sessions"


def settings_path() -> Path:
    """Return the settings file, by the conventions of this system."""
    return Path(platformdirs.user_config_dir("kvloupe", appauthor=False)) / "settings.ini"
