"""Samples the next token from logits, and lists the other candidates; finds the texts that end a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerBase

from engine.device import to_device
from engine.errors import InputError
from engine.history.state import num_common
from engine.look.candidates import Sample, candidate_measures, next_token
from engine.model.loader import LoadedModel
from engine.spec.sampling import LogitBias, SamplingParams
from engine.wire.records import Candidate

# The generator is SplitMix64 (Steele, Lea and Flood, 2014): a counter whose bits are mixed, so that any number can be
# computed without those before it. On a CPU it takes a third of the time of torch's generator, and half of that of
# Philox-4x32.

STEP = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: the increment of the counter
MIXES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shift in bits, factor
LAST_SHIFT = 31
MASK = 2**64 - 1
LOW_31 = 2**31 - 1


def number(seed: int, index: int) -> int:
    """The 64-bit random number at `index` (from 0) of a seed."""
    mixed = (seed + (index + 1) * STEP) & MASK
    for shift, factor in MIXES:
        mixed = (mixed ^ mixed >> shift) * factor & MASK
    return mixed ^ mixed >> LAST_SHIFT


def numbers(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """The first `count` random numbers of a seed, `[count]` int64, computed on `device`."""
    mixed = torch.arange(1, count + 1, device=device).mul_(signed(STEP)).add_(signed(seed))
    for shift, factor in MIXES:
        mixed = mixed.bitwise_xor_(shifted(mixed, shift)).mul_(signed(factor))
    return mixed.bitwise_xor_(shifted(mixed, LAST_SHIFT))


def exponentials(seed: int, position: int, count: int, device: torch.device) -> torch.Tensor:
    """Exponentially distributed random numbers `[count]`, float32 from 31 random bits each: one for each vocabulary
    entry at a position of the sequence."""
    own = number(number(seed, 0), position)
    bits = numbers(own, (count + 1) // 2, device).view(torch.int32)[:count].bitwise_and_(LOW_31)
    return bits.float().add_(0.5).mul_(-(2.0**-31)).log1p_().neg_()  # never 0: 0 / 0 would be NaN


def shifted(mixed: torch.Tensor, shift: int) -> torch.Tensor:
    """Logical right shift of 64-bit numbers: torch's own shift of int64 is arithmetic."""
    return mixed.bitwise_right_shift(shift).bitwise_and_((1 << 64 - shift) - 1)


def signed(bits: int) -> int:
    """An unsigned 64-bit number as int64, which is what torch has."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True)
class SampledToken:
    """The chosen token, the top candidates, and the unmodified distribution: entropy in nats, log-probabilities `[V]`.
    `is_finite` False: the logits had NaN or +infinity, so that token 0 stands in for a choice."""

    token_id: int
    candidates: tuple[Candidate, ...]
    entropy: float
    logprobs: torch.Tensor = field(compare=False, repr=False)
    is_finite: bool


def sample(
    logits: torch.Tensor,
    sampling: SamplingParams,
    position: int,
    ruled: torch.Tensor | None = None,
    logprobs: torch.Tensor | None = None,
) -> Sample:
    """Choose the token for `position` from logits `[V]`. `ruled` are the logits after the model's own logits
    processors, if it has any; `logprobs` are the log-probabilities of `logits` if already computed.

    The draw depends only on the seed and the position, so that going back and stepping again repeats it. Where a logit
    is NaN or +infinity no choice is possible: the token is 0, and `Sample.is_finite` is False. Nothing is read by the
    host here.
    """
    raw = torch.log_softmax(logits.float(), -1) if logprobs is None else logprobs
    wanted = steered(logits if ruled is None else ruled, sampling.bias)
    probs = None if sampling.is_greedy else filtered(wanted, sampling)
    is_steered = sampling.bias is not None or ruled is not None
    # of equal logits the first, as transformers' greedy search does
    chosen = (wanted if is_steered else raw).argmax()
    if probs is not None:
        # probabilities that are not finite are not sampled from: the argmax stays
        chosen = torch.where(probs.isfinite().all(), drawn(probs, sampling, position), chosen)
    if is_steered:  # without steering it is 0 already: one NaN logit makes all log-probabilities NaN
        chosen = chosen.where(raw[0] == raw[0], 0)
    # whether any token is allowed is read together with the token: reading it now would wait for the forward
    is_choice = None if sampling.bias is None else (wanted != -torch.inf).any()
    found = Sample(chosen, raw, probs, is_choice)
    found.send()
    return found


def drawn(probs: torch.Tensor, sampling: SamplingParams, position: int) -> torch.Tensor:
    """Draw a token with probabilities `[V]`; its index, a scalar on their device. It is the token with the largest
    ratio of its probability to an exponentially distributed random number. With `draws` other than "counter" these
    numbers come from torch's CPU generator, and the token is the one that `torch.multinomial` draws on a CPU."""
    if sampling.draws == "counter":
        noise = exponentials(sampling.seed, position, len(probs), probs.device)
    else:
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + position) % 2**63)
        noise = to_device(
            torch.empty(probs.shape, dtype=probs.dtype).exponential_(1, generator=generator), probs.device
        )
    return (probs / noise).argmax()


