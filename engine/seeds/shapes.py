"""The tensors in the Hugging Face document: how caches grow, and how logits become a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from engine.seeds import published
from engine.seeds.line import SeedLine, Sheet
from engine.seeds.models import SeedModels
from engine.session.driver import ModeDriver
from engine.spec.cache import CacheSpec

NUM_STEPS = len(published.NEXT_IDS)
NUM_PROMPT = len(published.PROMPT_IDS)
LATER_LAYER = 20
OTHER_WEIGHTS = "random weights: the numbers are others, the shapes are not"


@dataclass(frozen=True)
class TensorSheet(Sheet):
    """A table of tensors. `is_real`: they are those of the document's own weights."""

    is_real: bool = False

    def shape(self, item: str, shown: list[int], tensor: torch.Tensor) -> SeedLine:
        """A line for a shape, which must be the same for any weights."""
        return self.must(item, str(shown), str(list(tensor.shape)))

    def numbers(
        self, item: str, shown: tuple[float, ...], measured: tuple[float, ...], rtol: float = 0.02, atol: float = 0.05
    ) -> SeedLine:
        """A line for numbers that depend on the weights: compared only with the real weights, and within bfloat16
        precision."""
        if not self.is_real:
            return self.figure(item, shown, measured, note=OTHER_WEIGHTS)
        expected, found = (torch.tensor(numbers, dtype=torch.float64) for numbers in (shown, measured))
        close = torch.allclose(found, expected, rtol=rtol, atol=atol)
        return self.figure(item, shown, measured, note="compared to what bfloat16 keeps", agrees=close)

    def tokens(self, name: str, token_ids: list[int]) -> SeedLine:
        return self.numbers(f"{name}: the tokens it chose", published.NEXT_IDS, tuple(token_ids))


def shape_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The input and the cache after each of five steps. Without a cache the input grows by one token each step and is
    computed completely; with a dynamic one one token is computed, and the cache grows by a row; a static one has its
    full size from the first step on: numbers first, then zeros."""
    model = models.smollm2
    sheet = TensorSheet(published.HUGGING_FACE, "shapes", model.words, model.is_real)
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    for step in range(1, NUM_STEPS + 1):
        chosen = model.loaded.reference_logits(ids, positions=[ids.shape[1] - 1]).argmax(-1)
        ids = torch.cat([ids, chosen[None]], dim=-1)
        yield sheet.shape(f"no cache: input_ids after step {step}", [1, NUM_PROMPT + step], ids)
    yield sheet.tokens("no cache", ids[0, -NUM_STEPS:].tolist())
    driver, taken = ModeDriver(model.loaded, CacheSpec("dynamic"), NUM_PROMPT), list[int]()
    for step, keys in greedy_steps(driver, taken):
        yield sheet.shape(f"dynamic: next input_ids, step {step}", [1, 1], torch.tensor([taken[-1:]]))
        yield sheet.shape(f"dynamic: keys of layer 0, step {step}", [1, 3, NUM_PROMPT + step - 1, 64], keys)
        if step == 1:
            yield from layers_lines(sheet, driver.cache.live.layers)
    yield sheet.tokens("dynamic", taken)
    driver = ModeDriver(model.loaded, CacheSpec("static", max_length=published.STATIC_LENGTH), NUM_PROMPT)
    taken = []
    for step, keys in greedy_steps(driver, taken):
        yield sheet.shape(f"static: keys of layer 0, step {step}", [1, 3, published.STATIC_LENGTH, 64], keys)
    keys = driver.cache.live.layers[0].keys[0].float()
    column = tuple(round(float(number), 4) for number in keys[0, : len(published.STATIC_COLUMN), 0])
    yield sheet.numbers("static: keys[0][0][0][:20, 0]", published.STATIC_COLUMN, column)
    rows, held = keys.abs().amax(dim=(0, 2)).nonzero().flatten(), NUM_PROMPT + NUM_STEPS - 1
    yield sheet.must("static: rows that hold a token", held, len(rows))
    yield sheet.must("static: the last row that holds one", held - 1, int(rows[-1]))
    empty = int((keys == 0).all(dim=-1).all(dim=0).sum())
    yield sheet.must("static: rows of zeros behind", published.STATIC_LENGTH - held, empty)
    yield sheet.tokens("static", taken)


def greedy_steps(driver: ModeDriver, chosen: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Greedy steps from 1 on: yields each with the keys of layer 0 after it, and appends its token to `chosen`."""
    computed: Sequence[int] = published.PROMPT_IDS
    for step in range(1, NUM_STEPS + 1):
        chosen.append(int(driver.compute(computed).argmax()))
        computed = chosen[-1:]
        yield step, driver.cache.live.layers[0].keys


def layers_lines(sheet: TensorSheet, layers: list[Any]) -> Iterator[SeedLine]:
    """The number of layers, and that all have the same shape."""
    is_whole, shape = len(layers) > LATER_LAYER, [1, 3, NUM_PROMPT, 64]
    line = sheet.must("dynamic: len(past_key_values)", 30, len(layers))
    yield line if is_whole else replace(line, agrees=None, must_agree=False, note="the short form has no more")
    yield sheet.shape("dynamic: values of layer 0, step 1", shape, layers[0].values)
    for name in ("keys", "values") if is_whole else ():
        tensor = getattr(layers[LATER_LAYER], name)
        yield sheet.shape(f"dynamic: {name} of layer {LATER_LAYER}, step 1", shape, tensor)


def logit_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Logits, softmax, argmax: the next token computed by hand."""
    model = models.smollm2
    sheet = TensorSheet(published.HUGGING_FACE, "logits", model.words, model.is_real)
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    logits = model.loaded.reference_logits(ids)[None].float()  # [1, T, V]
    last = logits[0, -1]
    probabilities, by_hand = last.softmax(-1), softmax_by_hand(last)
    yield sheet.shape("next_logits.shape", [1, NUM_PROMPT, 49152], logits)
    yield sheet.numbers("the last row: first and last three logits", published.LAST_LOGITS, ends(last))
    item = "torch.softmax of it: first and last three"
    yield sheet.numbers(item, published.PROBABILITIES, ends(probabilities, 16), rtol=0.25, atol=0.0)
    yield sheet.figure("exp(x − max) / Σ exp(x − max): its sum", None, round(float(by_hand.sum()), 6))
    difference = float((by_hand - probabilities).abs().max())
    yield sheet.figure("by hand against torch.softmax: largest difference", None, difference)
    same = int(by_hand.argmax()) == int(last.argmax())
    yield sheet.must("the argmax of logits is that of probabilities", True, same)
    yield sheet.numbers("next_token_id", published.NEXT_IDS[:1], (int(last.argmax()),))


def softmax_by_hand(logits: torch.Tensor) -> torch.Tensor:
    """Probabilities `[V]` from logits `[V]`, following the definition."""
    powers = (logits - logits.max()).exp()
    return powers / powers.sum()


def ends(numbers: torch.Tensor, digits: int = 4) -> tuple[float, ...]:
    """The first and the last three numbers, as tensors are printed."""
    return tuple(round(number, digits) for number in (*numbers[:3].tolist(), *numbers[-3:].tolist()))
