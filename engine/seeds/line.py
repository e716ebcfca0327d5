"""One figure of a document beside the one measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

FieldValue = None | bool | int | float | str | tuple[float, ...]
TableKind = Literal["speed", "shapes", "logits", "lengths", "memory", "allocated", "max"]


PUBLISHED = "published"


class SeedLine(Struct, frozen=True):
    """One figure: `published` in the document (None: not printed there) and `measured` here (None: could not be
    measured, `note` says why). `on` names the model and machine. `heading` is the head of the column of `published`: a
    figure that the document gives the formula of, and does not print, is not called published.

    `agrees` is None if the two are not comparable: another machine, other weights, or no published figure.
    `must_agree`: a difference is a fault of this program. A point of a curve has a `series` and its x value `at`.
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
    heading: str = PUBLISHED


@dataclass(frozen=True)
class Sheet:
    """A table of a document, measured `on` a model or a machine."""

    document: str
    table: TableKind
    on: str = ""

    def figure(
        self, item: str, published: FieldValue, measured: FieldValue, unit: str = "", note: str = "", **more: Any
    ) -> SeedLine:
        """A line of it; `more` are further fields of the line."""
        return SeedLine(self.document, self.table, item, published, measured, unit, note=note, on=self.on, **more)

    def must(
        self, item: str, published: FieldValue, measured: FieldValue, unit: str = "", note: str = "", **more: Any
    ) -> SeedLine:
        """A line that must be the same everywhere."""
        return checked(self.figure(item, published, measured, unit, note, **more))


def checked(line: SeedLine) -> SeedLine:
    """The line of a figure that must be the same everywhere, with the result of the comparison."""
    is_same = type(line.published) is type(line.measured) and line.published == line.measured
    return replace(line, agrees=is_same, must_agree=True)
