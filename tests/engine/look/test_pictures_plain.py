"""Every kind of picture against loops over the rows that a cache holds and over whole attention rows: in caches whose
layers, heads, K and V hold different rows, with columns of several tokens that no length divides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import AttentionRequest, HeadRequest, OutliersRequest, PictureRequest, RowRequest, WallRequest
from tests.engine.tiny import model_of, prompt_ids, uneven_model

H2O = RetentionSpec("h2o", budget=14, sinks=1)
CASES = {
    "heads that hold different rows": ("uneven", CacheSpec(retention=H2O)),
    "codes of two kinds": ("uneven", CacheSpec(codec=CodecSpec(Coding("int8"), Coding("fp8-token-head")))),
    "pages dropped": ("uneven", CacheSpec("paged", page_size=4, retention=RetentionSpec("knorm", budget=14))),
    "windows alone": ("mistral", CacheSpec("dynamic")),
    "windows in pages": ("mistral", CacheSpec("paged", page_size=4)),
    "windows and full layers": ("gemma3_text", CacheSpec("static", max_length=64)),
    "latents": ("deepseek_v3", CacheSpec()),
    "one kv head": ("falcon", CacheSpec("dynamic")),
    "an encoder": ("bart", CacheSpec()),
    "an encoder and rows dropped": ("bart", CacheSpec(retention=RetentionSpec("h2o", budget=6))),
}
Rows = dict[tuple[int, int, int], npt.NDArray[np.float32]]  # by layer, kv head and position


class Looked:
    """A session after some steps, its rows one by one, and pictures of it."""

    def __init__(self, name: str) -> None:
        architecture, spec = CASES[name]
        model: LoadedModel = uneven_model() if architecture == "uneven" else model_of(architecture)
        self.session = Session(model, spec, prefill_chunk=8)
        self.session.submit(Prompt(token_ids=prompt_ids(21)))
        self.session.force(0, prompt_ids(30, seed=1))
        for _ in range(11):
            self.session.step()
        self.geometry = model.info.geometry
        self.num_tokens, self.step = self.session.sequence(0).num_tokens, self.session.last_step or 0
        self.rows = {tensor: self._rows(tensor) for tensor in ("keys", "values")}

    def _rows(self, tensor: str) -> Rows:
        found: Rows = {}
        for layer in self.geometry.attention_layers:
            held = self.session.cache_of(0).rows(layer.index)
            assert held is not None
            numbers = getattr(held, tensor)[0].float().numpy()
            for head, slot in np.ndindex(numbers.shape[:2]):
                at = held.first + slot if held.positions is None else int(held.positions[head, slot])
                found[layer.index, head, at] = numbers[head, slot]
        return found

    def take(self, request: PictureRequest) -> Any:
        return self.session.take_picture(request)


@pytest.fixture(params=CASES, scope="module")
def looked(request: pytest.FixtureRequest) -> Looked:
    return Looked(request.param)


def extremes(found: list[npt.NDArray[np.float32]], channels: slice) -> tuple[float, float]:
    numbers = [row[channels] for row in found]
    return (float(np.min(numbers)), float(np.max(numbers))) if numbers else (math.nan, math.nan)


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_a_cell_of_the_wall_is_the_extremes_of_the_rows_in_it(looked: Looked, tensor: str) -> None:
    wall = looked.take(WallRequest(0, looked.num_tokens, 0, tensor, False, 9, 5))  # type: ignore[arg-type]
    rows, size, height = looked.rows[tensor], wall.tokens_per_column, wall.dims_per_row
    dims = {layer: len(row) for (layer, _, _), row in rows.items()}
    assert (size, height) == (-(-looked.num_tokens // 9), -(-max(dims.values()) // 5))
    assert wall.heads == tuple(1 + max(h for layer, h, _ in rows if layer == each) for each in wall.layers)
    for n, head, column in np.ndindex(wall.low.shape[:3]):
        layer, span = wall.layers[n], range(column * size, min(looked.num_tokens, (column + 1) * size))
        mine = [rows[layer, head, at] for at in span if (layer, head, at) in rows]
        for row in range(wall.low.shape[3]):
            part = slice(row * height, (row + 1) * height)
            expected = extremes(mine if row * height < dims[layer] else [], part)
            shown = float(wall.low[n, head, column, row]), float(wall.high[n, head, column, row])
            assert shown == pytest.approx(expected, nan_ok=True), (layer, head, column, row)
        is_cross = looked.geometry.layers[layer].kind == "cross"  # it drops nothing
        if wall.absent is not None and head < wall.heads[n] and not is_cross:
            assert wall.absent[n, head, column] == len(span) - len(mine)
    if wall.holders is not None:
        for at in range(looked.num_tokens):
            holders = [(layer, head) for layer, head, position in rows if position == at]
            assert wall.holders[:, at].tolist() == [len(holders), len({layer for layer, _ in holders})]
    for n, layer in enumerate(wall.layers):
        largest = max(np.abs(row).max() for (index, _, _), row in rows.items() if index == layer)
        assert wall.magnitudes.largest[n] == largest


def test_a_part_of_a_head_is_its_rows_and_their_numbers(looked: Looked) -> None:
    layer, tensor = looked.geometry.attention_layers[-1].index, "values"
    rows = looked.rows[tensor]
    head = max(h for index, h, _ in rows if index == layer)
    start, stop = looked.num_tokens - 13, looked.num_tokens - 2
    picture = looked.take(HeadRequest(0, looked.num_tokens, tensor, layer, head, start, stop, 4))
    size = picture.tokens_per_column
    held = [at for at in range(start, stop) if (layer, head, at) in rows]
    assert held or picture.low.size == 0
    for column, first in enumerate(picture.positions):
        span = range(first, min(stop, first + size))
        mine = [rows[layer, head, at] for at in span if (layer, head, at) in rows]
        for channel in range(picture.low.shape[1]):
            shown = float(picture.low[column, channel]), float(picture.high[column, channel])
            assert shown == pytest.approx(extremes(mine, slice(channel, channel + 1)), nan_ok=True)
        assert picture.absent is None or picture.absent[column] == len(span) - len(mine)
    numbers = np.array([rows[layer, head, at] for at in held]).ravel()
    assert picture.counts.sum() == numbers.size
    if numbers.size:
        expected = np.histogram(numbers.astype(np.float64), picture.edges.astype(np.float64))[0]
        assert np.abs(picture.counts - expected).sum() <= 2, "a number may lie on an edge"
        assert (picture.lowest, picture.highest) == (numbers.min(), numbers.max())
        assert picture.limit == np.sort(np.abs(numbers))[int(0.995 * numbers.size)]
    group = looked.geometry.layers[layer].num_heads // looked.geometry.layers[layer].num_kv_heads
    assert picture.query_heads == tuple(range(head * group, (head + 1) * group))


def test_a_row_is_that_of_its_position_in_every_layer_and_head(looked: Looked) -> None:
    for at in (0, 7, looked.num_tokens - 5, looked.num_tokens - 1):
        picture = looked.take(RowRequest(0, looked.num_tokens, at))
        holders = {(layer, head) for layer, head, position in looked.rows["keys"] if position == at}
        assert picture.layers == tuple(sorted({layer for layer, _ in holders}))
        for n, layer in enumerate(picture.layers):
            lost = []
            for head in range(len(picture.keys[n])):
                for tensor, shown in (("keys", picture.keys[n]), ("values", picture.values[n])):
                    row = looked.rows[tensor].get((layer, head, at))
                    assert np.isnan(shown[head]).all() if row is None else np.array_equal(shown[head], row)
                lost += [head] if (layer, head) not in holders else []
            assert not lost or picture.evicted[n] == tuple(lost)
            assert lost or not picture.evicted or picture.evicted[n] == ()


def whole_attention(looked: Looked) -> dict[int, Any]:
    layers = looked.geometry.attention_layers
    return {la.index: looked.take(AttentionRequest(0, looked.step, la.index, 1000)) for la in layers}


def test_columns_of_attention_are_the_largest_of_a_part_and_the_numbers_those_of_the_whole(looked: Looked) -> None:
    for layer, whole in whole_attention(looked).items():
        at = dict(zip(whole.positions.tolist(), whole.weights.T, strict=True))
        assert all(p < looked.num_tokens for p in at)
        held = np.array([row[~np.isnan(row)] for row in whole.weights])
        assert held.sum(1) == pytest.approx(1, abs=1e-4)
        assert whole.entropy == pytest.approx(-(held * np.log(np.maximum(held, 1e-38))).sum(1), abs=1e-4)
        for head, row in enumerate(whole.weights):
            best = sorted(((-float(w), p) for p, w in zip(at, row, strict=True) if not math.isnan(w)))[:5]
            assert [-w for w, _ in best] == pytest.approx(whole.top_weights[head, : len(best)].tolist())
            assert [at[p][head] for p in whole.top_positions[head, : len(best)].tolist()] == [-w for w, _ in best]
        start, stop = max(at) - 6, max(at)  # of which the newest is none
        part = looked.take(AttentionRequest(0, looked.step, layer, 3, start, stop))
        assert part.positions[0] == max(start, min(at))
        for head, column in np.ndindex(part.weights.shape):
            first = int(part.positions[column])
            mine = [at[p][head] for p in range(first, min(stop, first + part.tokens_per_column))]
            there = [w for w in mine if not math.isnan(w)]
            assert float(part.weights[head, column]) == pytest.approx(max(there, default=math.nan), nan_ok=True)
            assert part.absent is None or part.absent[head, column] == len(mine) - len(there)


def test_what_is_attended_to_most_is_told_by_its_position(looked: Looked) -> None:
    whole = whole_attention(looked)
    heads = [(layer, head) for layer, picture in whole.items() for head in range(len(picture.weights))]
    given = np.zeros((len(heads), looked.num_tokens))
    for n, (layer, head) in enumerate(heads):
        given[n, whole[layer].positions] = np.nan_to_num(whole[layer].weights[head])
    found = looked.take(OutliersRequest(0, looked.num_tokens, looked.step, 4))
    mean = given.mean(0)
    assert [one.weight for one in found.attended] == pytest.approx(sorted(mean)[::-1][:4], rel=1e-4)
    for one in found.attended:
        layer, head = heads[int(given[:, one.position].argmax())]
        assert (one.layer, one.head, one.kv_head) == (layer, head, head // whole[layer].group_size)
        assert one.weight == pytest.approx(mean[one.position], rel=1e-4)
        assert one.most == pytest.approx(given[:, one.position].max(), rel=1e-4)
    for tensor, told in (("keys", found.keys), ("values", found.values)):
        rows = looked.rows[tensor]
        assert len({(one.layer, one.kv_head, one.channel) for one in told}) == 4
        for one in told:
            column = {at: row[one.channel] for (la, h, at), row in rows.items() if (la, h) == (one.layer, one.kv_head)}
            assert column[one.position] == one.value
            assert abs(one.value) == max(map(abs, column.values()))
        assert [one.ratio for one in told] == sorted((one.ratio for one in told), reverse=True)
