"""Compares cache modes on the same texts: the speed of each, its bytes, and how its predictions change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

from engine.analysis.bench import synthetic_ids
from engine.analysis.reference import Reference, given, measure, measured_session, reference
from engine.errors import Check, InputError, never_cancel
from engine.model.loader import LoadedModel
from engine.session.commands import first_ids
from engine.spec.grid import SweepMode, SweepText
from engine.wire.measurements import SweepRow, Unavailable

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


def sweep(
    model: LoadedModel,
    texts: Sequence[SweepText],
    modes: Sequence[SweepMode],
    num_steps: int,
    done: Collection[tuple[str, str]] = (),
    check: Check = never_cancel,
) -> Iterator[SweepRow | Unavailable]:
    """Yield a row for every mode on every text, except for those `done`, by the names of mode and text. It can be
    closed after any row. `check` is called before every step and raises to cancel."""
    if num_steps < 1 or not texts or not modes:
        raise InputError("A sweep needs a text, a cache and a step at least: name some.")
    for text in texts:
        missing = [mode for mode in modes if (mode.name, text.name) not in done]
        if not missing:
            continue
        check()
        try:
            truth = truth_of(model, text, num_steps, check)
        except InputError as error:
            yield from (Unavailable(mode.name, str(error), text.name) for mode in missing)
            continue
        for mode in missing:
            check()
            try:
                yield sweep_row(model, mode, text, truth, check)
            except InputError as error:
                yield Unavailable(mode.name, str(error), text.name)


def truth_of(model: LoadedModel, text: SweepText, num_steps: int, check: Check) -> Reference:
    """The reference of a text: what the model computes without a cache."""
    tokens = tokens_of(model, text, num_steps)
    return reference(model, tokens.prompt_ids, num_steps, check, tokens.forced)


def sweep_row(
    model: LoadedModel, mode: SweepMode, text: SweepText, truth: Reference, check: Check = never_cancel
) -> SweepRow:
    """Measure one mode, given the tokens of the reference. The speed is that of decode steps only, without capture."""
    num_prompt, num_steps = len(truth.prompt_ids), len(truth.token_ids)
    session = measured_session(model, mode.fitted(num_prompt + num_steps))
    steps = [*given(session, truth.prompt_ids, num_steps, truth.token_ids, check)]
    seconds = sum(took for _, took in steps[1:])
    stacked, expected = torch.stack([logits for logits, _ in steps]), torch.tensor(truth.token_ids)
    found = measure(mode.name, mode.cache.is_exact, stacked, truth.logits, model.info.dtype)
    agreement = float((stacked.argmax(-1) == expected).float().mean())
    return SweepRow(
        cache=mode.name,
        kv_bytes=session.bytes().stored,
        tok_per_s=round((num_steps - 1) / seconds, 2) if seconds else 0.0,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        perplexity=float(torch.nn.functional.cross_entropy(stacked, expected).exp()),
        max_abs_logit_diff=found.max_abs_logit_diff,
        lossless=found.lossless,
        text=text.name,
        kind=text.kind,
        recall=agreement if text.kind == "recall" else None,
        num_prompt_tokens=num_prompt,
        num_steps=num_steps,
    )
