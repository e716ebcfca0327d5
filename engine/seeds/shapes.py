"""The tensors in the Hugging Face document: how caches grow, and how logits become a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from msgspec.structs import replace

from engine.seeds import published
from engine.seeds.line import FieldValue, SeedLine, TableKind, checked
from engine.seeds.models import SeedModel, SeedModels
from engine.session.driver import ModeDriver
from engine.spec.cache import CacheSpec

NUM_STEPS = len(published.NEXT_IDS)
FIRST_POSITIONS = len(published.STATIC_COLUMN)
LATER_LAYER = 20
OTHER_WEIGHTS = "random weights: the numbers are others, the shapes are not"


def shape_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The input and the cache after each of five steps: without a cache, with a dynamic and with a static one."""
    model = models.smollm2
    yield from input_lines(model)
    yield from dynamic_lines(model)
    yield from static_lines(model)


def input_lines(model: SeedModel) -> Iterator[SeedLine]:
    """Without a cache the input grows by one token each step and is fed completely."""
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    for step in range(1, NUM_STEPS + 1):
        chosen = model.loaded.reference_logits(ids, positions=[ids.shape[1] - 1]).argmax(-1)
        ids = torch.cat([ids, chosen[None]], dim=-1)
        yield shape_line(f"no cache: input_ids after step {step}", [1, len(published.PROMPT_IDS) + step], ids, model)
    yield tokens_line("no cache", ids[0, -NUM_STEPS:].tolist(), model)


