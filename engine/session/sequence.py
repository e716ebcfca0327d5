"""The bookkeeping of one sequence: its tokens and what comes next. Its cache is elsewhere; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.history.marks import Mark, Pending
from engine.spec.chat import Chat
from engine.spec.sampling import SamplingParams
from engine.wire.prefix_match import ContinuedFrom
from engine.wire.records import SequenceState, StopReason


@dataclass
class Sequence:
    """One sequence. The first `num_tokens` of its `token_ids` have rows in the cache. `sampled`, chosen with
    `sampling`, is fed next, then the tokens in `forced`. `continued` says which sequence's rows the prompt reused,
    `chat` is the conversation that it was rendered from, `note` an unexpected detail of the rendering.

    ::

        |------------- token_ids -------------| sampled | forced ...
        |--- num_tokens ---|--- to prefill ---|
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_tokens: int = 0
    sampled: int | None = None
    sampled_is_forced: bool = False
    forced: Pending = field(default_factory=Pending)
    stop: StopReason | None = None
    num_preemptions: int = 0
    continued: ContinuedFrom | None = None
    chat: Chat | None = None
    note: str = ""

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens have no rows yet, so that the next step is a prefill chunk."""
        return self.num_tokens < len(self.token_ids)

    @property
    def has_work(self) -> bool:
        """Whether a step can feed it: it has not ended, and a token is there to be fed."""
        return self.stop is None and (self.is_prefilling or self.sampled is not None)

    @property
    def state(self) -> SequenceState:
        if self.stop is not None:
            return "finished"
        if self.num_tokens == 0:
            return "waiting"
        return "prefill" if self.is_prefilling else "decode"

    def next_ids(self, chunk: int) -> list[int]:
        """The tokens to feed next: up to `chunk` tokens of the prompt, or the sampled one."""
        if self.is_prefilling:
            return self.token_ids[self.num_tokens : self.num_tokens + chunk]
        assert self.sampled is not None
        return [self.sampled]

    def set_next(self, token_id: int, stop: StopReason | None) -> None:
        """Feed the sampled `token_id` next, unless a forced token comes first. `stop`: why the sequence ends here."""
        self.stop = stop
        if self.forced:
            self.sampled, self.sampled_is_forced, self.forced = self.forced.first, True, self.forced.rest
        else:
            self.sampled, self.sampled_is_forced = token_id, False

    def force(self, token_ids: list[int]) -> None:
        """Feed these tokens next, the first in place of the token already chosen."""
        if self.stop in ("end of text", "stop string", "length", "stopped", "non-finite logits"):
            self.stop = None  # a forced token continues a sequence that has ended
        if self.is_prefilling:
            self.forced = Pending(tuple(token_ids))
            return
        self.sampled, self.forced = token_ids[0], Pending(tuple(token_ids)).rest
        self.sampled_is_forced = True

    def keep_first(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens, which have rows, and forget what was chosen to follow them."""
        self.token_ids, self.num_tokens = self.token_ids[:num_tokens], num_tokens
        self.sampled, self.sampled_is_forced, self.forced, self.stop = None, False, Pending(), None

    def append_prompt(self, token_ids: Iterable[int], sampling: SamplingParams) -> None:
        """Append these tokens as part of the prompt."""
        self.token_ids += token_ids
        self.num_prompt_tokens, self.sampling = len(self.token_ids), sampling
        self.sampled, self.sampled_is_forced, self.forced, self.stop = None, False, Pending(), None

    def mark(self) -> Mark:
        return Mark(
            len(self.token_ids),
            self.num_tokens,
            self.sampled,
            self.sampled_is_forced,
            self.forced,
            self.stop,
            self.sampling,
            self.num_preemptions,
        )

    def preempt(self) -> None:
        """Note that its rows were freed. Its tokens and the next one are kept, and are prefilled again later."""
        if self.sampled_is_forced and self.sampled is not None:
            self.forced = self.forced.with_first(
                self.sampled
            )  # the prefill samples again, and a forced token must stay
            self.sampled_is_forced = False
        self.num_tokens = 0
        self.num_preemptions += 1

    def fork(self, seq_id: int) -> Sequence:
        """A copy with another id."""
        continued = self.continued if seq_id == self.seq_id else None
        ids = list(self.token_ids)
        return replace(self, seq_id=seq_id, token_ids=ids, num_preemptions=0, continued=continued)

    def go_back(self, mark: Mark) -> None:
        """Return to the state of `mark`."""
        self.token_ids = self.token_ids[: mark.length]
        self.num_tokens, self.forced, self.sampling = mark.num_tokens, mark.forced, mark.sampling
        self.sampled, self.sampled_is_forced, self.stop = mark.sampled, mark.sampled_is_forced, mark.stop
        self.num_preemptions = mark.num_preemptions
