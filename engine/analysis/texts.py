"""The tokens of a sweep's texts: what is fed first, and what is forced afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice

from engine.analysis.bench import synthetic_ids
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.prompt import first_ids
from engine.spec.texts import SweepText

# a fact that no text has, so that it can only be known from the place where it was planted
FACT, ANSWER = "\nThe secret words of the lighthouse are", " silver turnip under the seventh candle"
FACT_TOKENS, ANSWER_TOKENS = 8, 8  # of a model without a tokenizer: tokens that mean nothing


@dataclass(frozen=True)
class TextTokens:
    """What a mode is fed, and the tokens that follow; None: those that the exact model chooses."""

    prompt_ids: tuple[int, ...]
    forced: tuple[int, ...] | None


def tokens_of(model: LoadedModel, text: SweepText, num_steps: int) -> TextTokens:
    """The tokens of a text; raises `InputError` where it is too short for what is asked of it."""
    ids = tuple(first_ids(model, text.prompt))
    if text.kind == "greedy":
        return TextTokens(ids, None)
    if text.kind == "recall":
        return recall_tokens(model, ids, text)
    if len(ids) <= num_steps:
        raise InputError(
            f"The text '{text.name[:60]}' has {len(ids):,} tokens, of which {num_steps:,} are to be told from those "
            "before them: take fewer steps or a longer text."
        )
    ids = ids[: model.max_length]
    return TextTokens(ids[:-num_steps], ids[-num_steps:])


def recall_tokens(model: LoadedModel, ids: tuple[int, ...], text: SweepText) -> TextTokens:
    """The prompt's tokens, over and over where they are too few, with the fact in between and its beginning again at
    the end. The first token, with which some models begin every text, stays the first."""
    fact, answer, mark = fact_of(model)
    whole = len(ids) + 2 * len(fact) + 2 * len(answer) + len(mark)
    total = text.num_tokens or min(whole, model.max_length)
    if total > model.max_length:
        raise InputError(
            f"A text of {total:,} tokens exceeds the model's context of {model.max_length:,}: take a shorter one."
        )
    num_others = total - 2 * len(fact) - 2 * len(answer) - len(mark)
    if num_others < 1:
        least = total - num_others + 1
        raise InputError(f"A fact and the question for it take {least} tokens, and {total} are given: take more.")
    filler = tuple(islice(cycle(ids), num_others))
    at = max(1, round(text.depth * num_others))
    planted = (*filler[:at], *fact, *answer, *mark, *filler[at:])
    return TextTokens((*planted, *fact), answer)


def fact_of(model: LoadedModel) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The beginning of the fact, which is the question as well; the answer; and what ends it."""
    if model.tokenizer is None:
        ids = synthetic_ids(model, 97 + FACT_TOKENS + ANSWER_TOKENS)[97:]
        return ids[:FACT_TOKENS], ids[FACT_TOKENS:], ()
    parts = (model.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (FACT, ANSWER, ".\n"))
    fact, answer, mark = (tuple(part) for part in parts)
    return fact, answer, mark