def greedy_steps(driver: ModeDriver, chosen: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Greedy steps from 1 on: yields each with the keys of layer 0 after it, and appends its token to `chosen`."""
    fed: Sequence[int] = published.PROMPT_IDS
    for step in range(1, NUM_STEPS + 1):
        chosen.append(int(driver.feed(fed).argmax()))
        fed = chosen[-1:]
        yield step, driver.cache.live.layers[0].keys


def dynamic_lines(model: SeedModel) -> Iterator[SeedLine]:
    """With a dynamic cache one token is fed per step, and the cache grows by one row."""
    driver = ModeDriver(model.loaded, CacheSpec("dynamic"), len(published.PROMPT_IDS))
    chosen: list[int] = []
    for step, keys in greedy_steps(driver, chosen):
        count = len(published.PROMPT_IDS) + step - 1
        yield shape_line(f"dynamic: next input_ids, step {step}", [1, 1], torch.tensor([chosen[-1:]]), model)
        yield shape_line(f"dynamic: keys of layer 0, step {step}", [1, 3, count, 64], keys, model)
        if step == 1:
            yield from layers_lines(driver, model)
    yield tokens_line("dynamic", chosen, model)


def layers_lines(driver: ModeDriver, model: SeedModel) -> Iterator[SeedLine]:
    """The number of layers, and that all have the same shape."""
    layers = driver.cache.live.layers
    is_whole = len(layers) > LATER_LAYER
    line = figure("dynamic: len(past_key_values)", 30, len(layers), model)
    yield checked(line) if is_whole else replace(line, note="the short form has no more")
    yield shape_line("dynamic: values of layer 0, step 1", [1, 3, 7, 64], layers[0].values, model)
    if is_whole:
        for name in ("keys", "values"):
            tensor = getattr(layers[LATER_LAYER], name)
            yield shape_line(f"dynamic: {name} of layer {LATER_LAYER}, step 1", [1, 3, 7, 64], tensor, model)


def static_lines(model: SeedModel) -> Iterator[SeedLine]:
    """A static cache has its full size from the first step on: numbers first, then zeros."""
    spec = CacheSpec("static", max_length=published.STATIC_LENGTH)
    driver = ModeDriver(model.loaded, spec, len(published.PROMPT_IDS))
    chosen: list[int] = []
    for step, keys in greedy_steps(driver, chosen):
        yield shape_line(f"static: keys of layer 0, step {step}", [1, 3, published.STATIC_LENGTH, 64], keys, model)
    keys = driver.cache.live.layers[0].keys[0].float()
    column = tuple(round(float(number), 4) for number in keys[0, :FIRST_POSITIONS, 0])
    yield numbers_line("static: keys[0][0][0][:20, 0]", published.STATIC_COLUMN, column, model)
    rows = keys.abs().amax(dim=(0, 2)).nonzero().flatten()
    held = len(published.PROMPT_IDS) + NUM_STEPS - 1
    yield checked(figure("static: rows that hold a token", held, len(rows), model))
    yield checked(figure("static: the last row that holds one", held - 1, int(rows[-1]), model))
    empty = int((keys == 0).all(dim=-1).all(dim=0).sum())
    yield checked(figure("static: rows of zeros behind", published.STATIC_LENGTH - held, empty, model))
    yield tokens_line("static", chosen, model)


# ---- logits ------------------------------------------------------------------------------------------------------


def logit_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Logits, softmax, argmax: the next token computed by hand."""
    model = models.smollm2
    ids = torch.tensor([published.PROMPT_IDS], device=model.loaded.device)
    logits = model.loaded.reference_logits(ids)[None].float()  # [1, T, V]
    last = logits[0, -1]
    by_hand = softmax_by_hand(last)
    yield shape_line("next_logits.shape", [1, 7, 49152], logits, model, "logits")
    yield numbers_line("the last row: first and last three logits", published.LAST_LOGITS, ends(last), model, "logits")
    yield numbers_line(
        "torch.softmax of it: first and last three",
        published.PROBABILITIES,
        ends(last.softmax(-1), 16),
        model,
        "logits",
        0.25,
        0.0,
    )
    yield figure("exp(x − max) / Σ exp(x − max): its sum", None, round(float(by_hand.sum()), 6), model, "logits")
    difference = float((by_hand - last.softmax(-1)).abs().max())
    yield figure("by hand against torch.softmax: largest difference", None, difference, model, "logits")
    same = int(by_hand.argmax()) == int(last.argmax())
    yield checked(figure("the argmax of logits is that of probabilities", True, same, model, "logits"))
    yield numbers_line("next_token_id", published.NEXT_IDS[:1], (int(last.argmax()),), model, "logits")


def softmax_by_hand(logits: torch.Tensor) -> torch.Tensor:
    """Probabilities `[V]` from logits `[V]`, following the definition."""
    powers = (logits - logits.max()).exp()
    return powers / powers.sum()


def ends(numbers: torch.Tensor, digits: int = 4) -> tuple[float, ...]:
    """The first and the last three numbers, as tensors are printed."""
    return tuple(round(number, digits) for number in (*numbers[:3].tolist(), *numbers[-3:].tolist()))


# ---- lines -------------------------------------------------------------------------------------------------------


def figure(
    item: str, shown: FieldValue, measured: FieldValue, model: SeedModel, table: TableKind = "shapes"
) -> SeedLine:
    return SeedLine(published.HUGGING_FACE, table, item, shown, measured, on=model.words)


def shape_line(
    item: str, shown: list[int], tensor: torch.Tensor, model: SeedModel, table: TableKind = "shapes"
) -> SeedLine:
    """A line for a shape, which must be the same for any weights."""
    return checked(figure(item, str(shown), str(list(tensor.shape)), model, table))


def tokens_line(name: str, token_ids: list[int], model: SeedModel) -> SeedLine:
    return numbers_line(f"{name}: the tokens it chose", published.NEXT_IDS, tuple(token_ids), model)


def numbers_line(
    item: str,
    shown: tuple[float, ...],
    measured: tuple[float, ...],
    model: SeedModel,
    table: TableKind = "shapes",
    relative: float = 0.02,
    absolute: float = 0.05,
) -> SeedLine:
    """A line for numbers that depend on the weights: compared only with the real weights, and within bfloat16
    precision."""
    line = figure(item, shown, measured, model, table)
    if model.is_real:
        expected, found = (torch.tensor(numbers, dtype=torch.float64) for numbers in (shown, measured))
        close = torch.allclose(found, expected, rtol=relative, atol=absolute)
        return replace(line, agrees=close, note="compared to what bfloat16 keeps")
    return replace(line, note=OTHER_WEIGHTS)
