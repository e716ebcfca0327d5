"""What is written as a text and what as token ids, of which the editor shows one."""

from __future__ import annotations

from app.models.prompt_ids import token_ids
from app.panels.prompt.editor import PromptEdit
from app.panels.prompt.words import IDS, TEXT
from engine.errors import InputError


class Drafts:
    """Both stay while the other is shown."""

    def __init__(self, edit: PromptEdit) -> None:
        self._edit = edit
        self._kept = {TEXT: "", IDS: ""}
        self._shown = TEXT

    @property
    def text(self) -> str:
        return self._edit.text() if self._shown == TEXT else self._kept[TEXT]

    @text.setter
    def text(self, text: str) -> None:
        if self._shown == TEXT:
            self._edit.set_text(text)
        else:
            self._kept[TEXT] = text

    def show(self, mode: str, ids: tuple[int, ...] | None) -> None:
        """Have that one in the editor. Where no ids were written, `ids` are those to begin with: the tokens of the
        text, None where nobody knows them; a text is nothing that a model without a tokenizer could read."""
        if mode == self._shown:
            return
        text = self._kept[self._shown] = self._edit.text()
        if mode == IDS and not self._kept[IDS]:
            self._kept[IDS] = " ".join(map(str, ids)) if ids else _ids_in(text)
        self._shown = mode
        self._edit.set_text(self._kept[mode])


def _ids_in(text: str) -> str:
    """A text that is ids already; empty for any other."""
    try:
        token_ids(text, None, seed=0)
    except InputError:
        return ""
    return text
