"""A token as the window shows it, and the tokens of one sequence on the path shown, as they were after any step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from engine.history.state import Run, changed
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


NO_TOKENS = Run[Token]()


class _Since(NamedTuple):
    """The tokens of a sequence from a node on; `computed` is the step that computed the newest of them."""

    node: int
    tokens: Run[Token]
    computed: int


class SequenceTokens:
    """The tokens of one sequence after each node of the path that changed them, so that looking at an earlier step
    shows the tokens of that time. A step costs O(new tokens)."""

    def __init__(self) -> None:
        self._since: list[_Since] = []
        self.num_awaiting = 0  # tokens whose surprisal is still to come

    @property
    def is_empty(self) -> bool:
        return not self._since

    @property
    def first_step(self) -> int | None:
        """The step that computed the first token."""
        return self._since[0].node if self._since else None

    def fork(self, step: int | None, num_tokens: int | None) -> SequenceTokens:
        """A fork of what this sequence had after a step (None: now), or of its first `num_tokens` tokens."""
        made = SequenceTokens()
        made._since = self._since[: self._count_until(step)]
        if num_tokens is not None:
            made._since = [each._replace(tokens=each.tokens.first(num_tokens)) for each in made._since]
        made._count_awaiting()
        return made

    def extend(self, record: StepRecord, part: SequenceStep, served: Sequence[Token] = ()) -> None:
        """Add the tokens that a step computed, behind those `served` by a prefix hit if it has none yet. Tokens that a
        preempted sequence is fed again keep their entry."""
        known = self.until(None) or Run(served)
        if self._replaces(part):
            known = known.first(part.first_position)
        new = []
        for offset, (token_id, text) in enumerate(zip(part.token_ids, part.texts, strict=True)):
            position = part.first_position + offset
            if position < len(known):
                continue
            surprisal = part.surprisal[offset] if offset < len(part.surprisal) else None
            is_prompt = position < part.num_prompt_tokens
            forced = part.forced and not is_prompt
            new.append(
                Token(position, token_id, text, surprisal, record.step, forced, is_prompt, num_fed_before=offset)
            )
        if new:
            self.num_awaiting += sum(token.awaits_surprisal for token in new)
            is_shorter = len(known) < len(self.until(None))
            self._since.append(_Since(record.step, known.extended(new), record.step))
            if is_shorter:
                self._count_awaiting()

    def replace_tokens(
        self, node: int, position: int, num_replaced: int, new: Sequence[tuple[int, str]], *, is_prefill: bool
    ) -> None:
        """Replace `num_replaced` tokens at `position` by others, given as (id, text): an edit, made by `node`. The
        tokens behind are moved, and marked as recomputed if `is_prefill`."""
        old, stop = self.until(None), position + num_replaced
        if position >= len(old):
            return
        is_prompt, moved = old[position].is_prompt, len(new) - num_replaced
        put = [
            Token(position + offset, token_id, text, None, node, forced=True, is_prompt=is_prompt)
            for offset, (token_id, text) in enumerate(new)
        ]
        behind = old[stop:]
        if is_prefill:
            anew = partial(replace, step=node, surprisal=None, is_computed_anew=True)
            behind = [anew(token, position=token.position + moved) for token in behind]
        self._since.append(_Since(node, Run([*old[:position], *put, *behind]), self._since[-1].computed))
        self._count_awaiting()

    def _replaces(self, part: SequenceStep) -> bool:
        known = self.until(None)[part.first_position : part.first_position + len(part.token_ids)]
        return any(token.token_id != token_id for token, token_id in zip(known, part.token_ids, strict=False))

    def truncate(self, step: int) -> None:
        """Forget what came after a step."""
        del self._since[self._count_until(step) :]
        self._count_awaiting()

    def fill(self, step: int, first_position: int, values: Sequence[float]) -> None:
        """Fill in the surprisals of tokens that a step computed, of this sequence or of the one it was forked from."""

        def filled(token: Token) -> Token:
            offset = token.position - first_position
            is_of_step = token.step == step and token.awaits_surprisal and 0 <= offset < len(values)
            return replace(token, surprisal=values[offset]) if is_of_step else token

        runs = changed([each.tokens for each in self._since], filled)
        self._since = [each._replace(tokens=run) for each, run in zip(self._since, runs, strict=True)]
        self._count_awaiting()

    def until(self, step: int | None) -> Run[Token]:
        """The tokens that were there after a step (None: that are there now)."""
        count = self._count_until(step)
        return self._since[count - 1].tokens if count else NO_TOKENS

    def last_computed(self, step: int) -> int | None:
        """The newest step, up to `step`, that computed a token; None if there is none."""
        count = self._count_until(step)
        return self._since[count - 1].computed if count else None

    def _count_until(self, step: int | None) -> int:
        return len(self._since) if step is None else bisect_right(self._since, step, key=_node)

    def _count_awaiting(self) -> None:
        self.num_awaiting = sum(token.awaits_surprisal for token in self.until(None))


def _node(since: _Since) -> int:
    return since.node
