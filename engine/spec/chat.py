"""A conversation as a prompt: turns with roles, and the chat template that writes them as one text. Frozen, and checked
when constructed."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from engine.errors import InputError

ROLES = ("system", "user", "assistant")  # offered for choice; a template may know others
MAX_TURNS = 4_096
MAX_CHARS = 4 << 20  # in all turns together
MAX_TEMPLATE_CHARS = 256 << 10
PLAIN_NAME = "plain (ours)"
PLAIN_TEMPLATE = """{% for message in messages %}
{{ message.role | capitalize }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}"""  # our own, for models that come without a template
# What ends an answer where no token of the model does: the gap between turns that are joined without a template, and
# the beginning of the user's next turn in our own.
JOINED_END, PLAIN_END = "\n\n", "\nUser:"
TURN_ENDS = (JOINED_END, PLAIN_END)
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


class Turn(Struct, frozen=True):
    """What one role said in a conversation."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if not _ROLE.fullmatch(self.role):
            raise InputError(f"'{self.role[:40]}' is no role of a turn: use system, user or assistant.")
        if any("\ud800" <= c <= "\udfff" for c in self.text):
            raise InputError("A turn holds half a character, which is no text: remove or retype it.")


class Chat(Struct, frozen=True):
    """Turns in order. `template` names one of the model's own chat templates (empty: its default one). A person's own
    template is given as `template_text` and takes precedence."""

    turns: tuple[Turn, ...]
    template: str = ""
    template_text: str = ""

    def __post_init__(self) -> None:
        if not self.turns:
            raise InputError("The conversation has no turns: type one first.")
        if len(self.turns) > MAX_TURNS:
            raise InputError(f"{len(self.turns):,} turns are too many: give {MAX_TURNS:,} at most.")
        if (count := sum(len(turn.text) for turn in self.turns)) > MAX_CHARS:
            raise InputError(f"The turns have {count:,} characters, more than the {MAX_CHARS:,} that are rendered.")
        if len(self.template_text) > MAX_TEMPLATE_CHARS or len(self.template) > 200:
            raise InputError(f"A chat template has at most {MAX_TEMPLATE_CHARS:,} characters: this is none.")

    @property
    def wants_answer(self) -> bool:
        """Whether the assistant speaks next, so that the template has to open its turn."""
        return self.turns[-1].role != "assistant"

    @property
    def plain_text(self) -> str:
        """The texts of the turns, joined without roles or template: the prompt where no template can be used. Where an
        answer is wanted it ends with the gap before it, so that the next prompt has the answer's rows in common."""
        text = JOINED_END.join(turn.text for turn in self.turns)
        return f"{text}{JOINED_END}" if text and self.wants_answer else text

    def answered(self, text: str, then: str) -> Chat:
        """The conversation continued by the assistant's answer `text` and the user's next turn `then`."""
        return msgspec.structs.replace(self, turns=(*self.turns, Turn("assistant", text), Turn("user", then)))


def chat_of_json(content: str) -> Chat:
    """Read a conversation from JSON: a list of `{"role": …, "content": …}`, or an object that has such a list as
    `messages`. Raises `InputError`."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(
            f"The conversation is no JSON ({str(error)[:80]}): write a list of roles and contents."
        ) from None
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        raise InputError('The conversation has no turns: write [{"role": "user", "content": "…"}].')
    return Chat(tuple(map(_turn_of, messages)))


def _turn_of(message: Any) -> Turn:
    role = message.get("role") if isinstance(message, dict) else None
    text = message.get("content") if isinstance(message, dict) else None
    if not (isinstance(role, str) and isinstance(text, str)):
        raise InputError('A turn of the conversation is no {"role": "user", "content": "…"} of two texts: rewrite it.')
    return Turn(role, text)
