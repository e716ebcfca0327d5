"""Token ids as text for people: each token separately, even when it is a part of a character."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

SENTENCEPIECE_SPACE = "▁"
REPLACEMENT = "\ufffd"


class TokenTexts:
    """The texts of single tokens, each decoded once. Without a tokenizer, a token's text is its number."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._bytes = byte_alphabet() if tokenizer is not None else {}

    def __call__(self, token_id: int) -> str:
        text = self._known.get(token_id)
        if text is None:
            text = self._known[token_id] = self._decode(token_id)
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
