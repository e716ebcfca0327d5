"""What is measured of a step: rows, attention, surprisal, whatever is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.look.probe import (
    attention_summary,
    find_non_finite,
    nan_where_dropped,
    row_checksums,
    row_stats,
    wrapped,
)
from engine.model.text import TokenTexts
from engine.session.forward import Forward
from engine.session.sampler import SampledToken
from engine.wire.records import AttentionSummary, NonFinite, Phase, RowStats, SequenceStep, StopReason

PLACES = 1 << 32  # more than a sequence has positions


@dataclass(frozen=True, eq=False)
class Observation:
    """What was measured of one forward: attention rows `[H, S]` by layer, NaN where there is no row to attend to."""

    stats: RowStats | None
    summary: AttentionSummary | None
    attention: dict[int, torch.Tensor]
    surprisal: tuple[float | None, ...]
    non_finite: tuple[NonFinite, ...]
    checksums: dict[int, int] = field(default_factory=dict)


def observe(forward: Forward, choice: SampledToken | None) -> Observation:
    """Measure a forward, before its rows are coded or dropped."""
    cache, ids = forward.work.live.cache, forward.work.token_ids
    first, num_tokens = forward.work.live.sequence.num_tokens, forward.work.num_tokens
    rows = cache.all_newest_rows(first)
    offsets = cache.new_row_offsets(first)
    stats, checksums = row_stats(rows, len(ids), offsets)
    summary, weights = attention_summary(forward.weights, num_tokens, cache.num_source)
    places = find_non_finite(rows, stats, first, offsets)
    if choice and choice.entropy != choice.entropy:
        bad = int((~forward.logits.isfinite()).sum())
        places += (NonFinite("logits", None, None, num_tokens - 1, bad),) if bad else ()
    attention = {i: nan_where_dropped(row, cache.positions(i)) for i, row in weights.items()}
    return Observation(stats, summary, attention, surprisal(forward), places, checksums)


def nothing_observed(forward: Forward, *, has_checksums: bool = False) -> Observation:
    """Of a step that nobody is told of, the checksums of its rows alone, or not even those."""
    cache, first = forward.work.live.cache, forward.work.live.sequence.num_tokens
    checksums = row_checksums(cache.all_newest_rows(first)) if has_checksums else {}
    return Observation(None, None, {}, (None,) * len(forward.work.token_ids), (), checksums)


def checksums_of(forwards: Sequence[Forward], observations: Sequence[Observation]) -> tuple[int, ...]:
    """One for each layer with rows, of all sequences of a step, each times an odd number of the place of its rows."""
    found: dict[int, int] = {}
    for number, (forward, observation) in enumerate(zip(forwards, observations, strict=True)):
        odd = 2 * (forward.work.live.sequence.num_tokens + number * PLACES) + 1
        for layer, checksum in observation.checksums.items():
            found[layer] = wrapped(found.get(layer, 0) + odd * checksum)
    return tuple(found[layer] for layer in sorted(found))


def surprisal(forward: Forward) -> tuple[float | None, ...]:
    """-log p of every token fed, under the logits before it; None where there are none, or not yet."""
    ids, live = forward.work.token_ids, forward.work.live
    head: list[float | None] = [None]
    if live.logprobs is not None:
        head = [-float(live.logprobs[ids[0]])]
    elif live.logits is not None:
        head = [float(live.logits.float().logsumexp(-1) - live.logits[ids[0]])]
    return (*head, *(forward.surprisal.values if forward.surprisal else (None,) * (len(ids) - 1)))


def sequence_step(
    forward: Forward,
    choice: SampledToken | None,
    observation: Observation,
    phase: Phase,
    stop: StopReason | None,
    text_of: TokenTexts,
) -> SequenceStep:
    """What a record says of one sequence; its cache has been compressed, the sequence has not moved on yet."""
    work, sequence, cache = forward.work, forward.work.live.sequence, forward.work.live.cache
    return SequenceStep(
        seq_id=sequence.seq_id,
        phase=phase,
        token_ids=tuple(work.token_ids),
        texts=tuple(map(text_of, work.token_ids)),
        first_position=sequence.num_tokens,
        num_tokens=work.num_tokens,
        num_prompt_tokens=sequence.num_prompt_tokens,
        surprisal=observation.surprisal,
        sampled=choice.token_id if choice else None,
        sampled_text=text_of(choice.token_id) if choice else "",
        forced=sequence.sampled_is_forced and phase == "decode",
        candidates=choice.candidates if choice else (),
        entropy=choice.entropy if choice else None,
        stop=stop,
        rows=observation.stats,
        attention=observation.summary,
        stored_bytes=0 if cache.spec.recomputes else cache.stored_bytes,
        hit_tokens=cache.page_counts().hit_tokens,
    )
