"""One figure of a document beside what was measured here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

FieldValue = None | bool | int | float | str | tuple[float, ...]
TableKind = Literal["speed", "shapes", "logits", "lengths", "memory", "allocated", "max"]


class SeedLine(Struct, frozen=True):
    """One figure: `published` as the document prints it (None: it prints none), `measured` here (None: it could not be,
    and the note says why), `on` what.

    `agrees` is None where the two are not compared: another machine, other weights, or nothing printed. `must_agree`:
    anything else is a fault of this program. A point of a curve has a `series` and where `at` it stands.
    """

    document: str
    table: TableKind
    item: str
    published: FieldValue
    measured: FieldValue
    unit: str = ""
    agrees: bool | None = None
    must_agree: bool = False
    note: str = ""
    on: str = ""
    series: str = ""
    at: float | None = None


def checked(line: SeedLine) -> SeedLine:
    """The line of a figure that must come out the same anywhere, with whether it did."""
    is_same = type(line.published) is type(line.measured) and line.published == line.measured
    return replace(line, agrees=is_same, must_agree=True)
