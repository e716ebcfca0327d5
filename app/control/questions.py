"""What is asked about the cache in use: the newest question of each kind, its answer or its refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.models import Models
from app.models.truth import DAMAGE, PARITY, REGRET, SWEEP, WHAT_IF, Answer, Refusal
from engine.wire.commands import CheckParity, Command, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.records import Failed

Question = WhatIf | CheckParity | MapDamage | MeasureRegret | Sweep
# By the name of the command: what is asked, and the kind of its answer.
KINDS: dict[str, tuple[type[Question], str]] = {
    "WhatIf": (WhatIf, WHAT_IF),
    "CheckParity": (CheckParity, PARITY),
    "MapDamage": (MapDamage, DAMAGE),
    "MeasureRegret": (MeasureRegret, REGRET),
    "Sweep": (Sweep, SWEEP),
}


class Questions:
    """Sends questions with a stamp each; an answer counts while no newer question of its kind was asked."""

    def __init__(self, models: Models, post: Callable[[Command], None]) -> None:
        self._truth = models.truth
        self._post = post
        self._stamps: dict[type, int] = {}
        self._last = 0

    def ask(self, question: Question) -> None:
        """Panels ask by themselves as well: what went wrong before is not taken back by that."""
        self._last += 1
        self._stamps[type(question)] = self._last
        if isinstance(question, WhatIf | MapDamage | MeasureRegret):
            question = replace(question, rebuild=self._truth.is_rebuilding)
        self._post(replace(question, stamp=self._last))

    def rebuild(self) -> None:
        """Try on exact rows what the rows held cannot answer."""
        self._truth.rebuild()

    def take(self, answer: Answer) -> None:
        if self._stamps.get(type(answer.request)) == answer.request.stamp:
            self._truth.put(answer)

    def refused(self, failure: Failed) -> None:
        """The panel that asked says so, and nobody else."""
        asked, kind = KINDS[failure.what]
        if self._stamps.get(asked) == failure.stamp:
            self._truth.refuse(kind, Refusal(failure.message, failure.can_rebuild))

    def forget_live(self) -> None:
        """What was measured on rows that are gone; a sweep has its own and stays."""
        self._stamps = {kind: stamp for kind, stamp in self._stamps.items() if kind is Sweep}
        self._truth.forget_live()

    def forget_cache(self) -> None:
        """Another cache: nobody has asked yet to rebuild the rows that it drops."""
        self._truth.is_rebuilding = False
        self.forget_live()

    def forget(self) -> None:
        """Another model: nothing of what was asked holds for it."""
        self._stamps.clear()
        self._truth.forget()
