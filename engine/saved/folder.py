"""The folder of journals: of the windows that run, of windows that were killed, and of the last sessions that ended. No
torch."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from engine.errors import InputError
from engine.files.atomic import is_locked
from engine.saved.document import WRITTEN_BY, now
from engine.saved.journal import JournalFile, lock_patiently

RUNNING, ENDED = ".running.jsonl", ".jsonl"
MOST_ENDED = 30
MOST_BYTES = 512 << 20  # of all journals of ended sessions together


def check_nobody_writes(path: Path) -> None:
    """Raise `InputError` for the journal of a running window: two windows would continue the same session."""
    if path.name.endswith(RUNNING):
        with suppress(OSError):
            if is_locked(path):
                raise InputError(
                    f"'{path}' is the session of a window that is open: go on there, or save it there as a file."
                )


class JournalFolder:
    """Makes journals with `new`, and keeps them with `finish` when their session ends. Raises `OSError` where the disk
    fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> JournalFile:
        """Create a new, locked journal."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"session {datetime.now():%Y-%m-%d %H.%M.%S} {secrets.token_hex(2)}{RUNNING}"
        return JournalFile(self.folder / name, now(), WRITTEN_BY)

    def left(self) -> list[Path]:
        """Journals of windows that are gone without having ended them, newest first."""
        return [path for path in self._files(RUNNING) if not is_locked(path)]

    def ended(self) -> list[Path]:
        """Journals of ended sessions, newest first."""
        return [path for path in self._files(ENDED) if not path.name.endswith(RUNNING)]

    def claim(self, path: Path) -> IO[bytes]:
        """Lock a left journal against other windows, until the returned stream is closed. Raises `OSError` where
        another window has it, or it is gone."""
        stream = open(path, "rb")  # noqa: SIM115
        try:
            lock_patiently(stream)
        except OSError:
            stream.close()
            raise
        return stream

    def delete(self, path: Path) -> None:
        """Delete a journal without content worth keeping."""
        with suppress(OSError):
            path.unlink()

    def finish(self, path: Path) -> Path:
        """Rename a journal as one of an ended session, and delete the oldest beyond the limits; returns its path."""
        kept = path.with_name(path.name.removesuffix(RUNNING).removesuffix(ENDED) + ENDED)
        with suppress(OSError):
            os.replace(path, kept)
            self._rotate()
            return kept
        return path

    def _rotate(self) -> None:
        num_bytes = 0
        for number, path in enumerate(self.ended()):
            with suppress(OSError):
                num_bytes += path.stat().st_size
                if number and (number >= MOST_ENDED or num_bytes > MOST_BYTES):
                    path.unlink()

    def _files(self, ending: str) -> list[Path]:
        with suppress(OSError):
            found = [path for path in self.folder.iterdir() if path.name.endswith(ending) and path.is_file()]
            return sorted(found, key=_age, reverse=True)
        return []


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return path.stat().st_mtime, path.name
    return 0.0, path.name
