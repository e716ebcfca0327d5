"""Compares cache modes on the same texts: the speed of each, its bytes, and how its predictions change."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from engine.analysis.reference import Reference, measure, reference
from engine.analysis.texts import tokens_of
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.driver import ModeDriver, never_cancel
from engine.spec.grid import SweepMode
from engine.spec.texts import SweepText
from engine.wire.measurements import SweepRow, Unavailable


def sweep(
    model: LoadedModel,
    texts: Sequence[SweepText],
    modes: Sequence[SweepMode],
    num_steps: int,
    done: Collection[tuple[str, str]] = (),
    check: Callable[[], None] = never_cancel,
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


def truth_of(model: LoadedModel, text: SweepText, num_steps: int, check: Callable[[], None]) -> Reference:
    """The reference of a text: what the model computes without a cache."""
    tokens = tokens_of(model, text, num_steps)
    return reference(model, tokens.prompt_ids, num_steps, check, tokens.forced)


def sweep_row(
    model: LoadedModel, mode: SweepMode, text: SweepText, truth: Reference, check: Callable[[], None] = never_cancel
) -> SweepRow:
    """Measure one mode, fed the tokens of the reference. The speed is that of decode steps only, without capture."""
    num_prompt, num_steps = len(truth.prompt_ids), len(truth.token_ids)
    driver = ModeDriver(model, mode.fitted(num_prompt + num_steps), num_prompt)
    logits, seconds = [driver.prefill(truth.prompt_ids, check).float().cpu()], 0.0
    for token_id in truth.token_ids[:-1]:
        check()
        began = time.perf_counter()
        newest = driver.feed([token_id])
        seconds += time.perf_counter() - began
        logits.append(newest.float().cpu())
    stacked, expected = torch.stack(logits), torch.tensor(truth.token_ids)
    found = measure(mode.name, mode.cache.is_exact, stacked, truth.logits, model.info.dtype)
    told = float((stacked.argmax(-1) == expected).float().mean())
    return SweepRow(
        cache=mode.name,
        kv_bytes=driver.bytes().stored,
        tok_per_s=round((num_steps - 1) / seconds, 2) if seconds else 0.0,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        perplexity=float(torch.nn.functional.cross_entropy(stacked, expected).exp()),
        max_abs_logit_diff=found.max_abs_logit_diff,
        lossless=found.lossless,
        text=text.name,
        kind=text.kind,
        recall=told if text.kind == "recall" else None,
        num_prompt_tokens=num_prompt,
        num_steps=num_steps,
    )
