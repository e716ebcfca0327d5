"""What was: where every sequence stood after each step, and the logits and attention rows of the latest ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.history.journal import Journal
from engine.history.late_surprisal import LateSurprisal
from engine.history.log import BoundedLog
from engine.history.marks import Checkpoint, Mark
from engine.spec.cache import CacheSpec

if TYPE_CHECKING:
    import torch

ATTENTION_LOG_BYTES = 256 << 20
LOGITS_LOG_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class LoggedLogits:
    """Logits `[V]` that a step gave a sequence which had `num_tokens` tokens after it, in a cache mode."""

    step: int
    num_tokens: int
    logits: torch.Tensor
    cache: CacheSpec


class History:
    """The journal of a session, with what is logged of its steps. `next_step` is the number of the coming one."""

    def __init__(self) -> None:
        self.attention: BoundedLog[torch.Tensor] = BoundedLog(ATTENTION_LOG_BYTES)
        self.logits: BoundedLog[torch.Tensor] = BoundedLog(LOGITS_LOG_BYTES)
        self.surprisal = LateSurprisal()
        self.journal = Journal()
        self.next_step = 0

    def restart(self, seq_ids: Iterable[int], cache: CacheSpec) -> None:
        """Steps count from 0 again, and there is nothing to go back to."""
        self.attention.clear()
        self.logits.clear()
        self.surprisal.clear()
        self.journal = Journal()
        self.next_step = 0
        for seq_id in seq_ids:
            self.journal.begun(seq_id, cache)

    def begin_at(
        self,
        step: int,
        seq_id: int,
        mark: Mark,
        cache: CacheSpec,
        logits: torch.Tensor | None,
        attention: dict[int, torch.Tensor],
    ) -> None:
        """The first step that is known is `step`, which left one sequence so: a snapshot is gone on from."""
        self.restart((seq_id,), cache)
        self.next_step = step
        if logits is not None:
            self.log(seq_id, logits, attention)
        self.add({seq_id: mark}, cache)

    @property
    def last_step(self) -> int | None:
        return self.next_step - 1 if self.next_step else None

    @property
    def num_bytes(self) -> int:
        return self.attention.num_bytes + self.logits.num_bytes + self.surprisal.num_bytes

    # ---- a step --------------------------------------------------------------------------------------------------

    def log(self, seq_id: int, logits: torch.Tensor, attention: dict[int, torch.Tensor]) -> None:
        """Keep what the coming step gave a sequence: logits `[V]`, attention rows `[H, S]` by layer."""
        key = (self.next_step, seq_id)
        self.logits.put(key, {0: logits})
        if attention:
            self.attention.put(key, attention)

    def unlog(self, seq_id: int) -> None:
        """The coming step failed."""
        for log in (self.attention, self.logits, self.surprisal):
            log.drop((self.next_step, seq_id))

    def add(self, marks: dict[int, Mark], cache: CacheSpec) -> None:
        """The coming step is done; from here on it cannot fail any more."""
        self.journal.add(Checkpoint(self.next_step, marks, cache))
        self.next_step += 1

    def back_to(self, step: int) -> None:
        """Forget all that came after a step."""
        self.journal.back_to(step)
        self.attention.drop_after(step)
        self.logits.drop_after(step)
        self.surprisal.drop_after(step)
        self.next_step = step + 1

    # ---- what steps gave -----------------------------------------------------------------------------------------

    def logits_at(self, seq_id: int, step: int) -> torch.Tensor | None:
        """The logits `[V]` that a sequence had after a step, if they are still kept."""
        fed_at = self.journal.fed_at(seq_id, step)
        entry = self.logits.get(fed_at) if fed_at else None
        return entry[0] if entry else None

    def attention_at(self, seq_id: int, step: int) -> dict[int, torch.Tensor]:
        """The weights `[H, S]` by layer of the newest step up to `step` that fed a sequence, where they are kept."""
        fed_at = self.journal.fed_at(seq_id, step)
        return (self.attention.get(fed_at) or {}) if fed_at else {}

    def attention_with(self, seq_id: int, num_tokens: int) -> dict[int, torch.Tensor]:
        """The weights `[H, S]` by layer of the step that brought a sequence to so many tokens, where they are kept."""
        for step in reversed(range(self.next_step)):
            mark, fed_at = self.journal.mark(seq_id, step), self.journal.fed_at(seq_id, step)
            if mark is None or fed_at is None or mark.num_tokens < num_tokens:
                break
            rows = self.attention.get(fed_at)
            if mark.num_tokens == num_tokens and rows is not None:
                return rows
        return {}

    def logged_logits(self, seq_id: int) -> list[LoggedLogits]:
        """The steps that fed a sequence and whose logits are still kept."""
        found = []
        for step in range(self.next_step):
            checkpoint, mark = self.journal.at(step), self.journal.mark(seq_id, step)
            fed_at = self.journal.fed_at(seq_id, step)
            entry = self.logits.get(fed_at) if fed_at is not None and fed_at[0] == step else None
            if entry is not None and checkpoint is not None and mark is not None:
                found.append(LoggedLogits(step, mark.num_tokens, entry[0], checkpoint.cache))
        return found

    def logged_steps(self, seq_id: int, above: int, cache: CacheSpec) -> dict[int, int]:
        """The steps in a cache mode whose logits are kept, by the numbers of tokens, ascending, beyond `above` that a
        sequence had after them; O(what is beyond)."""
        found: list[tuple[int, int]] = []
        for step in reversed(range(self.journal.first_step, self.next_step)):
            mark, fed_at = self.journal.mark(seq_id, step), self.journal.fed_at(seq_id, step)
            if mark is None or mark.num_tokens <= above:
                break
            checkpoint = self.journal.at(step)
            if checkpoint is None or checkpoint.cache != cache:
                continue
            if fed_at is not None and fed_at[0] == step and self.logits.get(fed_at) is not None:
                found.append((mark.num_tokens, step))
        return dict(found[::-1])

    def step_at(self, seq_id: int, num_tokens: int) -> int | None:
        """The newest step after which a sequence had exactly so many tokens."""
        for step in reversed(range(self.journal.first_step, self.next_step)):
            mark = self.journal.mark(seq_id, step)
            if mark is None or mark.num_tokens < num_tokens:
                return None
            if mark.num_tokens == num_tokens:
                fed_at = self.journal.fed_at(seq_id, step)
                return step if fed_at is None else fed_at[0]
        return None

    def step_with(self, seq_id: int, num_tokens: int) -> int | None:
        """The first step after which a sequence had so many tokens; the newest where none had."""
        for step in range(self.next_step):
            mark = self.journal.mark(seq_id, step)
            if mark is not None and mark.num_tokens >= num_tokens:
                return step
        return self.last_step
