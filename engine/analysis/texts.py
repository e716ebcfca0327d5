"""The tokens of a sweep's texts: the prompt, and the tokens that are forced after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice

from engine.analysis.bench import synthetic_ids
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.prompt import first_ids
from engine.spec.texts import SweepText

# A fact that is in no text, so that it can be known only from where it was inserted.
FACT, ANSWER = "\nThe secret words of the lighthouse are", " silver turnip under the seventh candle"
FACT_TOKENS, ANSWER_TOKENS = 8, 8  # numbers of synthetic tokens for a model without a tokenizer


@dataclass(frozen=True)
class TextTokens:
    """The prompt of a mode, and the tokens forced after it; None: those that the exact model chooses greedily."""

    prompt_ids: tuple[int, ...]
    forced: tuple[int, ...] | None


def tokens_of(model: LoadedModel, text: SweepText, num_steps: int) -> TextTokens:
    """The tokens of a text; raises `InputError` if it is too short."""
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
    """The prompt's tokens, repeated if they are too few, with the fact inserted among them and its beginning again at
    the end as the question. The first token stays first, since some models begin every text with a special one."""
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
    """The beginning of the fact, which is also the question; the answer; and the end mark."""
    if model.tokenizer is None:
        ids = synthetic_ids(model, 97 + FACT_TOKENS + ANSWER_TOKENS)[97:]
        return ids[:FACT_TOKENS], ids[FACT_TOKENS:], ()
    parts = (model.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (FACT, ANSWER, ".\n"))
    fact, answer, mark = (tuple(part) for part in parts)
    return fact, answer, mark
