"""Verifies a snapshot: every limit, every checksum, and that its numbers are possible. No torch.

A file is read once from beginning to end, in pieces of bounded size; rows that have extremes are read a second time.
Non-finite numbers are reported as notes and not as damage, since a cache may contain them.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from engine.errors import InputError
from engine.snapshot.format import (
    EXTREMES,
    HEADER_CHECKSUM,
    MAX_TOKENS,
    NO_CHECKSUM,
    NUMBERS,
    ROWS_AT_ONCE,
    Array,
    Damaged,
    LayerEntry,
    PyramidEntry,
    TensorEntry,
    checksum,
    table_name,
)
from engine.snapshot.read import NUMPY_NAMES, SnapshotFile, numbers_of
from engine.spec.codec import PARTS, Part

MAX_PROBLEMS = 100  # more would not describe the file any better
OUT_OF_ORDER = "holds numbers out of order"
MAX_PAGES = 1 << 24  # the longest page table whose ids are checked together


class Verified(Struct, frozen=True):
    """The result: each of the `problems` is damage, the `notes` are not. `num_bytes` were read."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    num_bytes: int

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify(path: Path) -> Iterator[tuple[int, int] | Verified]:
    """Verify a file. Yields progress (bytes done, of all), and last the result. A file with an unusable header is
    damaged as well; raises `InputError` if there is no readable file, or one of a newer version."""
    try:
        file = SnapshotFile(path)
    except Damaged as error:
        yield Verified((str(error),), (), 0)
        return
    with file:
        problems, notes, done = list(_header_problems(file)), list[str](), 0
        total = sum(entry.num_bytes for entry in file.entries.values()) + num_numbers(file, *PARTS)
        for entry in file.entries.values():
            check = TensorCheck(file, entry)
            for piece in file.pieces(entry.name):
                check.update(piece)
                done += len(piece)
                yield done, total
            problems += check.problems()
            notes += check.notes()
        for count in check_extremes(file, problems):
            done += count
            yield done, total
        problems += _page_problems(file)
        problems += _record_problems(file)
        yield Verified(tuple(problems[:MAX_PROBLEMS]), tuple(notes[:MAX_PROBLEMS]), file.bytes_read)


def verified(path: Path) -> Verified:
    """The result of `verify`."""
    *_, found = verify(path)
    assert isinstance(found, Verified)
    return found


def check_essentials(file: SnapshotFile) -> None:
    """Raise `InputError` if the header, the tokens or the page tables were changed, which decide how decoding
    continues. Rows are checked when they are read."""
    tables = map(table_name, range(len(file.manifest.tables)))
    problems = list(_header_problems(file))
    for name in ("token_ids", "waiting_ids", *tables):
        if name in file:
            check = TensorCheck(file, file.entries[name])
            for piece in file.pieces(name):
                check.update(piece)
            problems += check.problems()
    if problems:
        raise InputError(f"'{file.path}' is damaged: {problems[0]}. Take another copy of it.")


def _header_problems(file: SnapshotFile) -> Iterator[str]:
    wanted = file.header.metadata.get(HEADER_CHECKSUM, "")
    zeroed = file.header.text.replace(wanted.encode("utf-8", "replace") or b"\0", NO_CHECKSUM.encode(), 1)
    if hashlib.sha256(zeroed).hexdigest() != wanted:
        yield "the header was changed: its checksum is another one"


