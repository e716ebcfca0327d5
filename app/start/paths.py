"""Where the program keeps what it remembers."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def sessions_path() -> Path:
    """The folder of journals of sessions, of this system's conventions."""
    return Path(platformdirs.user_data_dir("kvloupe", appauthor=False)) / "sessions"


def settings_path() -> Path:
    """The settings file of this system's conventions."""
    return Path(platformdirs.user_config_dir("kvloupe", appauthor=False)) / "settings.ini"
