"""What was measured about the cache in use: the newest answer of each kind, and the rows of a sweep as they come."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from engine.wire.records import DamageMap, ParityReport, Regret, Swept, WhatIfAnswer

WHAT_IF, PARITY, DAMAGE, REGRET, SWEEP = "what_if", "parity", "damage", "regret", "sweep"
LIVE_KINDS = (WHAT_IF, PARITY, DAMAGE, REGRET)

# The kinds of answer that a truth panel shows.
Answer = WhatIfAnswer | ParityReport | DamageMap | Regret | Swept


def answer_kind(answer: Answer) -> str:
    """Which of the five an answer is."""
    match answer:
        case WhatIfAnswer():
            return WHAT_IF
        case ParityReport():
            return PARITY
        case DamageMap():
            return DAMAGE
        case Regret():
            return REGRET
        case Swept():
            return SWEEP


@dataclass(frozen=True)
class Refusal:
    """Why a question has no answer; `can_rebuild`: it would have one on rows rebuilt from the tokens."""

    message: str
    can_rebuild: bool = False


class Truth(QObject):
    """One answer per kind, newest wins; `changed` carries the kind. Only the controller writes.

    `is_rebuilding`: questions about rows that were dropped are asked of exact rows, rebuilt from the tokens.
    """

    changed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.what_if: WhatIfAnswer | None = None
        self.refusals: dict[str, Refusal] = {}
        self.is_rebuilding = False
        self.parity: ParityReport | None = None
        self.damage: DamageMap | None = None
        self.regret: Regret | None = None
        self.sweep: tuple[Swept, ...] = ()

    def put(self, answer: Answer) -> None:
        self.refusals.pop(answer_kind(answer), None)
        match answer:
            case WhatIfAnswer():
                self.what_if = answer
            case ParityReport():
                self.parity = answer
            case DamageMap():
                self.damage = answer
            case Regret():
                self.regret = answer
            case Swept():
                is_same = bool(self.sweep) and self.sweep[-1].request.stamp == answer.request.stamp
                self.sweep = (*self.sweep, answer) if is_same else (answer,)
        self.changed.emit(answer_kind(answer))

    def refuse(self, kind: str, refusal: Refusal) -> None:
        """The newest question of a kind cannot be answered. An answer to a what-if before it is none to this one."""
        self.refusals[kind] = refusal
        if kind == WHAT_IF:
            self.what_if = None
        self.changed.emit(kind)

    def refusal(self, kind: str) -> str:
        """Why the newest question of a kind has no answer; empty where it has one or waits for it."""
        return self.refusals[kind].message if kind in self.refusals else ""

    def can_rebuild(self, kind: str) -> bool:
        """Whether rows rebuilt from the tokens would answer what was refused."""
        return kind in self.refusals and self.refusals[kind].can_rebuild

    def rebuild(self) -> None:
        """From now on questions about rows that were dropped are asked of rows rebuilt from the tokens."""
        self.is_rebuilding = True
        for kind in [kind for kind in self.refusals if self.can_rebuild(kind)]:
            del self.refusals[kind]
            self.changed.emit(kind)

    def forget_live(self) -> None:
        """The rows these were measured on are gone: another history, another cache, a rewind."""
        self.what_if = self.parity = self.damage = self.regret = None
        for kind in LIVE_KINDS:
            self.refusals.pop(kind, None)
        for kind in LIVE_KINDS:
            self.changed.emit(kind)

    def forget(self) -> None:
        """Another model: nothing of what was measured holds for it."""
        self.sweep = ()
        self.refusals.clear()
        self.forget_live()
        self.changed.emit(SWEEP)
