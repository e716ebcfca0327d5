"""Token ids as text and back, by the tokenizer of the served model, without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from engine.errors import InputError, first_line
from engine.geometry.dimensions import CacheGeometry

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
        self.bytes_per_token: int = _bytes_per_token(folder / "config.json")

    def encode(self, text: str) -> tuple[int, ...]:
        """As servers do: with the special tokens that the tokenizer adds."""
        return tuple(self._backend.encode(text).ids)

    def pieces(self, words: str) -> list[tuple[int, ...]]:
        """Words as they may stand within a text: at a beginning, and after a space."""
        return [tuple(self._backend.encode(text, add_special_tokens=False).ids) for text in (words, f" {words}")]

    def texts(self, ids: Sequence[int]) -> str:
        """Ids in their order as text; those that it does not know as numbers."""
        if any(not 0 <= each < self.num_tokens for each in ids):
            return " ".join(map(str, ids))
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


def _bytes_per_token(config: Path) -> int:
    """Bytes of K and V of one token in the dtype of the weights; 0 where no config says it."""
    try:
        values = json.loads(config.read_text("utf-8"))
        dtype = str(values.get("dtype") or values.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        return int(CacheGeometry.from_config(values).bytes_per_token(dtype))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return 0
