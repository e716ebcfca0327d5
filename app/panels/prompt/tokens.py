"""The token ids of the prompt: counted by the engine after a pause, or parsed at once if ids are typed."""

from __future__ import annotations

from app.models import Models
from app.models.prompt_ids import token_ids
from app.panels.prompt.words import MAX_COUNTED_CHARS
from engine.errors import InputError


class WrittenTokens:
    """`ids`, None if they are not known; `refusal` says why there are none."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._asked = ""  # the tokenizer and text of the latest question
        self._tokenizer = ""  # identity of the tokenizer that `ids` belong to
        self.ids: tuple[int, ...] | None = None
        self.refusal = ""

    def forget(self) -> None:
        """Clear ids and refusal, because the text has changed."""
        self.ids, self.refusal, self._asked = None, "", ""

    def read_ids(self, text: str, seed: int) -> None:
        """Parse a text of token ids."""
        model = self._models.status.model
        try:
            self.ids = token_ids(text, model.geometry.vocab_size, seed) if model is not None else None
        except InputError as error:
            self.refusal = str(error)

    def to_be_counted(self, text: str) -> str:
        """The text that the engine should be asked about; empty if it was asked already."""
        text = text[:MAX_COUNTED_CHARS]
        asked = f"{self._newest_tokenizer()}\n{text}"
        if asked == self._asked:
            return ""
        self._asked = asked
        return text

    def follow_model(self) -> bool:
        """Clear the ids if another model, and so another tokenizer, was loaded; returns whether it was."""
        tokenizer = self._newest_tokenizer()
        if tokenizer == self._tokenizer:
            return False
        self._tokenizer, self.ids = tokenizer, None
        return True

    def _newest_tokenizer(self) -> str:
        """The identity of the present tokenizer. It contains the source and whether it is of an opened file, which
        cannot be asked: the same weights may come with other templates in another folder, or in one that was edited."""
        status = self._models.status.now
        if status is None or status.model is None:
            return ""
        model = status.model
        where = " in a file" if status.opened is not None else ""
        return f"{model.fingerprint} {model.text_fingerprint} of {model.source}{where}"
