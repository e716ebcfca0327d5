"""A token as the window shows it, and the tokens of a sequence after a node of the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from engine.history.state import Run
from engine.wire.records import SequenceStep


@dataclass(frozen=True)
class Token:
    """One token of a sequence whose K and V are in the cache; `step` is the step that put them there.

    `token_id` is -1 if an opened file does not say it. `surprisal` is in nats, None if it was not computed.
    `is_served`: its K and V came from a prefix hit and were not computed for this sequence. `num_computed_before`: how
    many tokens its step computed before it. `is_computed_anew`: an edit recomputed its K and V, behind other tokens
    than its step computed.
    """

    position: int
    token_id: int
    text: str
    surprisal: float | None
    step: int
    forced: bool
    is_prompt: bool
    is_served: bool = False
    num_computed_before: int = 0
    is_computed_anew: bool = False

    @property
    def id_text(self) -> str:
        """The token id as text, or "not known"."""
        return f"{self.token_id:,}" if self.token_id >= 0 else "not known"

    @property
    def awaits_surprisal(self) -> bool:
        """Whether the surprisal is computed later than K and V, as for the tokens of a long prompt."""
        return self.surprisal is None and self.num_computed_before > 0 and not self.is_computed_anew

    def with_surprisal(self, surprisal: float) -> Token:
        return replace(self, surprisal=surprisal)

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


class Birth(NamedTuple):
    """A sequence was forked: it has what `parent` had after the node `step`, or with `num_tokens` its first tokens."""

    parent: int
    step: int
    num_tokens: int | None


class Lane(NamedTuple):
    """The tokens of a sequence after a node; the steps that computed the first and the newest of them; and its birth,
    None if it was not forked. Runs of tokens share their lists, so that a node costs O(new tokens)."""

    tokens: Run[Token] = NO_TOKENS
    first: int | None = None
    computed: int | None = None
    birth: Birth | None = None

    def fork(self, birth: Birth | None, num_tokens: int | None) -> Lane:
        """A fork of it, of its first `num_tokens` tokens (None: of all)."""
        return self._replace(tokens=self.tokens if num_tokens is None else self.tokens.first(num_tokens), birth=birth)

    def extend(self, step: int, part: SequenceStep, served: Sequence[Token]) -> Lane:
        """After a step that computed tokens, which stand behind those `served` by a prefix hit if it has none yet.
        Tokens that a preempted sequence is computed again keep their entry."""
        known = self.tokens or Run(served)
        again = known[part.first_position : part.first_position + len(part.token_ids)]
        if any(token.token_id != token_id for token, token_id in zip(again, part.token_ids, strict=False)):
            known = known.first(part.first_position)
        new = []
        for offset, (token_id, text) in enumerate(zip(part.token_ids, part.texts, strict=True)):
            position = part.first_position + offset
            if position < len(known):
                continue
            surprisal = part.surprisal[offset] if offset < len(part.surprisal) else None
            is_prompt = position < part.num_prompt_tokens
            forced = part.forced and not is_prompt
            new.append(Token(position, token_id, text, surprisal, step, forced, is_prompt, num_computed_before=offset))
        if not new:
            return self
        first = step if self.first is None else self.first
        return Lane(known.extended(new), first, step, self.birth)

    def replace(
        self, node: int, position: int, num_replaced: int, new: Sequence[tuple[int, str]], *, is_prefill: bool
    ) -> Lane:
        """After an edit made by `node`: others, given as (id, text), in the place of `num_replaced` tokens at
        `position`. The tokens behind are moved, and marked as recomputed if `is_prefill`."""
        old, stop = self.tokens, position + num_replaced
        if position >= len(old):
            return self
        is_prompt, moved = old[position].is_prompt, len(new) - num_replaced
        put = [
            Token(position + offset, token_id, text, None, node, forced=True, is_prompt=is_prompt)
            for offset, (token_id, text) in enumerate(new)
        ]
        behind = old[stop:]
        if is_prefill:
            anew = partial(replace, step=node, surprisal=None, is_computed_anew=True)
            behind = [anew(token, position=token.position + moved) for token in behind]
        return self._replace(tokens=Run([*old[:position], *put, *behind]))


Lanes = dict[int, Lane]  # of all sequences at one node, by `seq_id`
NO_LANE, NO_LANES = Lane(), Lanes()
