"""Token ids as text and back, without torch or transformers: by the tokenizer of the served model, or as numbers where
there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from engine.errors import InputError, first_line
from engine.geometry.dimensions import CacheGeometry
from engine.spec.model import RESOURCES

BUNDLED = RESOURCES / "demo_model"
Texts = Callable[[Sequence[int]], str]


class Words(Protocol):
    """What text is read and written by. `bytes_per_token` are those of K and V; 0 where nothing says it."""

    @property
    def bytes_per_token(self) -> int: ...

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt."""

    def pieces(self, words: str) -> list[tuple[int, ...]]:
        """The token ids of words as they may stand within a text: at a beginning, and after a space."""

    def texts(self, ids: Sequence[int]) -> str:
        """Ids in their order as text."""


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
        whole = text.encode("utf-8", "replace").decode()  # half of a character may be pasted
        return tuple(self._backend.encode(whole).ids)

    def pieces(self, words: str) -> list[tuple[int, ...]]:
        whole = words.encode("utf-8", "replace").decode()
        return [tuple(self._backend.encode(text, add_special_tokens=False).ids) for text in (whole, f" {whole}")]

    def texts(self, ids: Sequence[int]) -> str:
        """Those that it does not know as numbers."""
        if any(not 0 <= each < self.num_tokens for each in ids):
            return numbers(ids)
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


class NoTokenizer:
    """Where there is none: ids are numbers, and text is refused."""

    bytes_per_token = 0

    def encode(self, text: str) -> NoReturn:
        raise InputError("Without a tokenizer a prompt is token ids: type some, like 5 17 42.")

    def pieces(self, words: str) -> NoReturn:
        raise InputError("Without a tokenizer only token ids can be searched: type some, like 5 17 42.")

    def texts(self, ids: Sequence[int]) -> str:
        return numbers(ids)


def numbers(ids: Sequence[int]) -> str:
    """Token ids with spaces between them."""
    return " ".join(map(str, ids))


def _bytes_per_token(config: Path) -> int:
    """Bytes of K and V of one token in the dtype of the weights; 0 where no config says it."""
    try:
        values = json.loads(config.read_text("utf-8"))
        dtype = str(values.get("dtype") or values.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        return int(CacheGeometry.from_config(values).bytes_per_token(dtype))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return 0