class TensorCheck:
    """Checks the checksum of a tensor and counts its numbers that are not finite, piece by piece; then its content."""

    def __init__(self, file: SnapshotFile, entry: TensorEntry) -> None:
        self._file, self._entry = file, entry
        self._sum = checksum(file.manifest.checksum_kind)
        is_beside = entry.name.rsplit(".", 1)[-1] in ("attention", *EXTREMES)
        self._is_counted = entry.dtype in NUMBERS and bool(entry.shape) and not is_beside
        self._num_nan = self._num_inf = self._at = 0
        self._first: int | None = None

    def update(self, piece: bytes) -> None:
        """Check the next bytes of the tensor."""
        self._sum.update(piece)
        if self._is_counted:
            numbers = numbers_of(np.frombuffer(piece, NUMPY_NAMES[self._entry.dtype]), self._entry.dtype)
            strange = ~np.isfinite(numbers)
            if strange.any():
                num_nan = int(np.isnan(numbers).sum())
                self._num_nan, self._num_inf = self._num_nan + num_nan, self._num_inf + int(strange.sum()) - num_nan
                self._first = self._at + int(strange.argmax()) if self._first is None else self._first
            self._at += len(numbers)

    def problems(self) -> Iterator[str]:
        """The damage that was found, each in words."""
        wanted = self._file.manifest.checksums.get(self._entry.name)
        if wanted is not None and self._sum.hexdigest() != wanted:
            yield f"'{self._entry.name}' was changed: its checksum is another one"
        yield from (f"'{self._entry.name}' {problem}" for problem in content_problems(self._file, self._entry))

    def notes(self) -> Iterator[str]:
        """What was found that is no damage, each in words."""
        if self._first is not None:
            place = ", ".join(str(int(i)) for i in np.unravel_index(self._first, self._entry.shape))
            counts = f"{self._num_nan:,} NaN and {self._num_inf:,} infinite numbers"
            yield f"'{self._entry.name}' holds {counts}, the first at [{place}]"


def content_problems(file: SnapshotFile, entry: TensorEntry) -> Iterator[str]:
    """Numbers of a tensor that are impossible, as ends of a sentence about it; none for an unknown one. These tensors
    are those that a reader reads at once, or head by head."""
    name, n = entry.name, file.manifest.num_tokens
    if name in ("token_ids", "waiting_ids"):
        yield from _outside(file.array(name), MAX_TOKENS, "token id")
    elif name == "positions" or any(name == each.name("positions") and each.has_positions for each in file.layers):
        for head in range(entry.shape[0]):
            places = file.array(name, head)
            yield from _outside(places, n - 1, "position of its tokens")
            if (places[1:] <= places[:-1]).any():
                yield OUT_OF_ORDER
    elif name in map(table_name, range(len(file.manifest.tables))):
        yield from _outside(file.array(name), MAX_TOKENS, "page")
    elif name in ("token_texts.offsets", "records.offsets"):
        offsets = file.array(name)
        if (offsets[1:] < offsets[:-1]).any():
            yield OUT_OF_ORDER
        if offsets[0] != 0 or offsets[-1] != file.entries[name.removesuffix(".offsets")].num_bytes:
            yield "does not lead from the first byte to the last of what it describes"
    elif name == "token_texts":
        try:
            deque(codecs.iterdecode(file.pieces(name), "utf-8"), maxlen=0)
        except UnicodeDecodeError:
            yield "is no UTF-8 text"


def _outside(array: Array, most: int, what: str) -> Iterator[str]:
    """A sentence about the first of the numbers that is not from 0 to `most`."""
    wrong = array[(array < 0) | (array > most)]
    if wrong.size:
        yield f"holds {wrong[0]:,}, which is no {what}"


def _page_problems(file: SnapshotFile) -> Iterator[str]:
    """Problems of page tables: pages that occur twice, and layers with other numbers of rows than their pages hold."""
    for number, table in enumerate(file.manifest.tables):
        name = table_name(number)
        if file.entries[name].shape[0] > MAX_PAGES:
            continue
        ids = file.array(name)
        held = np.flatnonzero(ids)
        if len(np.unique(ids[held])) < len(held):
            yield f"'{name}' names a page twice"
        num_rows = int(np.minimum(table.page_size, file.manifest.num_in_tables - held * table.page_size).sum())
        if any(file.manifest.layer(index).num_rows != num_rows for index in table.layers):
            yield f"'{name}' has pages of {num_rows:,} tokens, and its layers have other rows"


