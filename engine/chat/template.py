"""A chat template: compiled in the sandbox, rendered piece by piece, each piece with the line that wrote it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from engine.chat.budget import RenderBudget, TemplateSpends
from engine.chat.sandbox import TemplateSandbox
from engine.errors import InputError, first_line
from engine.spec.chat import MAX_TEMPLATE_CHARS, Chat


class TemplateFailed(InputError):
    """A template that cannot be used, and why; who tells it adds what is done instead."""


@dataclass(frozen=True)
class TemplateLine:
    """A line of a template, counted from 1."""

    number: int
    text: str


@dataclass(frozen=True, eq=False)
class Rendered:
    """The text that a template wrote. Piece `n` of it begins at `starts[n]` and was written by line `lines[n]`."""

    text: str
    starts: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    source: tuple[str, ...] = ()

    def line_at(self, place: int) -> TemplateLine | None:
        """The line of the template that wrote the character at a place; None where no template did.

        That is exact for what the template shows itself. What a macro or a captured block (`{% set x %} … `) wrote is
        of the line that calls or shows it, for it comes as one value. Text of the template that spans lines is counted
        on from its first one.
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
    """Raises `TemplateFailed` for a text that is none."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateFailed(f"it has {len(source):,} characters and at most {MAX_TEMPLATE_CHARS:,} are read")
        self.source = source
        self._spent: tuple[int, str] | None = None  # characters of a conversation that took too long, and what it said
        self._sandbox = TemplateSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateFailed(f"line {error.lineno}: {_said(error)}") from None
        except (TemplateError, InputError, ValueError, RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateFailed(_said(error)) from None

    def render(self, chat: Chat, special_tokens: Mapping[str, str]) -> Rendered:
        """The text of a conversation; raises `TemplateFailed` with the line where that fails. What spent too much is
        not tried again with as much: nobody waits for it at every key."""
        size = sum(len(turn.text) for turn in chat.turns)
        if self._spent is not None and size >= self._spent[0]:
            raise TemplateFailed(self._spent[1])
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
        except Exception as error:  # whatever somebody's template runs into
            said = f"{_where(error, self._template)}{_said(error)}"
            if isinstance(error, TemplateSpends):
                self._spent = (size, said)
            raise TemplateFailed(said) from None
        return Rendered("".join(pieces), tuple(starts), tuple(lines), tuple(self.source.splitlines()) or ("",))


def _pieces(template: Template, generator: Any) -> Iterator[tuple[str, int]]:
    """What a template yields, and the line at which its compiled code, or that of a block in it, stands meanwhile."""
    for piece in generator:
        inner = generator
        while isinstance(inner.gi_yieldfrom, GeneratorType):
            inner = inner.gi_yieldfrom
        yield str(piece), template.get_corresponding_lineno(inner.gi_frame.f_lineno)


def _where(error: Exception, template: Template) -> str:
    """The innermost line of the template that an error passed through."""
    at, line = error.__traceback__, 0
    while at is not None:
        if "__jinja_template__" in at.tb_frame.f_globals:
            line = template.get_corresponding_lineno(at.tb_lineno)
        at = at.tb_next
    return f"line {line}: " if line else ""


def _said(error: BaseException) -> str:
    """One line of what an error says, without its full stop."""
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    if isinstance(error, TemplateSpends):
        return str(error)
    return (first_line(error) or type(error).__name__)[:200].rstrip(".")
