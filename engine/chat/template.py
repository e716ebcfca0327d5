"""A chat template: compiled in the sandbox and rendered piece by piece, with the line that wrote each piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from engine.chat.budget import RenderBudget, TemplateTooExpensive
from engine.chat.sandbox import TemplateSandbox
from engine.errors import InputError, first_line
from engine.spec.chat import MAX_TEMPLATE_CHARS, Chat


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
