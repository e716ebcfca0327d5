"""Verifies a snapshot: every limit, every checksum, and that its numbers are possible. No torch.

A file is read once from beginning to end, in pieces of bounded size; rows that have extremes are read a second time.
Non-finite numbers are reported as notes and not as damage, since a cache may contain them.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from engine.errors import InputError
from engine.snapshot.decode import numbers_of
from engine.snapshot.format import EXTREMES, MAX_TOKENS, NUMBERS, Damaged, TensorEntry, checksum
from engine.snapshot.manifest import HEADER_CHECKSUM, NO_CHECKSUM, table_name
from engine.snapshot.read import NUMPY_NAMES, SnapshotFile
from engine.snapshot.verify_extremes import check_extremes, num_numbers

Array = np.ndarray[Any, Any]
MAX_PROBLEMS = 100  # more would not describe the file any better
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
        problems, notes, done = list(_header_problems(file)), list(_first_notes(file)), 0
        total = sum(entry.num_bytes for entry in file.entries.values()) + num_numbers(file)
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
    tables = (table_name(number) for number in range(len(file.manifest.tables)))
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
    if not file.manifest.has_checksums:
        return
    zeroed = file.header.text.replace(wanted.encode("utf-8", "replace") or b"\0", NO_CHECKSUM.encode(), 1)
    if hashlib.sha256(zeroed).hexdigest() != wanted:
        yield "the header was changed: its checksum is another one"


def _first_notes(file: SnapshotFile) -> Iterator[str]:
    if not file.manifest.has_checksums:
        yield f"version {file.manifest.version} of the format has no checksums: what was changed inside cannot be seen"


class TensorCheck:
    """Checks one tensor, piece by piece."""

    def __init__(self, file: SnapshotFile, entry: TensorEntry) -> None:
        self._entry = entry
        self._wanted = file.manifest.checksums.get(entry.name)
        self._sum = checksum(file.manifest.checksum_kind)
        self._contents: list[ContentCheck] = list(contents_of(file, entry))
        self._at = 0

    def update(self, piece: bytes) -> None:
        """Check the next bytes of the tensor."""
        self._sum.update(piece)
        if self._contents:
            array = np.frombuffer(piece, NUMPY_NAMES[self._entry.dtype])
            for content in self._contents:
                content.update(array, self._at)
            self._at += len(array)

    def problems(self) -> Iterator[str]:
        """The damage that was found, each in words."""
        if self._wanted is not None and self._sum.hexdigest() != self._wanted:
            yield f"'{self._entry.name}' was changed: its checksum is another one"
        for content in self._contents:
            yield from (f"'{self._entry.name}' {problem}" for problem in content.problems())

    def notes(self) -> Iterator[str]:
        """What was found that is no damage, each in words."""
        for content in self._contents:
            yield from (f"'{self._entry.name}' {note}" for note in content.notes())


# ---- checks of numbers -------------------------------------------------------------------------------------------


class ContentCheck:
    """A check of the numbers of a tensor, which are passed in pieces, in order; `at` is the index of a piece's first
    number."""

    def update(self, array: Array, at: int) -> None:
        """Check the next numbers, of which the first has index `at`."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """The damage that was found, as the end of a sentence about the tensor."""
        yield from ()

    def notes(self) -> Iterator[str]:
        """What was found that is no damage, as the end of a sentence about the tensor."""
        yield from ()


class Within(ContentCheck):
    """Checks that whole numbers are from `low` to `high`."""

    def __init__(self, low: int, high: int, what: str) -> None:
        self._low, self._high, self._what = low, high, what
        self._wrong: int | None = None

    def update(self, array: Array, at: int) -> None:
        if self._wrong is None and array.size and (array.min() < self._low or array.max() > self._high):
            self._wrong = int(array[(array < self._low) | (array > self._high)][0])

    def problems(self) -> Iterator[str]:
        if self._wrong is not None:
            yield f"holds {self._wrong:,}, which is no {self._what}"


class Ascending(ContentCheck):
    """Checks that numbers ascend within each run of `length`, `is_strict`ly or not."""

    def __init__(self, length: int, is_strict: bool) -> None:
        self._length, self._is_strict = max(1, length), is_strict
        self._last: int | None = None
        self._is_wrong = False

    def update(self, array: Array, at: int) -> None:
        before = array[:1] if self._last is None else np.array([self._last])
        joined = np.concatenate([before, array])  # compared and not subtracted, since 64-bit differences can overflow
        falls = joined[1:] <= joined[:-1] if self._is_strict else joined[1:] < joined[:-1]
        begins = np.arange(at, at + len(array)) % self._length == 0
        self._is_wrong |= bool((falls & ~begins).any())
        self._last = int(array[-1]) if len(array) else self._last

    def problems(self) -> Iterator[str]:
        if self._is_wrong:
            yield "holds numbers out of order"


class EndsAt(ContentCheck):
    """Checks offsets: the first must be 0, and the last the size of what they point into."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._first: int | None = None
        self._last = -1

    def update(self, array: Array, at: int) -> None:
        if array.size:
            self._first = int(array[0]) if self._first is None else self._first
            self._last = int(array[-1])

    def problems(self) -> Iterator[str]:
        if self._first != 0 or self._last != self._end:
            yield "does not lead from the first byte to the last of what it describes"


