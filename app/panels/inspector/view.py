"""The Inspector panel: everything known of the selected token."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtGui import QFont

from app.draw.format import thousands, token_label
from app.kit.facts import Fact, Facts, WholeLines
from app.kit.provenance import Provenance, shown_record, source_of
from app.kit.reader import EDITS, SELECTION, STEPS, pictures
from app.kit.theme import font_fixed
from app.kit.view import View
from app.kit.widgets import column, plain_label
from app.models import Models, Token
from app.models.pictures import ATTENTION, ROW, TABLE, WALL
from app.panels.inspector.words import token_facts


class InspectorState(Struct, frozen=True):
    """A token at a step, with its facts. `is_newest`: no token is selected."""

    token: Token
    step: int
    is_newest: bool
    facts: tuple[Fact, ...]


class InspectorView(View[InspectorState]):
    """Follows the selection; without a selected token it shows the newest."""

    name = "inspector"
    follows = (SELECTION, STEPS, EDITS, pictures(ROW, ATTENTION, TABLE, WALL, at_rest=True))

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._text = plain_label(font=font_fixed(18, QFont.Weight.Medium), can_select=True)
        self._text.setMinimumWidth(1)
        self.facts = Facts()
        self.facts.setAccessibleName("Facts about the token")
        self.set_body(column(self._text, 6, (WholeLines(self.facts), 1), spacing=0))
        self.follow(models)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(wants_row=is_visible)

    def read(self) -> InspectorState | str:
        record, token = shown_record(self._models), self._token()
        if record is None or token is None:
            now = self._models.selection.now
            if record is not None and (now.position or 0) in range(1, self._models.timeline.num_tokens(now.seq_id)):
                return f"Token {thousands(now.position or 0)} was not there yet after step {thousands(record.step)}."
            return "Click a token, a column or a page to see everything about it."
        facts = token_facts(self._models, record, token)
        return InspectorState(token, record.step, self._models.selection.now.position is None, facts)

    def _token(self) -> Token | None:
        now = self._models.selection.now
        count = self._models.timeline.num_tokens(now.seq_id, now.step)
        position = now.position if now.position is not None else count - 1
        tokens = self._models.timeline.tokens(now.seq_id)
        # a position that this step has not reached has no token here
        return tokens[position] if 0 <= position < min(count, len(tokens)) else None

    def provenance(self, state: InspectorState) -> Provenance:
        return source_of(self._models, "recorded", "", state.step)

    def show_state(self, state: InspectorState) -> None:
        self.set_detail("newest token" if state.is_newest else f"token {thousands(state.token.position)}")
        label = token_label(state.token.text, 40)
        if label != self._text.text():
            self._text.setText(label)
        self.facts.show_facts(state.facts)
