"""The panel that answers why a prompt is not reused: by a server, or by this session's page pool."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox

from app.draw.format import percent, thousands
from app.kit.asking import AnswerView, server_source
from app.kit.facts import Fact, Facts, WholeLines
from app.kit.fields import line_field
from app.kit.provenance import Provenance
from app.kit.theme import font_text
from app.kit.widgets import column, connect_all, plain_label, prose, push_button, row, set_text_role
from app.models import Models
from engine.counted import counted
from engine.wire.message import Command
from engine.wire.serving import ExplainPrefix, PrefixExplained

INVITATION = "Type or paste a prompt, or its token ids, and press Enter: how much of it is cached, and why no more."
MOST_CHARS = 1_000_000


class ReuseState(Struct, frozen=True):
    answer: PrefixExplained | str
    source: Provenance


def facts_of(answer: PrefixExplained) -> tuple[Fact, ...]:
    """The numbers behind the sentence."""
    role = "good" if answer.reused else "warning"
    facts = [
        Fact("reused", f"{thousands(answer.reused)} of {counted(answer.num_tokens, 'token')}", role=role,  # type: ignore[arg-type]
             aside=percent(answer.reused / answer.num_tokens) if answer.num_tokens else "",
             tip="Tokens of the prompt whose blocks are cached, from the first on"),
        Fact("to compute", counted(answer.num_tokens - answer.reused, "token"), tip="The rest of the prompt"),
    ]  # fmt: skip
    if answer.at_least != answer.at_most:
        facts.append(Fact("certain", f"{thousands(answer.at_least)} to {thousands(answer.at_most)}", role="warning",
                          tip="Between these two: not all events of the server were seen"))  # fmt: skip
    if answer.block_size:
        facts.append(Fact("block", counted(answer.block_size, "token"), tip="Only whole blocks are reused"))
    return tuple(facts)


class ReuseView(AnswerView[ReuseState]):
    name = "reuse"

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.prompt = line_field("Prompt, or token ids", hint="A prompt, or token ids like 5 17 42")
        self.prompt.setMaxLength(MOST_CHARS)
        self.salt = line_field("Cache salt", hint="salt")
        self.lora = line_field("Adapter", hint="adapter")
        for field in (self.salt, self.lora):
            field.setMaximumWidth(110)
        self.eagle = QCheckBox("EAGLE")
        self.eagle.setToolTip("The server drafts with EAGLE or MTP, and computes the last block that it finds again")
        self.why = plain_label("", font_text(13), "text", wraps=True)
        self.why.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.why.setAccessibleName("Why not reused")
        self.why.setMinimumWidth(1)
        self.facts = Facts("How much is reused")
        ask = push_button("Ask", self._on_ask, "Look the prompt up in the tree  (Enter)")
        fields = column(row((self.prompt, 1), ask), row(self.salt, self.lora, self.eagle, None), spacing=5)
        self.set_body(column(fields, 4, self.why, 4, (WholeLines(self.facts), 1), spacing=4))
        self._wanted: ExplainPrefix | None = None
        connect_all(
            *((field.returnPressed, self._on_ask) for field in (self.prompt, self.salt, self.lora)),
            (self.eagle.toggled, self._on_ask),
        )
        self.follow(models)

    def question(self) -> Command | None:
        if (wanted := self._wanted) is None:
            return None
        server = self._models.servers.chosen
        return replace(wanted, server=server, eagle=wanted.eagle and bool(server))  # the pool here drafts nothing

    def read(self) -> ReuseState | str:
        self.eagle.setEnabled(bool(self._models.servers.chosen))
        answer = INVITATION if self._wanted is None or self.answer is None else self.answer
        return ReuseState(answer, server_source(self._models))

    def show_state(self, state: ReuseState) -> None:
        answer = state.answer if isinstance(state.answer, PrefixExplained) else None
        self.why.setText(prose(answer.why) if answer is not None else str(state.answer))
        set_text_role(self.why, "text" if answer is not None else "muted")
        self.facts.show_facts(facts_of(answer) if answer is not None else ())
        self.set_detail(answer.reason if answer is not None else "")

    def provenance(self, state: ReuseState) -> Provenance | None:
        return state.source if isinstance(state.answer, PrefixExplained) else None

    def ask(self, text: str, salt: str = "", lora: str = "") -> None:
        """Look a prompt up, and show the answer from now on."""
        for field, value in ((self.prompt, text), (self.salt, salt), (self.lora, lora)):
            field.setText(value)
        self._on_ask()

    def _on_ask(self) -> None:
        text, salt, lora = (field.text() for field in (self.prompt, self.salt, self.lora))
        eagle = self.eagle.isChecked()
        self._wanted = ExplainPrefix(text, salt=salt, lora=lora, eagle=eagle) if text.strip() else None
        self.refresh()