def choose(
    logits: torch.Tensor,
    sampling: SamplingParams,
    position: int,
    text_of: Callable[[int], str],
    ruled: torch.Tensor | None = None,
) -> SampledToken:
    """`sample`, and wait for the candidates. They are those of the unmodified logits; bias and filters show in their
    `sampled_prob`."""
    return with_candidates(sample(logits, sampling, position, ruled), text_of)


def with_candidates(chosen: Sample, text_of: Callable[[int], str]) -> SampledToken:
    """The sample with its candidates and entropy; waits for the device."""
    (measured,) = candidate_measures([chosen])
    following = next_token(
        {name: numbers.cpu().numpy() for name, numbers in measured.items()}, chosen.token_id, text_of
    )
    return SampledToken(chosen.token_id, following.candidates, following.entropy, chosen.logprobs, chosen.is_finite)


def steered(logits: torch.Tensor, bias: LogitBias | None) -> torch.Tensor:
    """Logits `[V]` in float32 with the bias added; minus infinity for banned tokens."""
    logits = logits.float()
    if bias is None:
        return logits

    def on_device(numbers: Sequence[float], dtype: torch.dtype = torch.long) -> torch.Tensor:
        return to_device(torch.tensor(numbers, dtype=dtype), logits.device)

    made = logits
    if bias.biases:
        ids, added = zip(*bias.biases, strict=True)
        made = made.index_add(0, on_device(ids), on_device(added, made.dtype))
    if bias.only:
        only = on_device(bias.only)
        made = torch.full_like(made, -torch.inf).index_copy(0, only, made[only])
    if bias.banned:
        made = made.index_fill(0, on_device(bias.banned), -torch.inf)
    return made


def filtered(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Probabilities `[V]` after temperature, then top-k, top-p and min-p, renormalised."""
    scaled = logits / max(sampling.temperature, 1e-4)
    if sampling.top_k is not None and sampling.top_k < scaled.shape[0]:
        floor = scaled.topk(sampling.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    probs = scaled.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probs.sort(descending=True)
        # a token is dropped when the tokens before it already hold top_p; the first one always stays
        dropped = ordered.cumsum(-1) - ordered >= sampling.top_p
        probs = torch.empty_like(probs).scatter_(0, order, ordered.masked_fill(dropped, 0.0))
    if sampling.min_p:
        probs = probs.masked_fill(probs < sampling.min_p * probs.max(), 0.0)
    return probs / probs.sum()


BYTES_PER_CHARACTER = 4  # of UTF-8 at most; a token has at least one byte, so that many tokens may make one character
CONTEXT = 4  # tokens decoded before the first that counts: some decoders treat the very first token differently


def check_stop_strings(model: LoadedModel, sampling: SamplingParams | None) -> None:
    """Raise `InputError` for stop strings on a model without a tokenizer."""
    if sampling is not None and sampling.stop and model.tokenizer is None:
        raise InputError("This model has no tokenizer, so no text can end a sequence: leave the stop strings empty.")


def ends_in(
    stops: tuple[str, ...],
    computed: Sequence[int],
    num_generated: int,
    token_id: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> bool:
    """Whether `token_id`, chosen to follow the tokens `computed`, completes one of the stop strings in the generated
    text: the last `num_generated` tokens and itself. A stop string that was complete before does not count, nor one
    that begins in the prompt."""
    if tokenizer is None:
        return False
    num_read = min(num_generated, BYTES_PER_CHARACTER * max(map(len, stops)) + CONTEXT)
    start = len(computed) - num_read
    context, known = computed[max(0, start - CONTEXT) : start], computed[max(0, start - CONTEXT) :]
    before, old, new = (_decoded(tokenizer, ids) for ids in (context, known, [*known, token_id]))
    # a character whose bytes are incomplete is decoded differently once they are complete: compare the texts
    first, num_unchanged = num_common(before, new), num_common(old, new)
    return any(_is_new(new, stop, first, num_unchanged) for stop in stops)


def _is_new(text: str, stop: str, first: int, num_unchanged: int) -> bool:
    """Whether the text has the stop string at or after `first`, ending behind the first `num_unchanged` characters."""
    return text.find(stop, max(first, num_unchanged - len(stop) + 1)) >= 0


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
