"""Texts that end a sequence when it has generated them, wherever the borders of its tokens are."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from engine.common_prefix import num_common
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.spec.sampling import SamplingParams

BYTES_PER_CHARACTER = 4  # of UTF-8 at most, and a token has one byte at least
CONTEXT = 4  # tokens decoded before the first that counts: a decoder may treat the first of all otherwise


def check_stop_strings(model: LoadedModel, sampling: SamplingParams | None) -> None:
    """Refuse what a model without a tokenizer could never write."""
    if sampling is not None and sampling.stop and model.tokenizer is None:
        raise InputError("This model has no tokenizer, so no text can end a sequence: leave the stop strings empty.")


def ends_in(
    stops: tuple[str, ...], fed: list[int], num_generated: int, token_id: int, tokenizer: PreTrainedTokenizerBase | None
) -> bool:
    """Whether `token_id`, chosen to follow on the tokens `fed`, completes one of the texts in the last `num_generated`
    of them and itself. One that was there before does not count, nor one that begins in the prompt."""
    if tokenizer is None:
        return False
    num_read = min(num_generated, BYTES_PER_CHARACTER * max(map(len, stops)) + CONTEXT)
    start = len(fed) - num_read
    context, known = fed[max(0, start - CONTEXT) : start], fed[max(0, start - CONTEXT) :]
    before, old, new = (_decoded(tokenizer, ids) for ids in (context, known, [*known, token_id]))
    # one whose bytes are not all there yet is another character once they are
    first, settled = num_common(before, new), num_common(old, new)
    return any(_is_new(new, stop, first, settled) for stop in stops)


def _is_new(text: str, stop: str, first: int, settled: int) -> bool:
    """Whether the text has the stop string from `first` on, with an end behind what was `settled`."""
    return text.find(stop, max(first, settled - len(stop) + 1)) >= 0


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
