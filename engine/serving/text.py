"""Token ids as text and back, by the tokenizer of the served model, without torch or transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import InputError, first_line

BUNDLED = Path(__file__).resolve().parents[2] / "resources" / "demo_model"


class Tokenizer:
    """The `tokenizer.json` of a model's folder."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError where the folder has none that can be read."""
        from tokenizers import Tokenizer as Backend

        path = folder / "tokenizer.json"
        try:
            self._backend = Backend.from_buffer(path.read_bytes())
        except OSError as error:
            why = error.strerror or str(error)
            raise InputError(f"'{path}' cannot be read ({why}): give the folder of the served model.") from None
        except Exception as error:  # the library raises plain ones
            raise InputError(f"'{path}' is no tokenizer ({first_line(error)}): copy it again.") from None
        self.num_tokens = int(self._backend.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        """As servers do: with the special tokens that the tokenizer adds."""
        return tuple(self._backend.encode(text).ids)

    def texts(self, ids: Sequence[int]) -> str:
        """Ids in their order as text; those that it does not know as numbers."""
        if any(not 0 <= each < self.num_tokens for each in ids):
            return " ".join(map(str, ids))
        return str(self._backend.decode(list(ids), skip_special_tokens=False))
