"""A chat template: compiled in the sandbox and rendered piece by piece, with the line that wrote each piece; and a
conversation as token ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import GeneratorType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from engine.chat.sandbox import RenderBudget, TemplateSandbox, TemplateTooExpensive
from engine.errors import InputError, first_line
from engine.spec.sampling import JOINED_END, MAX_TEMPLATE_CHARS, PLAIN_END, PLAIN_TEMPLATE, Chat


class TemplateFailed(InputError):
    """A template that cannot be used. The message is a clause with the reason; the caller adds what is done instead."""


@dataclass(frozen=True)
class TemplateLine:
    """A line of a template, numbered from 1."""

    number: int
    text: str


@dataclass(frozen=True, eq=False)
class Rendered:
    """The text that a template wrote. Its piece `n` begins at `starts[n]` and was written by line `lines[n]`."""

    text: str
    starts: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    source: tuple[str, ...] = ()

    def line_at(self, place: int) -> TemplateLine | None:
        """The line of the template that wrote the character at index `place`; None if no template wrote the text.

        This is exact for what the template outputs itself. The output of a macro or a captured block (`{% set x %} … `)
        is attributed to the line that calls or shows it, because it is one value. Literal text that spans several lines
        is counted from its first line.
        """
        number = bisect_right(self.starts, place) - 1
        if number < 0 or not 0 <= place < len(self.text):
            return None
        start = self.starts[number]
        stop = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.text)
        line, piece = self.lines[number], self.text[start:stop]
        if "\n" in piece and piece in "\n".join(self.source):
            line += piece.count("\n", 0, place - start)
        line = min(max(line, 1), len(self.source))
        return TemplateLine(line, self.source[line - 1].strip())


class ChatTemplate:
    """A compiled template. Raises `TemplateFailed` if the source is not a valid template."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateFailed(f"it has {len(source):,} characters and at most {MAX_TEMPLATE_CHARS:,} are read")
        self.source = source
        # size of a conversation that was too expensive, and the message
        self._too_expensive: tuple[int, str] | None = None
        self._sandbox = TemplateSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateFailed(f"line {error.lineno}: {_message(error)}") from None
        except (TemplateError, InputError, ValueError, RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateFailed(_message(error)) from None

    def render(self, chat: Chat, special_tokens: Mapping[str, str]) -> Rendered:
        """Render a conversation; raises `TemplateFailed` with the line of the error. After a conversation was too
        expensive, longer ones are refused without a new attempt, since rendering is repeated at every key."""
        size = sum(len(turn.text) for turn in chat.turns)
        if self._too_expensive is not None and size >= self._too_expensive[0]:
            raise TemplateFailed(self._too_expensive[1])
        self._sandbox.budget = RenderBudget()
        messages = [{"role": turn.role, "content": turn.text} for turn in chat.turns]
        known = {**special_tokens, "messages": messages, "tools": None, "documents": None}
        pieces: list[str] = []
        starts, lines, length = [], [], 0
        try:
            context = self._template.new_context({**known, "add_generation_prompt": chat.wants_answer})
            for piece, line in _pieces(self._template, self._template.root_render_func(context)):
                starts.append(length)
                lines.append(line)
                pieces.append(piece)
                length += len(piece)
                RenderBudget.check_length(length)
                self._sandbox.budget.step()
        except Exception as error:  # a template can raise any exception
            said = f"{_line_prefix(error, self._template)}{_message(error)}"
            if isinstance(error, TemplateTooExpensive):
                self._too_expensive = (size, said)
            raise TemplateFailed(said) from None
        return Rendered("".join(pieces), tuple(starts), tuple(lines), tuple(self.source.splitlines()) or ("",))


def _pieces(template: Template, generator: Any) -> Iterator[tuple[str, int]]:
    """The pieces that a template yields, each with the line of the template whose compiled code, or that of a block in
    it, yields it."""
    for piece in generator:
        inner = generator
        while isinstance(inner.gi_yieldfrom, GeneratorType):
            inner = inner.gi_yieldfrom
        yield str(piece), template.get_corresponding_lineno(inner.gi_frame.f_lineno)


def _line_prefix(error: Exception, template: Template) -> str:
    """The innermost line of the template in an error's traceback, as the beginning of a message; empty if there is
    none."""
    at, line = error.__traceback__, 0
    while at is not None:
        if "__jinja_template__" in at.tb_frame.f_globals:
            line = template.get_corresponding_lineno(at.tb_lineno)
        at = at.tb_next
    return f"line {line}: " if line else ""


def _message(error: BaseException) -> str:
    """The message of an error on one line, without its full stop."""
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    if isinstance(error, TemplateTooExpensive):
        return str(error)
    return (first_line(error) or type(error).__name__)[:200].rstrip(".")


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
