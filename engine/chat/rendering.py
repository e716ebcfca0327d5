"""A conversation as token ids: rendered by the template of the model, or by the one that a person chose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.chat.template import ChatTemplate, Rendered, TemplateFailed, TemplateLine
from engine.spec.chat import Chat

NO_TEMPLATE = "This model has no chat template: turns are joined as plain text, unless you choose a template file."


@dataclass(frozen=True, eq=False)
class Encoded:
    """Token ids of a prompt, the text that they are of, and where in it each of them begins (empty: the tokenizer does
    not say). `note` is what one might not expect, in a sentence."""

    token_ids: list[int]
    rendered: Rendered
    starts: tuple[int, ...] = ()
    note: str = ""

    def line_of(self, index: int) -> TemplateLine | None:
        """The line of the template that a token came from, where that can be told."""
        return self.rendered.line_at(self.starts[index]) if index < len(self.starts) else None


def template_names(tokenizer: Any) -> tuple[str, ...]:
    """The names of the templates that belong to a tokenizer, the default first; those of the folder's
    `tokenizer_config.json`, `chat_template.jinja` and `additional_chat_templates`."""
    found = getattr(tokenizer, "chat_template", None)
    if isinstance(found, dict):
        return tuple(sorted((str(name) for name in found), key=lambda name: (name != "default", name)))
    return ("default",) if isinstance(found, str) else ()


def template_of(tokenizer: Any, chat: Chat) -> ChatTemplate | None:
    """The template that a conversation asks for; None where the model has none. Raises `TemplateFailed`."""
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
    """A template, compiled once: it is rendered anew at every pause in typing."""
    return ChatTemplate(source)


def encode_chat(tokenizer: Any, chat: Chat) -> Encoded:
    """The ids of a conversation. A template that fails, or that there is not, is told in the note, and the turns are
    joined as plain text, with the special tokens of a plain prompt."""
    rendered, note = None, NO_TEMPLATE
    try:
        template = template_of(tokenizer, chat)
        rendered = None if template is None else template.render(chat, special_tokens(tokenizer))
    except TemplateFailed as error:
        note = f"The chat template cannot be used ({error}): the turns were joined as plain text."
    if rendered is not None and not rendered.text:
        rendered, note = None, "The chat template writes nothing: the turns were joined as plain text."
    if rendered is None:
        return _tokens(tokenizer, Rendered(chat.plain_text), note, has_special_tokens=False)
    return _tokens(tokenizer, rendered, "", has_special_tokens=True)


def _tokens(tokenizer: Any, rendered: Rendered, note: str, *, has_special_tokens: bool) -> Encoded:
    """The template writes special tokens itself: none are added to what it wrote."""
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    options = {"return_offsets_mapping": True} if is_fast and has_special_tokens else {}
    made = tokenizer(rendered.text, add_special_tokens=not has_special_tokens, **options)
    starts = tuple(start for start, _ in made["offset_mapping"]) if options else ()
    return Encoded(list(made["input_ids"]), rendered, starts, note)


def special_tokens(tokenizer: Any) -> dict[str, str]:
    """`bos_token` and its like, by name, as templates use them."""
    found = getattr(tokenizer, "special_tokens_map", {})
    return {str(name): str(token) for name, token in found.items() if isinstance(token, str)}
