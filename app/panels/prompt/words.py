"""The texts around the prompt's editor: how many tokens it has, and why it cannot be sent."""

from __future__ import annotations

from msgspec import Struct

from app.draw.format import thousands
from app.models.draft import is_random
from engine.counted import counted

TEXT, CHAT, IDS = "text", "chat", "ids"  # how a prompt is written
# Counting the tokens of a longer text while typing would keep the engine busy: only its beginning is counted.
MAX_COUNTED_CHARS = 100_000


class PromptText(Struct, frozen=True):
    """The editor's content and what is known of it: its token `ids` once they are counted, the `refusal` if there are
    none, and the `limit` of tokens for model and cache. `by_ids`: the content is token ids; `is_shortened`: only its
    beginning is shown."""

    content: str
    ids: tuple[int, ...] | None
    refusal: str
    limit: int | None
    by_ids: bool
    is_shortened: bool

    @property
    def excess(self) -> int:
        """How many tokens are too many, as far as they are counted."""
        return 0 if self.ids is None or self.limit is None else max(0, len(self.ids) - self.limit)

    @property
    def is_wrong(self) -> bool:
        return bool(self.excess or (self.refusal and not self.is_empty))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet, which is not shown as an error."""
        return not self.content.strip()

    @property
    def is_random(self) -> bool:
        """Whether the content asks for random tokens."""
        return is_random(self.content)


class PromptState(Struct, frozen=True):
    """The texts around the editor and which offers to show. `problem` says why the prompt cannot be sent; `is_wrong`:
    it is shown in the title, and `warning` says it in a sentence; `is_excess`: there are too many tokens."""

    detail: str
    brief: str
    is_wrong: bool
    is_excess: bool
    problem: str
    warning: str
    invitation: str
    has_seed: bool
    can_clear: bool
    limit: int
    can_send_first: bool
    can_draw_random: bool


def shown(text: PromptText, mode: str, now: str, send_key: str, *, is_greedy: bool) -> PromptState:
    """Everything around the editor; `now` is the progress of a prompt that is being read, empty if there is none."""
    is_refused = bool(text.refusal) and not now and not text.is_empty
    return PromptState(
        detail=text.refusal if is_refused else now or detail(text),
        brief=brief_refusal(mode) if is_refused else "" if now else brief_count(text),
        is_wrong=text.is_wrong and not now,
        is_excess=bool(text.excess) and not text.refusal,
        problem=problem(text, mode),
        warning=sentence(problem(text, mode)) if text.is_wrong and not now else "",
        invitation=invitation(text.by_ids, send_key),
        has_seed=not is_greedy or text.is_random,  # otherwise the seed has no effect
        can_clear=text.is_shortened,
        limit=text.limit or 0,
        can_send_first=bool(text.excess) and mode != CHAT,  # its newest turn would be cut off
        can_draw_random=text.by_ids,
    )


def count(text: PromptText) -> str:
    """The number of tokens; with + if only the beginning of the text was counted."""
    more = "+" if len(text.content) > MAX_COUNTED_CHARS else ""
    return "" if text.ids is None else f"{thousands(len(text.ids))}{more}"


def problem(text: PromptText, mode: str) -> str:
    """Why the prompt cannot be sent, and what to do; empty if it can."""
    if text.refusal:
        return text.refusal
    if not text.content:
        return "type a prompt first"
    if text.excess and mode == CHAT:
        words = "{} tokens are more than the {} that there is room for: take out turns at the beginning, or begin anew"
        return words.format(count(text), thousands(text.limit or 0))
    if text.excess:
        words = "{0} tokens are more than the {1} that there is room for: shorten it, or send the first {1}"
        return words.format(count(text), thousands(text.limit or 0))
    return ""


def sentence(words: str) -> str:
    """A few words as a sentence, with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}." if words else ""


def detail(text: PromptText) -> str:
    """The text after the title: how many tokens there are, and how many fit."""
    words = []
    if text.ids is not None and text.limit is not None:
        words.append(f"{count(text)} of {counted(text.limit, 'token')}")
        if text.is_random:
            words.append("random")
    elif text.by_ids:
        words.append("token ids")
    if text.is_shortened:
        words.append(f"{thousands(len(text.content))} characters, shown in part, sent whole")
    return " · ".join(words)


def brief_count(text: PromptText) -> str:
    """The same where there is no space for words: `8/1,024`."""
    return "" if text.ids is None or text.limit is None else f"{count(text)}/{thousands(text.limit)}"


def brief_refusal(mode: str) -> str:
    """What is wrong, where there is no space for the reason."""
    return {IDS: "no token ids", CHAT: "not yet"}.get(mode, "no tokens")


def invitation(by_ids: bool, send_key: str) -> str:
    """The placeholder of an empty editor."""
    what = "Token ids: 40977 33717 …\nor [40977, 33717]" if by_ids else "Type a beginning…"
    return f"{what}\n{send_key} sends it" if send_key else what
