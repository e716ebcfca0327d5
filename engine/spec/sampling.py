"""What a sequence starts from and how its tokens are chosen: a prompt, which may be a conversation, its turns written
as one text by a chat template, and sampling. Frozen, and checked when constructed."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.condition import quoted, unescaped
from engine.spec.edit import BiasLogits

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


# ---- sampling --------------------------------------------------------------------------------------------------------


class LogitBias(Struct, frozen=True, array_like=True):
    """What changes logits before a token is chosen: `biases` (token id, added number), `banned` tokens, which are never
    chosen, and `only`: if it is not empty, no other tokens are chosen."""

    biases: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    only: tuple[int, ...] = ()

    @classmethod
    def of(cls, edit: BiasLogits) -> LogitBias | None:
        """The bias that an edit sets; None if the edit is empty, which ends the bias."""
        bias = cls(edit.biases, edit.banned, edit.only)
        return None if bias == cls() else bias


# The source of random numbers: torch's generator on the CPU, or a counter-based one that any device can compute.
DrawRule = Literal["torch", "counter"]
NEWEST_DRAWS: DrawRule = "counter"
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 16, 200


class SamplingParams(Struct, frozen=True):
    """How the next token is chosen. `temperature` 0 is greedy; None switches a filter off.

    The draw at a position depends on `seed` and that position alone, so going back and stepping again repeats it.
    `draws` names the random generator; files written before there was a choice name none and used `torch`. A sequence
    ends with the token that completes one of the texts `stop` in what it generated. `bias` changes the logits; an edit
    sets it, and it stays until another edit replaces it. `max_new_tokens` ends a sequence that has generated so many,
    with the token that the model's generation config forces there, if it forces one.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    bias: LogitBias | None = None
    max_new_tokens: int | None = None
    draws: DrawRule = "torch"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"Temperature {self.temperature} is not a number from 0 up; 0 means greedy.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top-k {self.top_k} keeps no token: give 1 or more.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p {self.top_p} is outside (0, 1].")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise InputError(f"min-p {self.min_p} is outside [0, 1].")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InputError(f"{self.max_new_tokens} new tokens are none: give 1 or more.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Seed {self.seed} is outside 0 … 2^63 - 1.")
        self._check_stop()

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InputError(f"{len(self.stop)} stop strings are too many: give {MAX_STOP_STRINGS} at most.")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_LENGTH:
                raise InputError(f"A stop string has 1 to {MAX_STOP_LENGTH} characters, not {len(text)}: change it.")
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise InputError("A stop string holds half a character, which is no text: remove or retype it.")

    def ending_at(self, text: str) -> SamplingParams:
        """The same, and a sequence ends with this text too; an empty one, or one too many, changes nothing."""
        if not text or text in self.stop or len(self.stop) == MAX_STOP_STRINGS:
            return self
        return replace(self, stop=(*self.stop, text))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


class Prompt(Struct, frozen=True):
    """What a sequence starts from: text, token ids or a conversation; exactly one of the three.

    `sampling` None means the session's default for the next prompt. In an encoder-decoder the encoder reads the whole
    prompt and the decoder starts from its own start token; `has_start` says that this token is the last of `token_ids`.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams | None = None
    chat: Chat | None = None
    has_start: bool = False

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.text, self.token_ids, self.chat)) != 1:
            raise InputError("A prompt is text, token ids or a conversation: give exactly one of them.")
        if self.text == "" or self.token_ids == ():
            raise InputError("The prompt is empty: type some text first.")
        if self.text is not None and any("\ud800" <= c <= "\udfff" for c in self.text):
            raise InputError("The prompt holds half a character, which is no text: remove or retype it.")


# ---- stop strings, as people type them -------------------------------------------------------------------------------

_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)


def stop_strings(text: str) -> tuple[str, ...]:
    """Parse stop strings as a person types them: one without quotes, or several, each between quotes. Raises
    `InputError`."""
    if not text.strip():
        return ()
    if '"' not in text:
        return (unescaped(text),)
    if (rest := _QUOTED.sub("", text).replace(",", "").strip()) != "":
        raise InputError(f'“{rest[:40]}” stands outside quotes: write each stop string as "text", one after the other.')
    return tuple(unescaped(found) for found in _QUOTED.findall(text))


def stop_text(stops: tuple[str, ...]) -> str:
    """The text that `stop_strings` reads back as these stop strings."""
    return " ".join(map(quoted, stops))
