"""What was measured about the cache in use: the newest answer of each kind, and the rows of a sweep as they come."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from engine.records import DamageMap, ParityReport, Regret, Swept, WhatIfAnswer

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


class Truth(QObject):
    """One answer per kind, newest wins; `changed` carries the kind. Only the controller writes."""

    changed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.what_if: WhatIfAnswer | None = None
        self.what_if_refusal = ""
        self.parity: ParityReport | None = None
        self.damage: DamageMap | None = None
        self.regret: Regret | None = None
        self.sweep: tuple[Swept, ...] = ()

    def put(self, answer: Answer) -> None:
        match answer:
            case WhatIfAnswer():
                self.what_if, self.what_if_refusal = answer, ""
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

    def refuse_what_if(self, reason: str) -> None:
        """The newest what-if cannot be: the answer before it is none to this question."""
        self.what_if, self.what_if_refusal = None, reason
        self.changed.emit(WHAT_IF)

    def forget_live(self) -> None:
        """The rows these were measured on are gone: another history, another cache, a rewind."""
        self.what_if = self.parity = self.damage = self.regret = None
        self.what_if_refusal = ""
        for kind in LIVE_KINDS:
            self.changed.emit(kind)

    def forget(self) -> None:
        """Another model: nothing of what was measured holds for it."""
        self.sweep = ()
        self.forget_live()
        self.changed.emit(SWEEP)
