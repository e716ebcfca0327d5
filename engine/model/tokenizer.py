"""Finds and loads the tokenizer of a model, if it has one, and writes token ids as text for people."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.errors import InputError, first_line
from engine.model.source import ModelSource
from engine.spec.model import ModelSpec

MAX_SPECIAL_IDS = 512  # most that are reported: some vocabularies reserve thousands


def find_tokenizer(spec: ModelSpec, source: ModelSource) -> tuple[PreTrainedTokenizerBase | None, str]:
    """The tokenizer of a model folder, or the one next to a config; where there is none, a note that says so.

    With a config alone, a tokenizer that cannot be read is only noted: the model's cache can be inspected without it.
    """
    folder = source.folder or folder_beside_config(spec)
    try:
        found = load_tokenizer(folder) if folder is not None else None
    except InputError as error:
        if source.folder is not None:
            raise
        return None, f"no tokenizer, prompts are token ids: {error}"
    return found, "" if found is not None else "no tokenizer: prompts are token ids"


def folder_beside_config(spec: ModelSpec) -> Path | None:
    """The folder of a config that is loaded without weights, which may hold its tokenizer; None for any other model."""
    return spec.shape_config.parent if spec.shape_config is not None else None


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer in a folder; None if it has none. Raises `InputError` for one that cannot be read."""
    if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizer files fail in as many ways as there are formats
        raise InputError(f"The tokenizer in '{folder}' cannot be read ({first_line(error)}): copy it again.") from None


def special_ids(tokenizer: Any) -> tuple[int, ...]:
    """Ids of tokens that are not text, such as the beginning of a text or of a role; at most `MAX_SPECIAL_IDS` of
    them."""
    if tokenizer is None:
        return ()
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {*tokenizer.all_special_ids, *(i for i, token in added.items() if getattr(token, "special", False))}
    return tuple(sorted(int(each) for each in found)[:MAX_SPECIAL_IDS])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """BLAKE2b of the tokenizer in its file format, or of its vocabulary; empty without a tokenizer."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


SENTENCEPIECE_SPACE = "▁"
REPLACEMENT = "\ufffd"


class TokenTexts(dict[int, str]):
    """The texts of single tokens, each decoded once. Without a tokenizer, a token's text is its number."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._bytes = byte_alphabet() if tokenizer is not None else {}

    if TYPE_CHECKING:

        def __call__(self, token_id: int) -> str: ...

    else:
        __call__ = dict.__getitem__  # a known text costs no function of ours: a step asks for twenty

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._decode(token_id)
        return text

    def _decode(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"<{token_id}>"
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        piece = self._tokenizer.convert_ids_to_tokens(token_id) or ""
        if REPLACEMENT in text and all(c in self._bytes for c in piece):
            return "".join(f"<{self._bytes[c]:02X}>" for c in piece)
        if piece.startswith(SENTENCEPIECE_SPACE) and not text.startswith(" "):
            return " " + text
        return text


def byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE represents bytes, and these bytes (Radford et al., 2019)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}
