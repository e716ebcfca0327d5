"""What a session knows of a step just done that its record does not hold, for conditions."""

from __future__ import annotations

from collections.abc import Callable

from engine.look.attention_mass import attention_mass
from engine.session.session import Session
from engine.spec.condition import Span
from engine.wire.condition_values import TEXT_TAIL, Attention
from engine.wire.records import SequenceStep
from engine.wire.row_norms import Norms


class SessionSurroundings:
    """Reads the tokens and the attention that the session holds; `norms` are those of the rows before the step, by
    sequence, and `differs` asks the comparison that runs."""

    def __init__(
        self, session: Session, norms: dict[int, Norms], differs: Callable[[int, int], bool | None] = lambda *_: None
    ) -> None:
        self._session, self._norms, self._differs = session, norms, differs

    def text_before(self, part: SequenceStep) -> str:
        return tail_of(self._session.sequence(part.seq_id).token_ids, part.first_position, self._session.text_of)

    def norms_before(self, seq_id: int) -> Norms | None:
        return self._norms.get(seq_id)

    def attention(self, step: int, part: SequenceStep, span: Span) -> Attention | None:
        rows = self._session.history.attention.get((step, part.seq_id)) or {}
        return attention_mass(rows, part.num_tokens, span)

    def differs(self, step: int, seq_id: int) -> bool | None:
        return self._differs(step, seq_id)


def tail_of(token_ids: list[int], count: int, text_of: Callable[[int], str]) -> str:
    """The last characters of the text of the first `count` tokens, as many as a pattern may reach back to."""
    pieces: list[str] = []
    missing = TEXT_TAIL
    while count and missing > 0:
        count -= 1
        pieces.append(text_of(token_ids[count]))
        missing -= len(pieces[-1])
    return "".join(reversed(pieces))[-TEXT_TAIL:]
