"""Lists folders for a window on another machine."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from engine.errors import InputError
from engine.wire.events import FolderListed

MOST = 5_000


def listed(path: str) -> FolderListed:
    """The first `MOST` names of a folder, sorted; raises `InputError` if it cannot be read."""
    try:
        folder = Path(path).expanduser().absolute() if path else Path.home()
        with os.scandir(folder) as entries:
            found = [(each.name, each.is_dir()) for each in islice(entries, MOST) if not each.name.startswith(".")]
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The folder '{path[:500]}' cannot be listed ({reason}): give another one.") from None
    names = [tuple(sorted(name for name, is_folder in found if is_folder is wanted)) for wanted in (True, False)]
    return FolderListed(str(folder), *names)
