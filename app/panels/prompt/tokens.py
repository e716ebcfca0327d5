"""The tokens of what is written: counted by the engine after a pause, or read at once where ids are typed."""

from __future__ import annotations

from app.models import Models
from app.models.prompt_ids import token_ids
from app.panels.prompt.words import MAX_COUNTED_CHARS
from engine.errors import InputError


class WrittenTokens:
    """`ids`, None where nobody knows them, and the `refusal` that says why there are none."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._asked = ""  # the model and the text that were asked about
        self._tokenizer = ""  # of the model that the tokens are of
        self.ids: tuple[int, ...] | None = None
        self.refusal = ""

    def forget(self) -> None:
        """Something else is written: until it is counted nothing speaks against it."""
        self.ids, self.refusal, self._asked = None, "", ""

    def read_ids(self, text: str, seed: int) -> None:
        """Take the text for token ids."""
        model = self._models.status.model
        try:
            self.ids = token_ids(text, model.geometry.vocab_size, seed) if model is not None else None
        except InputError as error:
            self.refusal = str(error)

    def to_be_counted(self, text: str) -> str:
        """The text that the engine should be asked about; empty where it was asked already."""
        text = text[:MAX_COUNTED_CHARS]
        asked = f"{self._newest_tokenizer()}\n{text}"
        if asked == self._asked:
            return ""
        self._asked = asked
        return text

    def follow_model(self) -> bool:
        """Whether another model has come, which has other tokens for the same text."""
        tokenizer = self._newest_tokenizer()
        if tokenizer == self._tokenizer:
            return False
        self._tokenizer, self.ids = tokenizer, None
        return True

    def _newest_tokenizer(self) -> str:
        """What tells it from others: that of an opened file, which cannot be asked, is not that of its model, and the
        same weights may come with other templates, from another folder or from one that was edited."""
        status = self._models.status.now
        if status is None or status.model is None:
            return ""
        model = status.model
        where = " in a file" if status.opened is not None else ""
        return f"{model.fingerprint} {model.text_fingerprint} of {model.source}{where}"
