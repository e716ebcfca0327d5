"""A parameter of a cache mode: one row wherever it is shown, typed or chosen. No torch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

MOST = 10_000_000  # of a number without a limit of its own
ParameterKind = Literal["number", "share", "size", "switch", "choice"]
ParameterValue = int | float | bool | str | None


class Parameter(Struct, frozen=True):
    """A parameter as every surface shows it: dialogs, sliders, the command line, the manual.

    `kind` is a whole number, a share from 0 to 1, a size with decimals, a switch, or one of `choices` (value, words).
    `default` is the value in presets. `unset` is the word for None, and is empty if a value is required. `also` are
    other words by which people look for it, separated by commas.
    """

    name: str
    label: str
    tip: str
    kind: ParameterKind = "number"
    default: ParameterValue = None
    unset: str = ""
    unit: str = ""
    most: int = MOST
    choices: tuple[tuple[ParameterValue, str], ...] = ()
    also: str = ""

    @property
    def values(self) -> tuple[ParameterValue, ...]:
        """The values that can be chosen."""
        return tuple(value for value, _ in self.choices)

    def words(self, value: ParameterValue) -> str:
        """A value that is not None, in a few words: `budget 256`, `ratio 0.5`, `4 bits`, `rerotate`."""
        name = self.name.replace("_", " ")
        match self.kind:
            case "switch":
                return name if value else ""
            case "choice":
                return str(value)
            case "number":
                return f"{value} {self.unit}" if self.unit == name else f"{name} {value:,}"
        return f"{name} {value:g}"


AUTOMATIC, UNUSED, TOKENS = "automatic", "not used", "tokens"