class Text(ContentCheck):
    """Checks that bytes are UTF-8."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_wrong = False

    def update(self, array: Array, at: int) -> None:
        try:
            self._decoder.decode(array.tobytes())
        except UnicodeDecodeError:
            self._is_wrong = True

    def problems(self) -> Iterator[str]:
        if self._is_wrong or self._decoder.getstate()[0]:
            yield "is no UTF-8 text"


class Finite(ContentCheck):
    """Counts the numbers that are not finite, and finds the first of them."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = dtype, shape
        self._num_nan = self._num_inf = 0
        self._first: int | None = None

    def update(self, array: Array, at: int) -> None:
        numbers = numbers_of(array, self._dtype)
        strange = ~np.isfinite(numbers)
        if strange.any():
            num_nan = int(np.isnan(numbers).sum())
            self._num_nan, self._num_inf = self._num_nan + num_nan, self._num_inf + int(strange.sum()) - num_nan
            self._first = at + int(strange.argmax()) if self._first is None else self._first

    def notes(self) -> Iterator[str]:
        if self._first is not None:
            place = ", ".join(str(int(i)) for i in np.unravel_index(self._first, self._shape))
            yield f"holds {self._num_nan:,} NaN and {self._num_inf:,} infinite numbers, the first at [{place}]"


def contents_of(file: SnapshotFile, entry: TensorEntry) -> Iterator[ContentCheck]:
    """The checks for a tensor, by its full name; none for an unknown one."""
    name, n = entry.name, file.manifest.num_tokens
    last = name.rsplit(".", 1)[-1]
    if name in ("token_ids", "waiting_ids"):
        yield Within(0, MAX_TOKENS, "token id")
    elif name == "positions" or any(name == each.name("positions") and each.has_positions for each in file.layers):
        yield Within(0, n - 1, "position of its tokens")
        yield Ascending(entry.shape[-1], is_strict=True)
    elif name in map(table_name, range(len(file.manifest.tables))):
        yield Within(0, MAX_TOKENS, "page")
    elif name in ("token_texts.offsets", "records.offsets"):
        yield Ascending(entry.shape[0], is_strict=False)
        yield EndsAt(file.entries[name.removesuffix(".offsets")].num_bytes)
    elif name == "token_texts":
        yield Text()
    elif entry.dtype in NUMBERS and entry.shape and last not in ("attention", *EXTREMES):
        yield Finite(entry.dtype, entry.shape)


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
