"""The settings that the palette goes to, `temperature` or `page size`, and sets: `temperature 0.8`, `budget 64`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from app.actions import dialogs
from app.control.conditions import needs_live, needs_no_file
from app.window.palette import Entry
from engine.errors import InputError
from engine.spec.cache import PRESETS, CacheSpec, cache_label, parameters_of, tuned
from engine.spec.parameter import Parameter, ParameterValue

if TYPE_CHECKING:
    from app.shell import Shell

_ASSIGNED = re.compile(
    r"\s*([a-z][a-z _-]*?)\s*(?:=|:|\s)\s*(\d{1,12}(?:\.\d{1,6})?|\.\d{1,6})\s*(%?)\s*", re.IGNORECASE
)


class SamplingField(NamedTuple):
    """A field of sampling: its label, its greatest value (0: it is no number), what it does, and other words for it."""

    label: str
    most: float
    tip: str
    also: str = ""

    def check(self, value: float) -> None:
        """Raise `InputError` for a value that is impossible."""
        if not 0 <= value <= self.most:
            raise InputError(f"{self.label} is a number from 0 to {self.most:g}, not {value:g}.")


FIELDS: Mapping[str, SamplingField] = {
    "temperature": SamplingField("Temperature", 5.0, "How random the next token is: 0 always takes the most probable",
                                 "greedy, sampling, randomness, creative"),
    "top_k": SamplingField("Top-k", 1_000_000, "Choose among the k most probable tokens", "top k, sampling"),
    "top_p": SamplingField("Top-p", 1.0, "Choose among the most probable tokens that sum up to p",
                           "top p, nucleus, nucleus sampling"),
    "min_p": SamplingField("Min-p", 1.0, "Leave out tokens less probable than this part of the most probable one",
                           "min p, sampling"),
    "stop": SamplingField("Stop strings", 0, "Texts that end a sequence once it has generated one",
                          "stop at, stop sequences, end of text, eos"),
    "longest_answer": SamplingField("Longest answer", 1_000_000, "In Chat an answer ends after so many tokens at most",
                                    "max new tokens, max tokens, length limit"),
    "seed": SamplingField("Seed", 2**31 - 1, "The same seed draws the same tokens again", "random seed, reproducible"),
}  # fmt: skip


def parameter_entries(shell: Shell) -> Iterator[Entry]:
    """An entry for each field of sampling and each parameter of a cache mode, which opens it with the cursor in it."""
    for name, row in FIELDS.items():
        yield Entry(
            f"sampling.{name}", f"Sampling: {row.label}", partial(shell.window.ask_sampling, name), row.also, row.tip
        )
    cache = shell.models.status.cache
    for name, modes in _modes_with().items():
        parameter = _parameter(cache, name) or modes[0][1]
        also = ", ".join(word for word in (name.replace("_", " "), parameter.also) if word)
        do = partial(dialogs.ask_parameters, shell, parameter.label)
        title = f"Cache parameter: {parameter.label}"
        yield Entry(f"parameter.{name}", title, do, also, parameter.tip, why_not=_why_not(shell, name))


def _modes_with() -> dict[str, list[tuple[str, Parameter]]]:
    """The modes that have each parameter, with the parameter as each has it."""
    found: dict[str, list[tuple[str, Parameter]]] = {}
    for preset in PRESETS.values():
        for parameter in parameters_of(preset.spec):
            found.setdefault(parameter.name, []).append((preset.label, parameter))
    return found


def _parameter(cache: CacheSpec, name: str) -> Parameter | None:
    return next((parameter for parameter in parameters_of(cache) if parameter.name == name), None)


def _why_not(shell: Shell, name: str) -> str:
    """Why a parameter cannot be set now: the cache in use does not have it."""
    if why_not := needs_no_file(shell.models):
        return why_not
    if _parameter(shell.models.status.cache, name) is not None:
        return ""
    modes = [label for label, _ in _modes_with()[name]]
    return f"choose {', '.join(modes[:3])}{' or another with it' if len(modes) > 3 else ''} first"


class TypedValue:
    """Interprets the typed text as a parameter and its value."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def offer(self, text: str) -> tuple[str, str] | None:
        """(What would be set, ""); or (why it cannot be, its kind); None if the text names no parameter and value."""
        if (given := read_value(text)) is None:
            return None
        name, value = given
        models = self._shell.models
        try:
            if name in FIELDS:
                if why_not := needs_live(models):
                    raise InputError(f"{why_not[:1].upper()}{why_not[1:]}.")
                FIELDS[name].check(value)
                return f"Set {FIELDS[name].label.lower()} to {value:g}", ""
            if why_not := _why_not(self._shell, name):
                raise InputError(
                    f"The {cache_label(models.status.cache)} cache has no {name.replace('_', ' ')}: {why_not}."
                )
            self._tuned(name, value)
        except InputError as error:
            return str(error), "Set"
        return f"Set {name.replace('_', ' ')} to {value:g}", ""

    def make(self, text: str) -> None:
        """Set the value."""
        if (given := read_value(text)) is None:
            return
        name, value = given
        if name in FIELDS:
            self._shell.window.prompt.set_sampling(name, value)
        else:
            self._shell.window.top.cache.choose(self._tuned(name, value))

    def _tuned(self, name: str, value: float) -> CacheSpec:
        """The cache in use with another value. Raises `InputError` if that is impossible."""
        cache = self._shell.models.status.cache
        parameter = _parameter(cache, name)
        assert parameter is not None
        number: ParameterValue = value
        match parameter.kind:
            case "number" if value != int(value):
                raise InputError(f"{parameter.label}: give a whole number.")
            case "number":
                number = int(value)
            case "switch":
                number = bool(value)
            case "choice":
                raise InputError(f"{parameter.label}: choose it under Parameters of this cache.")
        if value > parameter.most:
            raise InputError(f"{parameter.label}: at most {parameter.most:,}.")
        given: dict[str, Any] = {name: number}
        return tuned(cache, **given)


def read_value(text: str) -> tuple[str, float] | None:
    """The name of the parameter and the value of `budget 64`, `top-p = 0.9` or `ratio 50 %`; None for another text."""
    if (found := _ASSIGNED.fullmatch(text)) is None:
        return None
    words = " ".join(re.split(r"[\s_-]+", found[1].lower()))
    value = float(found[2]) / (100 if found[3] else 1)
    known = {name: [row.label] for name, row in FIELDS.items() if row.most}
    known |= {name: modes[0][1].also.split(", ") for name, modes in _modes_with().items()}
    return next(((name, value) for name, others in known.items() if words in map(_plain, (name, *others))), None)


def _plain(words: str) -> str:
    return " ".join(re.split(r"[\s_-]+", words.lower()))
