"""The changes made to a session between two steps: each kind of change is a message that suffices to repeat it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from engine.spec.cache import CacheSpec
from engine.spec.edit import Edit, ReplaceTokens
from engine.spec.sampling import Chat, SamplingParams
from engine.wire.message import Count, Variant

Tokens = Annotated[tuple[Count, ...], Meta(min_length=1)]


class SequenceAdded(Variant, frozen=True):
    """A prompt was accepted as a new sequence; `chat` is the conversation that its tokens were rendered from."""

    seq_id: Count
    token_ids: Tokens
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceForked(Variant, frozen=True):
    """Sequence `seq_id` was forked from the state that `parent` had after `step`, which may be on another branch (None:
    from its state at that time). With `num_tokens` it has only so many of the parent's first tokens, with their
    rows."""

    seq_id: Count
    parent: Count
    step: int | None
    num_tokens: Count | None = None


class PromptAppended(Variant, frozen=True):
    """Tokens were appended to a sequence as a continuation of its prompt; `chat` is the conversation that all its
    tokens were rendered from."""

    seq_id: Count
    token_ids: Tokens
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceRemoved(Variant, frozen=True):
    """A sequence was ended and its rows were freed."""

    seq_id: Count


class SequenceStopped(Variant, frozen=True):
    """A sequence was stopped; its rows stay."""

    seq_id: Count


class TokensForced(Variant, frozen=True):
    """These tokens are computed next instead of sampled ones; the first replaces the token that was chosen already."""

    seq_id: Count
    token_ids: Tokens


class SamplingChanged(Variant, frozen=True):
    """The sampling parameters of a sequence were changed, for all tokens from here on."""

    seq_id: Count
    sampling: SamplingParams


class ModeChanged(Variant, frozen=True):
    """All sequences were moved into another cache mode."""

    cache: CacheSpec


class EditMade(Variant, frozen=True):
    """An edit by hand was made."""

    edit: Edit


Change = (
    SequenceAdded
    | SequenceForked
    | PromptAppended
    | SequenceRemoved
    | SequenceStopped
    | TokensForced
    | SamplingChanged
    | ModeChanged
    | EditMade
)


def replacing_tokens(changes: Iterable[Change]) -> tuple[int, ...]:
    """The ids of all tokens that edits among the changes put into sequences, in order."""
    edits = (change.edit for change in changes if isinstance(change, EditMade))
    return tuple(token_id for edit in edits if isinstance(edit, ReplaceTokens) for token_id in edit.token_ids)
