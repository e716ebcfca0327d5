"""A token as the window shows it, and the tokens of one sequence on the path shown, as they were after any step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import overload

from engine.wire.records import SequenceStep, StepRecord


@dataclass(frozen=True)
class Token:
    """One token of a sequence whose K and V are in the cache; `step` is the step that put them there.

    `token_id` is -1 if an opened file does not say it. `surprisal` is in nats, None if it was not computed.
    `is_served`: its K and V came from a prefix hit and were not computed for this sequence. `num_fed_before`: how many
    tokens its step fed before it. `is_computed_anew`: an edit recomputed its K and V, behind other tokens than its step
    fed.
    """

    position: int
    token_id: int
    text: str
    surprisal: float | None
    step: int
    forced: bool
    is_prompt: bool
    is_served: bool = False
    num_fed_before: int = 0
    is_computed_anew: bool = False

    @property
    def id_text(self) -> str:
        """The token id as text, or "not known"."""
        return f"{self.token_id:,}" if self.token_id >= 0 else "not known"

    @property
    def awaits_surprisal(self) -> bool:
        """Whether the surprisal is computed later than K and V, as for the tokens of a long prompt."""
        return self.surprisal is None and self.num_fed_before > 0 and not self.is_computed_anew

    @property
    def no_surprisal(self) -> str:
        """Why the token has no surprisal, in words; empty if it has one."""
        if self.surprisal is not None:
            return ""
        if self.awaits_surprisal:
            return "not computed yet: comes when the engine rests"
        if self.is_computed_anew:
            return "not computed: other tokens were put in before it"
        if self.is_served:
            return "not computed: its page was found"
        return "nothing predicted it" if self.position == 0 else "not computed: no logits of the token before it"


class TokenRun(Sequence[Token]):
    """The first `count` tokens of a list that only grows: an immutable view that copies nothing."""

    __slots__ = ("_count", "_tokens")

    def __init__(self, tokens: list[Token], count: int) -> None:
        self._tokens, self._count = tokens, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Token: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Token, ...]: ...
    def __getitem__(self, index: int | slice) -> Token | tuple[Token, ...]:
        if isinstance(index, slice):
            return tuple(self._tokens[place] for place in range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(f"token {index} of {self._count}")
        return self._tokens[index if index >= 0 else self._count + index]

    def __iter__(self) -> Iterator[Token]:
        return map(self._tokens.__getitem__, range(self._count))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenRun) and other._tokens is self._tokens:
            return other._count == self._count
        if not isinstance(other, TokenRun | tuple):
            return NotImplemented
        return len(other) == self._count and list(self) == list(other)

    def is_of_list(self, other: TokenRun) -> bool:
        """Whether both are views of the same list."""
        return self._tokens is other._tokens

    def is_of(self, tokens: list[Token], count: int) -> bool:
        """Whether this is a view of the first `count` tokens of this very list."""
        return self._tokens is tokens and self._count == count

    def __hash__(self) -> int:
        return hash((self._count, self[-1:]))


NO_TOKENS = TokenRun([], 0)


def num_shared(one: Sequence[Token], other: Sequence[Token]) -> int:
    """How many of the first tokens are the same objects; O(1) if both are views of one list."""
    least = min(len(one), len(other))
    if isinstance(one, TokenRun) and isinstance(other, TokenRun) and one.is_of_list(other):
        return least
    return next((index for index in range(least) if one[index] is not other[index]), least)


@dataclass
class _Version:
    """The tokens that a sequence had from step `since` on, after some were replaced by others. `steps` has the step
    that fed each token, ascending, so that those of a step are found by bisection."""

    since: int
    tokens: list[Token] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shown: TokenRun = field(default_factory=lambda: TokenRun([], 0))

    def run(self, count: int) -> TokenRun:
        """The first `count` tokens; returns the same object until the tokens change."""
        if not self.shown.is_of(self.tokens, count):
            self.shown = TokenRun(self.tokens, count)
        return self.shown

    def until(self, step: int | None) -> int:
        return len(self.steps) if step is None else bisect_right(self.steps, step)

    def cut_to(self, count: int) -> None:
        """Keep the first `count` tokens; views that were handed out stay as they are."""
        if count < len(self.tokens):
            self.tokens, self.steps = self.tokens[:count], self.steps[:count]


class SequenceTokens:
    """The tokens of one sequence; `extend` costs O(new tokens). When tokens are replaced, a new version is begun, so
    that looking at an earlier step shows the tokens of that time."""

    def __init__(self) -> None:
        self._versions = [_Version(-1)]
        self.num_awaiting = 0  # tokens whose surprisal is still to come

    @property
    def _newest(self) -> _Version:
        return self._versions[-1]

    @property
    def is_empty(self) -> bool:
        return not self._newest.tokens

    @property
    def first_step(self) -> int | None:
        """The step that fed the first token."""
        return self._versions[0].steps[0] if self._versions[0].steps else None

    def begin(self, tokens: Sequence[Token]) -> None:
        """Begin with tokens that no step of this sequence fed."""
        self._versions = [_Version(-1, list(tokens), [token.step for token in tokens])]
        self._count_awaiting()

    def extend(self, record: StepRecord, part: SequenceStep) -> None:
        """Add the tokens that a step fed. Tokens that a preempted sequence is fed again keep their entry."""
        if self._replaces(part):
            kept = self._newest
            count = part.first_position
            self._versions.append(_Version(record.step, kept.tokens[:count], kept.steps[:count]))
            self._count_awaiting()
        version = self._newest
        known = len(version.tokens)
        for offset, (token_id, text) in enumerate(zip(part.token_ids, part.texts, strict=True)):
            position = part.first_position + offset
            if position < known:
                continue
            surprisal = part.surprisal[offset] if offset < len(part.surprisal) else None
            is_prompt = position < part.num_prompt_tokens
            forced = part.forced and not is_prompt
            token = Token(position, token_id, text, surprisal, record.step, forced, is_prompt, num_fed_before=offset)
            self.num_awaiting += token.awaits_surprisal
            version.tokens.append(token)
            version.steps.append(record.step)

    def replace_tokens(
        self, step: int, position: int, num_replaced: int, new: Sequence[tuple[int, str]], *, is_prefill: bool
    ) -> None:
        """Replace `num_replaced` tokens at `position` by others, given as (id, text): an edit, the node `step`. The
        tokens behind are moved, and marked as recomputed if `is_prefill`."""
        old, stop = self._newest, position + num_replaced
        if not old.tokens or position >= len(old.tokens):
            return
        first, moved = old.tokens[position], len(new) - num_replaced
        put = [
            Token(position + offset, token_id, text, None, step, forced=True, is_prompt=first.is_prompt)
            for offset, (token_id, text) in enumerate(new)
        ]
        behind = old.tokens[stop:]
        if is_prefill:
            anew = partial(replace, step=step, surprisal=None, is_computed_anew=True)
            behind = [anew(token, position=token.position + moved) for token in behind]
        # the new tokens count as present from the step on that fed the first token they replace
        steps = [*old.steps[:position], *[old.steps[position]] * len(new), *old.steps[stop:]]
        self._versions.append(_Version(step, [*old.tokens[:position], *put, *behind], steps))
        self._count_awaiting()

    def _replaces(self, part: SequenceStep) -> bool:
        known = self._newest.tokens[part.first_position : part.first_position + len(part.token_ids)]
        return any(token.token_id != token_id for token, token_id in zip(known, part.token_ids, strict=False))

    def truncate(self, step: int) -> None:
        """Drop the tokens that were fed after a step."""
        while len(self._versions) > 1 and self._newest.since > step:
            self._versions.pop()
        self._newest.cut_to(self._newest.until(step))
        self._count_awaiting()

    def fill(self, step: int, first_position: int, values: Sequence[float]) -> None:
        """Fill in the surprisals of tokens that a step fed, to this sequence or to the one it was forked from."""
        for version in self._versions:
            tokens = list(version.tokens)  # a copy: views that were handed out stay as they are
            for position, value in enumerate(values, first_position):
                token = tokens[position] if position < len(tokens) else None
                if token is not None and token.step == step and token.awaits_surprisal:
                    tokens[position] = replace(token, surprisal=value)
                    version.tokens = tokens
        self._count_awaiting()

    def until(self, step: int | None) -> TokenRun:
        """The tokens that were there after a step (None: that are there now)."""
        version = self._at(step)
        return version.run(version.until(step))

    def num_until(self, step: int | None) -> int:
        return self._at(step).until(step)

    def last_fed(self, step: int) -> int | None:
        """The newest step, up to `step`, that fed a token; None if there is none."""
        version = self._at(step)
        count = version.until(step)
        return version.steps[count - 1] if count else None

    def token(self, position: int) -> Token | None:
        tokens = self._newest.tokens
        return tokens[position] if 0 <= position < len(tokens) else None

    def _at(self, step: int | None) -> _Version:
        if step is None or len(self._versions) == 1:
            return self._newest
        first, *later = self._versions
        return next((version for version in reversed(later) if version.since <= step), first)

    def _count_awaiting(self) -> None:
        self.num_awaiting = sum(token.awaits_surprisal for token in self._newest.tokens)
