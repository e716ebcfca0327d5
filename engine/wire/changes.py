"""What was done to a session between two steps, complete and in the order in which it was done."""

from __future__ import annotations

from collections.abc import Iterable

from engine.spec.cache import CacheSpec
from engine.spec.chat import Chat
from engine.spec.edit import Edit, ReplaceTokens
from engine.spec.sampling import SamplingParams
from engine.wire.message import Variant


class SequenceAdded(Variant, frozen=True):
    """A prompt was taken as a sequence of its own; `chat` is the conversation that its tokens were rendered from."""

    seq_id: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceForked(Variant, frozen=True):
    """`seq_id` began as what `parent` had after `step` (None: as it stood), which may be a step of another branch; with
    `num_tokens` it has the rows of so many of its first tokens, and nothing behind them."""

    seq_id: int
    parent: int
    step: int | None
    num_tokens: int | None = None


class PromptAppended(Variant, frozen=True):
    """These tokens are read behind those that a sequence has, as a part of its prompt; `chat` is the conversation that
    all of them were rendered from."""

    seq_id: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    chat: Chat | None = None


class SequenceRemoved(Variant, frozen=True):
    """A sequence was ended and its rows were freed."""

    seq_id: int


class SequenceStopped(Variant, frozen=True):
    """A sequence was stopped where it stood."""

    seq_id: int


class TokensForced(Variant, frozen=True):
    """These tokens are to be fed next, the first in place of the one that was chosen."""

    seq_id: int
    token_ids: tuple[int, ...]


class SamplingChanged(Variant, frozen=True):
    """The tokens of a sequence are chosen in another way from here on."""

    seq_id: int
    sampling: SamplingParams


class ModeChanged(Variant, frozen=True):
    """The sequences moved into another cache mode."""

    cache: CacheSpec


class EditMade(Variant, frozen=True):
    """Something was changed by hand."""

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
    """The tokens that edits among the changes put into the text, in order."""
    edits = (change.edit for change in changes if isinstance(change, EditMade))
    return tuple(token_id for edit in edits if isinstance(edit, ReplaceTokens) for token_id in edit.token_ids)