def _record_problems(file: SnapshotFile) -> Iterator[str]:
    records = file.records
    try:
        for index in range(len(records)):
            records[index]
    except InputError as error:  # later records are likely to have the same problem
        yield str(error)


# ---- the extremes that are stored with large layers, from which pictures are drawn -----------------------------------


def num_numbers(file: SnapshotFile, *parts: Part) -> int:
    """How many numbers the rows with extremes have, of these parts."""
    layers = ((entry, part) for entry, part in with_extremes(file) if part in parts)
    return sum(len(entry.heads) * entry.num_rows * entry.dim(part) for entry, part in layers)


def with_extremes(file: SnapshotFile) -> Iterator[tuple[LayerEntry, Part]]:
    """K or V of the layers that have extremes."""
    if file.manifest.pyramid is not None:
        yield from ((entry, part) for entry in file.layers for part in PARTS if entry.name(f"{part}.low") in file)


def check_extremes(file: SnapshotFile, problems: list[str]) -> Iterator[int]:
    """Compute the extremes again and compare them. Adds what is wrong to `problems`; yields how many numbers were
    read."""
    pyramid = file.manifest.pyramid
    for entry, part in with_extremes(file):
        assert pyramid is not None
        largest, is_alike = 0.0, True
        for place, head in enumerate(entry.heads):
            made = HeadExtremes(entry, part, pyramid, file.manifest.num_tokens)
            for start in range(0, entry.num_rows, ROWS_AT_ONCE):
                rows = file.rows(entry.index, part, head, range(start, start + ROWS_AT_ONCE))
                made.update(rows, entry.first + start)
                yield rows.size
            for name, found in (("low", made.low), ("high", made.high)):
                is_alike &= np.array_equal(file.numbers(entry.name(f"{part}.{name}"), place), found, equal_nan=True)
            largest = max(largest, made.largest)
        if not is_alike:
            problems.append(f"'{entry.name(part)}.low' and '.high' are not the extremes of the rows")
        problems += _magnitude_problems(file, entry.name(f"{part}.magnitudes"), largest)


class HeadExtremes:
    """Computes the extremes of one head from pieces of its rows, in order. `largest` is the largest finite
    magnitude."""

    def __init__(self, entry: LayerEntry, part: Part, pyramid: PyramidEntry, num_tokens: int) -> None:
        _, columns, bands = pyramid.shape(entry, part, num_tokens)
        self.low, self.high = (np.full((columns, bands), np.nan) for _ in range(2))
        self.largest = 0.0
        self._last_column = -1
        self._size, self._channels = pyramid.tokens_per_column, pyramid.channels(part)

    def update(self, rows: Array, first: int) -> None:
        """Add rows `[T, D]` that begin at position `first`."""
        stop = first + len(rows)
        columns = range(first // self._size, (stop - 1) // self._size + 1)
        begins = [max(first, column * self._size) - first for column in columns]
        bands = np.arange(0, rows.shape[1], self._channels)
        within = slice(columns.start, columns.stop)
        for cells, extreme in ((self.low, np.minimum), (self.high, np.maximum)):
            found = extreme.reduceat(extreme.reduceat(rows, bands, axis=1), begins, axis=0)
            if columns.start == self._last_column:
                found[0] = extreme(found[0], cells[columns.start])
            cells[within] = found
        finite = rows[np.isfinite(rows)]
        self.largest = max(self.largest, float(np.abs(finite).max(initial=0.0)))
        self._last_column = columns[-1]


def _magnitude_problems(file: SnapshotFile, name: str, largest: float) -> Iterator[str]:
    limit, most, clipped = (float(number) for number in file.numbers(name))
    if not (0 <= limit <= most and 0 <= clipped <= 1) or np.float32(most) != np.float32(largest):
        yield f"'{name}' are not the magnitudes of the rows"
