"""A file with the rows of a sweep, one per line, so that an interrupted sweep can be continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.errors import InputError
from engine.files.atomic import writable_target, write_text
from engine.files.text import JSON_LIMIT, read_text
from engine.spec.grid import SweepMode
from engine.spec.texts import SweepText
from engine.wire.measurements import SweepRow, Unavailable


class SweepFile:
    """JSON lines: a header that identifies the sweep, then its rows. An incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = writable_target(path)  # an error is raised before a model is loaded
        self._text = read_text(path, JSON_LIMIT, "sweep file") if self._path.exists() else ""

    def open(
        self,
        fingerprint: str,
        dtype: str,
        texts: Sequence[SweepText],
        modes: Sequence[SweepMode],
        num_steps: int,
    ) -> list[SweepRow | Unavailable]:
        """The rows that the file has for these modes; raises `InputError` if they are of another model, other texts or
        other steps. Modes may differ from those of earlier runs."""
        header = json.dumps({"sweep": digest_of(fingerprint, dtype, texts, num_steps)})
        lines = self._text.split("\n")[:-1]
        if lines and lines[0] != header:
            raise InputError(
                f"'{self._path}' holds a sweep of another model, other texts or other steps: name another file."
            )
        specs = {mode.name: digest(mode) for mode in modes}
        names = {text.name for text in texts}
        kept = dict.fromkeys(line for line in lines[1:] if self._is_wanted(line, specs, names))
        if not lines or self._text != "\n".join([header, *lines[1:], ""]):
            write_text(self._path, "\n".join([header, *lines[1:], ""]))
        self._specs = specs
        rows = [row_of(json.loads(line)) for line in kept]
        return list({(row.cache, row.text): row for row in rows}.values())  # two programs may have written the same row

    def _is_wanted(self, line: str, specs: dict[str, str], names: set[str]) -> bool:
        try:
            values = json.loads(line)
            return values["text"] in names and specs.get(values["cache"]) == values["mode"] and bool(row_of(values))
        except (ValueError, KeyError, TypeError):
            raise InputError(f"'{self._path}' holds a line that is no row of a sweep: name another file.") from None

    def append(self, row: SweepRow | Unavailable) -> None:
        """Append a row and flush it to disk."""
        values = {"mode": self._specs[row.cache], **msgspec.structs.asdict(row)}
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(values) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"'{self._path}' cannot be written ({reason}): free some space or name another.") from None


def row_of(values: dict[str, object]) -> SweepRow | Unavailable:
    """The row of a line, with every type checked."""
    fields = {name: value for name, value in values.items() if name != "mode"}
    kind: type[SweepRow] | type[Unavailable] = Unavailable if "unavailable" in fields else SweepRow
    ordered = [kind.__name__, *(fields[name] for name in kind.__struct_fields__)]
    return msgspec.convert(ordered, kind)


def digest(value: object) -> str:
    """A hash of a value's content."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def digest_of(fingerprint: str, dtype: str, texts: Sequence[SweepText], num_steps: int) -> str:
    return digest((fingerprint, dtype, tuple(sorted(map(digest, texts))), num_steps))
