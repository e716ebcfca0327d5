"""Stop strings: texts that end a sequence once it has generated them, wherever the token boundaries are."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from engine.common_prefix import num_common
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.spec.sampling import SamplingParams

BYTES_PER_CHARACTER = 4  # of UTF-8 at most; a token has at least one byte, so that many tokens may make one character
CONTEXT = 4  # tokens decoded before the first that counts: some decoders treat the very first token differently


def check_stop_strings(model: LoadedModel, sampling: SamplingParams | None) -> None:
    """Raise `InputError` for stop strings on a model without a tokenizer."""
    if sampling is not None and sampling.stop and model.tokenizer is None:
        raise InputError("This model has no tokenizer, so no text can end a sequence: leave the stop strings empty.")


def ends_in(
    stops: tuple[str, ...],
    fed: Sequence[int],
    num_generated: int,
    token_id: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> bool:
    """Whether `token_id`, chosen to follow the tokens `fed`, completes one of the stop strings in the generated text:
    the last `num_generated` tokens and itself. A stop string that was complete before does not count, nor one that
    begins in the prompt."""
    if tokenizer is None:
        return False
    num_read = min(num_generated, BYTES_PER_CHARACTER * max(map(len, stops)) + CONTEXT)
    start = len(fed) - num_read
    context, known = fed[max(0, start - CONTEXT) : start], fed[max(0, start - CONTEXT) :]
    before, old, new = (_decoded(tokenizer, ids) for ids in (context, known, [*known, token_id]))
    # a character whose bytes are incomplete is decoded differently once they are complete: compare the texts
    first, num_unchanged = num_common(before, new), num_common(old, new)
    return any(_is_new(new, stop, first, num_unchanged) for stop in stops)


def _is_new(text: str, stop: str, first: int, num_unchanged: int) -> bool:
    """Whether the text has the stop string at or after `first`, ending behind the first `num_unchanged` characters."""
    return text.find(stop, max(first, num_unchanged - len(stop) + 1)) >= 0


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
