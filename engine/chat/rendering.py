"""Encodes a conversation as token ids, with a chat template of the model or with one that a person chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from engine.chat.template import ChatTemplate, Rendered, TemplateFailed, TemplateLine
from engine.spec.chat import JOINED_END, PLAIN_END, PLAIN_TEMPLATE, Chat

Tokenize = Callable[..., Any]
NO_TEMPLATE = (
    "This model has no chat template: turns are joined by empty lines, and an answer ends at the next one, unless you "
    "choose a template."
)


@dataclass(frozen=True, eq=False)
class Encoded:
    """The token ids of a prompt, its text, and where in the text each token begins (empty if the tokenizer does not
    tell). `note` says in a sentence what may be unexpected. `turn_end` is the text that ends an answer, where only the
    text can: empty if the template has a token for that."""

    token_ids: list[int]
    rendered: Rendered
    starts: tuple[int, ...] = ()
    note: str = ""
    turn_end: str = ""

    def line_of(self, index: int) -> TemplateLine | None:
        """The line of the template that wrote a token; None if unknown."""
        return self.rendered.line_at(self.starts[index]) if index < len(self.starts) else None


def template_names(tokenizer: Any) -> tuple[str, ...]:
    """The names of a tokenizer's templates, the default first; they come from `tokenizer_config.json`,
    `chat_template.jinja` and `additional_chat_templates` in its folder."""
    found = getattr(tokenizer, "chat_template", None)
    if isinstance(found, dict):
        return tuple(sorted((str(name) for name in found), key=lambda name: (name != "default", name)))
    return ("default",) if isinstance(found, str) else ()


def template_of(tokenizer: Any, chat: Chat) -> ChatTemplate | None:
    """The template for a conversation; None if the model has none. Raises `TemplateFailed`."""
    if chat.template_text:
        return compiled(chat.template_text)
    names = template_names(tokenizer)
    if not names:
        return None
    name = chat.template or names[0]
    if name not in names:
        raise TemplateFailed(f"the model has none of the name '{name[:40]}', but {', '.join(names)[:80]}")
    found = tokenizer.chat_template
    return compiled(found[name] if isinstance(found, dict) else found)


@lru_cache(maxsize=8)
def compiled(source: str) -> ChatTemplate:
    """A compiled template, cached because it is rendered again at every pause in typing."""
    return ChatTemplate(source)


def encode_chat(tokenizer: Any, chat: Chat, tokenize: Tokenize | None = None) -> Encoded:
    """Encode a conversation; `tokenize` calls the tokenizer, in a way that can be given up for instance. If there is no
    template, or it fails, the note says so, and the turns are joined as plain text with the special tokens of a plain
    prompt."""
    rendered, note, tokenize = None, NO_TEMPLATE, tokenize or tokenizer
    try:
        template = template_of(tokenizer, chat)
        rendered = None if template is None else template.render(chat, special_tokens(tokenizer))
    except TemplateFailed as error:
        note = f"The chat template cannot be used ({error}): the turns were joined as plain text."
    if rendered is not None and not rendered.text:
        rendered, note = None, "The chat template writes nothing: the turns were joined as plain text."
    if rendered is None:
        encoded = _tokens(tokenizer, tokenize, Rendered(chat.plain_text), note, has_special_tokens=False)
        return replace(encoded, turn_end=JOINED_END)
    encoded = _tokens(tokenizer, tokenize, rendered, "", has_special_tokens=True)
    return replace(encoded, turn_end=PLAIN_END) if chat.template_text == PLAIN_TEMPLATE else encoded


def _tokens(tokenizer: Any, tokenize: Tokenize, rendered: Rendered, note: str, *, has_special_tokens: bool) -> Encoded:
    """Tokenise a rendered text. A template writes special tokens itself, so none are added then."""
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    options = {"return_offsets_mapping": True} if is_fast and has_special_tokens else {}
    made = tokenize(rendered.text, add_special_tokens=not has_special_tokens, **options)
    starts = tuple(start for start, _ in made["offset_mapping"]) if options else ()
    return Encoded(list(made["input_ids"]), rendered, starts, note)


def special_tokens(tokenizer: Any) -> dict[str, str]:
    """`bos_token` and the other special tokens by name, for use in templates."""
    found = getattr(tokenizer, "special_tokens_map", {})
    return {str(name): str(token) for name, token in found.items() if isinstance(token, str)}
