"""Whether the prompt in the editor can be sent, and which token ids it is if they are typed."""

from __future__ import annotations

import random
import re

from PySide6.QtCore import QObject, Signal

from app.draw.format import shortened, thousands, visible
from engine.errors import InputError


class Draft(QObject):
    """`problem` says in a few words why the prompt cannot be sent and what to do; empty if it can. `warning` is the
    same as a sentence, if something is wrong with what is written: an empty prompt has a problem only. The prompt panel
    writes both; actions, the status line and empty panels read them."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.problem = self.warning = ""

    def update(self, problem: str, warning: str = "") -> None:
        if (problem, warning) != (self.problem, self.warning):
            self.problem, self.warning = problem, warning
            self.changed.emit()


RANDOM = re.compile(r"random tokens:\s*\[?\s*([\d,]{1,12})\s*\]?", re.IGNORECASE)
MOST_IDS = 1_000_000


def random_prompt(count: int) -> str:
    """The prompt that stands for `count` random tokens, as `token_ids` reads it."""
    return f"random tokens: {thousands(count)}"


def is_random(text: str) -> bool:
    """Whether a prompt asks for random tokens."""
    return RANDOM.fullmatch(text.strip()) is not None


def token_ids(text: str, vocab_size: int | None, seed: int) -> tuple[int, ...]:
    """The ids of `40977 33717`, of `[40977, 33717]`, or of `random tokens: 4,096`; `seed` determines the random ones.
    Raises `InputError` for anything else, and for ids outside the vocabulary (`vocab_size` None: its size is
    unknown)."""
    if (asked := RANDOM.fullmatch(text.strip())) is not None:
        return _random_ids(int(asked[1].replace(",", "") or 0), vocab_size, seed)
    words = re.split(r"[\s,]+", re.sub(r"^\s*\[|\]\s*$", " ", text).strip())
    if words == [""]:
        raise InputError("type token ids first, like 40977 33717")
    ids = []
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 12):
            quoted = shortened(visible(word[:60]), 20)
            raise InputError(f"“{quoted}” is no token id: give ids like 40977 33717")
        if vocab_size is not None and int(word) >= vocab_size:
            raise InputError(f"token id {word} is outside the vocabulary of {vocab_size:,}: use 0 to {vocab_size - 1}")
        ids.append(int(word))
    return tuple(ids)


def _random_ids(count: int, vocab_size: int | None, seed: int) -> tuple[int, ...]:
    if vocab_size is None:
        raise InputError("this model names no vocabulary to draw from: give token ids like 40977 33717")
    if not 0 < count <= MOST_IDS:
        raise InputError(f"{count:,} random tokens are no prompt: ask for 1 to {MOST_IDS:,}")
    return tuple(random.Random(seed).choices(range(vocab_size), k=count))
