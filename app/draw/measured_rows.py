"""Rows of a measurement, sorted for a table or as CSV: any structs with named fields, and those that were refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any


def is_refused(row: Any) -> bool:
    """Whether the row gives a reason instead of a measurement."""
    return hasattr(row, "unavailable")


def sorted_rows(rows: Sequence[Any], columns: Sequence[str], column: int, is_descending: bool) -> list[Any]:
    """Sort by a column (-1: keep the order); rows without a value in it, then refused ones, come last in either
    order."""
    there = [row for row in rows if not is_refused(row)]
    missing = [row for row in rows if is_refused(row)]
    if column >= 0:
        values = {id(row): getattr(row, columns[column]) for row in there}
        without = [row for row in there if values[id(row)] is None]
        there = [row for row in there if values[id(row)] is not None]
        there.sort(key=lambda row: values[id(row)], reverse=is_descending)
        there += without
    return [*there, *missing]


def csv_text(rows: Sequence[Any], columns: Sequence[str]) -> str:
    """The table as CSV, with numbers in full precision; the last column says why a row was refused."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "unavailable"])
    for row in rows:
        writer.writerow([getattr(row, name, "") for name in (*columns, "unavailable")])
    return out.getvalue()
