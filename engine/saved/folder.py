"""The folder of journals: one for each window that runs, those that windows left when they were killed, and a few of
sessions that ended. No torch."""

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
MOST_ENDED = 12
MOST_BYTES = 512 << 20  # of all that ended


def check_nobody_writes(path: Path) -> None:
    """Raises `InputError` for the journal of a window that runs: two windows would go on with one session."""
    if path.name.endswith(RUNNING):
        with suppress(OSError):
            if is_locked(path):
                raise InputError(
                    f"'{path}' is the session of a window that is open: go on there, or save it there as a file."
                )


class JournalFolder:
    """`new` makes a journal, `finish` keeps it among those that ended. Raises `OSError` where the disk says no."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> JournalFile:
        """A journal that nobody else writes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"session {datetime.now():%Y-%m-%d %H.%M.%S} {secrets.token_hex(2)}{RUNNING}"
        return JournalFile(self.folder / name, now(), WRITTEN_BY)

    def left(self) -> list[Path]:
        """Those whose window is gone without having ended them, newest first."""
        return [path for path in self._files(RUNNING) if not is_locked(path)]

    def ended(self) -> list[Path]:
        """Those of sessions that ended, newest first."""
        return [path for path in self._files(ENDED) if not path.name.endswith(RUNNING)]

    def claim(self, path: Path) -> IO[bytes]:
        """Take a journal that was left, so that no other window does, until the stream is closed. Raises `OSError`
        where one has it, or it is gone."""
        stream = open(path, "rb")  # noqa: SIM115
        try:
            lock_patiently(stream)
        except OSError:
            stream.close()
            raise
        return stream

    def delete(self, path: Path) -> None:
        """A journal in which nothing is that anybody would miss."""
        with suppress(OSError):
            path.unlink()

    def finish(self, path: Path) -> Path:
        """Keep a journal among those that ended, of which the oldest go; where it lies now."""
        kept = path.with_name(path.name.removesuffix(RUNNING) + ENDED)
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
