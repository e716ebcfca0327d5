"""The tokens of every sequence at every node of a saved session, derived without its model. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from engine.saved.check import Unusable
from engine.spec.edit import ReplaceTokens
from engine.spec.sampling import SamplingParams
from engine.wire.changes import (
    Change,
    EditMade,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
)
from engine.wire.records import StopReason
from engine.wire.tree import Node, PlannedPart

UNKNOWN = -1  # stands for a token that the file does not contain
MAX_UNKNOWN = 1 << 21
MAX_KEPT = 1 << 25  # tokens remembered at nodes where branches begin


@dataclass
class SequenceTokens:
    """The tokens of one sequence at a node; the first `num_tokens` were fed."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_tokens: int = 0
    sampled: int | None = None
    stop: StopReason | None = None

    def copied(self) -> SequenceTokens:
        return replace(self, token_ids=list(self.token_ids))

    def keep_first(self, num_tokens: int) -> None:
        """Remove the tokens behind the first `num_tokens`."""
        del self.token_ids[num_tokens:]
        self.num_tokens, self.sampled, self.stop = min(self.num_tokens, num_tokens), None, None

    def append_prompt(self, token_ids: tuple[int, ...], sampling: SamplingParams) -> None:
        """Append tokens of a prompt."""
        self.token_ids += token_ids
        self.num_prompt_tokens, self.sampling = len(self.token_ids), sampling
        self.sampled = self.stop = None

    def feed(self, part: PlannedPart) -> tuple[int, ...]:
        """Apply a step that feeds the sequence; returns the tokens that it feeds. Raises `Unusable` where too many of
        them are not in the file."""
        missing = part.num_tokens - len(self.token_ids)
        if missing > MAX_UNKNOWN:
            raise Unusable(f"it feeds {missing:,} tokens that it does not name")
        if missing > 0:
            known = self.sampled if part.token_id is None else part.token_id
            self.token_ids += [UNKNOWN] * (missing - 1) + [UNKNOWN if known is None else known]
        self.num_tokens, self.sampled, self.stop = part.num_tokens, part.sampled, part.stop
        return tuple(self.token_ids[part.first_position : part.num_tokens])


@dataclass
class SessionTokens:
    """The tokens of all sequences at a node."""

    sequences: dict[int, SequenceTokens] = field(default_factory=dict)

    def copied(self) -> SessionTokens:
        return SessionTokens({seq_id: tokens.copied() for seq_id, tokens in self.sequences.items()})

    def apply(self, change: Change, past: dict[int, SessionTokens]) -> None:
        """Apply a change. One that refers to a missing sequence or node is ignored."""
        match change:
            case SequenceAdded(seq_id, token_ids, sampling):
                self.sequences[seq_id] = SequenceTokens(list(token_ids), len(token_ids), sampling)
            case SequenceForked(seq_id, parent, step, num_tokens):
                at = past.get(step, self) if step is not None else self
                if (tokens := at.sequences.get(parent)) is not None:
                    self.sequences[seq_id] = tokens.copied()
                    if num_tokens is not None:
                        self.sequences[seq_id].keep_first(num_tokens)
            case PromptAppended(seq_id, token_ids, sampling) if (tokens := self.sequences.get(seq_id)) is not None:
                tokens.append_prompt(token_ids, sampling)
            case SequenceRemoved(seq_id):
                self.sequences.pop(seq_id, None)
            case SequenceStopped(seq_id) if (tokens := self.sequences.get(seq_id)) is not None:
                tokens.stop = tokens.stop or "stopped"
            case SamplingChanged(seq_id, sampling) if (tokens := self.sequences.get(seq_id)) is not None:
                tokens.sampling = sampling
            case EditMade(edit=ReplaceTokens() as edit) if (tokens := self.sequences.get(edit.seq_id)) is not None:
                tokens.token_ids[edit.position : edit.stop] = edit.token_ids
                tokens.num_tokens = min(len(tokens.token_ids), tokens.num_tokens)

    @property
    def num_tokens(self) -> int:
        return sum(len(tokens.token_ids) for tokens in self.sequences.values())

    def feed(self, part: PlannedPart) -> tuple[int, ...]:
        tokens = self.sequences.setdefault(part.seq_id, SequenceTokens([], 0, SamplingParams()))
        return tokens.feed(part)


@dataclass(frozen=True)
class Fed:
    """A node, the tokens that its step fed to each sequence, and all sequences after it. `tokens` is changed in place
    by the next node: read it at once."""

    node: Node
    token_ids: tuple[tuple[int, ...], ...]
    tokens: SessionTokens


def walk(nodes: Iterable[Node]) -> Iterator[Fed]:
    """Go through the nodes in order, and derive the tokens at each. The state is copied at nodes where branches or
    forks begin, in O(tokens); every other node takes O(new tokens). Raises `Unusable` for more tokens than any real
    session has."""
    nodes = tuple(nodes)
    before = (None, *(node.step for node in nodes))
    uses = {node.parent for node, last in zip(nodes, before, strict=False) if node.parent != last}
    uses.update(_forked_from(nodes))
    kept: dict[int, SessionTokens] = {}
    last: int | None = None
    now = SessionTokens()
    num_kept = num_unknown = 0
    for node in nodes:
        if node.parent != last:
            now = kept[node.parent].copied() if node.parent in kept else SessionTokens()
        for change in node.changes:
            now.apply(change, kept)
        parts = node.work.parts if node.work is not None else ()
        fed = tuple(map(now.feed, parts))
        last = node.step
        if last in uses:
            kept[last] = now.copied()
            num_kept += now.num_tokens
        num_unknown += sum(each == UNKNOWN for ids in fed for each in ids)
        if num_kept > MAX_KEPT or num_unknown > MAX_UNKNOWN:
            raise Unusable(f"up to its moment {last} it has more tokens in more branches than are read")
        yield Fed(node, fed, now)


def _forked_from(nodes: Iterable[Node]) -> Iterator[int]:
    for node in nodes:
        for change in node.changes:
            if isinstance(change, SequenceForked) and change.step is not None:
                yield change.step
