"""The range of a layer's colours, from all of its rows and kept up as rows come; the list of what stands out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.look import magnitudes
from engine.look.lenses import held_of_all
from engine.look.magnitudes import MEDIANS, Blocks, LayerCount, counted, magnitudes_of
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import Rows, Zero
from engine.spec.lenses import LENSES
from engine.spec.sampling import Prompt
from engine.wire.pictures import HeadPicture, HeadRequest, OutliersPicture, OutliersRequest, WallPicture, WallRequest
from tests.engine.session.pasts import SPECS
from tests.engine.tiny import model_of, prompt_ids


def started(spec: CacheSpec | None = None, architecture: str = "llama", length: int = 24) -> Session:
    session = Session(model_of(architecture), spec or CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(length)))
    while session.is_prefilling:
        session.step()
    return session


def wall(session: Session, columns: int, rows: int, tensor: str = "keys", tokens: int | None = None) -> WallPicture:
    tokens = tokens or session.sequence(0).num_tokens
    piece = session.take_picture(WallRequest(0, tokens, tokens, tensor, False, columns, rows))  # type: ignore[arg-type]
    assert isinstance(piece, WallPicture)
    return piece


def told(piece: WallPicture) -> list[list[float]]:
    assert piece.magnitudes is not None
    return [getattr(piece.magnitudes, name).tolist() for name in ("limit", "largest", "clipped")]


def count_of(tensor: torch.Tensor) -> LayerCount:
    """A count of `[H_kv, S, D]`, all at once."""
    return LayerCount(counted(tensor[None], None, tensor.shape[1]), 0)


def range_of(tensor: torch.Tensor) -> tuple[float, float, float]:
    """Limit, largest and clipped share of `[H_kv, S, D]`."""
    found = magnitudes_of([count_of(tensor)])
    return float(found.limit[0]), float(found.largest[0]), float(found.clipped[0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e4])
def test_the_range_is_the_quantile_of_all_numbers(scale: float) -> None:
    tensor = torch.randn(3, 400, 64, generator=torch.Generator().manual_seed(1)) * scale
    sizes = tensor.abs().flatten()
    limit, largest, clipped = range_of(tensor)
    assert limit == pytest.approx(float(sizes.quantile(0.995)), rel=0.02)
    assert largest == float(sizes.max())
    assert clipped == pytest.approx(0.005, rel=0.05)
    assert count_of(tensor).counts.sum() == tensor.numel()


@pytest.mark.parametrize(("heads", "dims"), [(1, 32), (1, 64), (3, 64), (8, 128)])
def test_one_channel_apart_neither_pales_the_others_nor_hides(heads: int, dims: int) -> None:
    tensor = torch.randn(heads, 300, dims, generator=torch.Generator().manual_seed(2))
    plain, _, _ = range_of(tensor)
    tensor[0, :, 5] *= 10
    limit, largest, clipped = range_of(tensor)
    assert plain * 0.99 <= limit <= MEDIANS * float(tensor.abs().median()) * 1.03
    assert limit < 2 * plain
    assert largest > 4 * limit
    assert clipped == pytest.approx(float((tensor.abs() > limit).float().mean()), rel=0.1)
    peak = count_of(tensor).peak
    assert np.unravel_index(np.abs(peak).argmax(), peak.shape) == (0, 5)
    assert abs(float(peak[0, 5])) == largest


def test_tiny_weights_of_attention_do_not_flood_those_that_are_looked_for() -> None:
    weights = torch.full((4, 400, 1), 1e-5)
    weights[:, :20] = torch.linspace(0.02, 0.5, 20)[:, None]
    limit, largest, _ = range_of(weights)
    assert largest == 0.5
    assert limit > 0.4, "one number a token: no channel is to be kept from paling the others"


def test_what_is_no_number_is_not_counted() -> None:
    tensor = torch.ones(1, 10, 4)
    tensor[0, 3, 0], tensor[0, 4, 1], tensor[0, 5, 2] = torch.nan, torch.inf, -torch.inf
    assert range_of(tensor)[:2] == (1.0, 1.0)
    assert count_of(tensor).counts.sum() == 37
    assert range_of(torch.zeros(1, 10, 4)) == (0.0, 0.0, 0.0)
    assert range_of(torch.full((1, 10, 4), 1e30))[1] == np.float32(1e30)


def quantile_of_sized(tensor: torch.Tensor) -> float:
    """The 99.5th percentile of the magnitudes that are not zero, by sorting them."""
    sizes = np.sort(tensor.abs().flatten().numpy())
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(sizes[int(0.995 * sizes.size)])


@pytest.mark.parametrize("num_zeroed", [0, 200, 390, 399])
def test_rows_of_zeros_make_no_range(num_zeroed: int) -> None:
    tensor = torch.randn(3, 400, 64, generator=torch.Generator().manual_seed(1))
    tensor[:, :num_zeroed] = 0.0
    limit, largest, clipped = range_of(tensor)
    assert limit == pytest.approx(quantile_of_sized(tensor), rel=0.05)
    assert largest == float(tensor.abs().max())
    assert clipped == pytest.approx(float((tensor.abs() > limit).float().mean()), rel=0.1)


def test_a_constant_layer_an_outlier_and_a_layer_of_zeros_have_ranges_of_their_own() -> None:
    constant = torch.full((2, 50, 16), -0.25)
    assert range_of(constant) == (0.25, 0.25, 0.0)
    constant[:, 5:] = 0.0
    assert range_of(constant) == (0.25, 0.25, 0.0)
    huge = torch.randn(2, 50, 16, generator=torch.Generator().manual_seed(3))
    huge[:, 10:] = 0.0
    usual = range_of(huge)[0]
    huge[0, 0, 0] = 1e20
    assert range_of(huge)[0] == pytest.approx(usual, rel=0.2)
    assert range_of(huge)[1] == np.float32(1e20)
    zeros, tiny = torch.zeros(2, 50, 16), torch.full((2, 50, 16), 1e-20)
    found = magnitudes_of([count_of(each) for each in (zeros, huge, tiny)])
    assert found.limit[0] == 0.0
    assert found.limit[1] == pytest.approx(usual, rel=0.2)
    assert 0 < found.limit[2] <= np.float32(1e-20)
    assert found.clipped[2] == 0.0


ZEROED = ("growing", "dynamic", "static", "paged", "int8", "fp8", "paged-int8", "kivi-4")


@pytest.mark.parametrize("name", ZEROED)
@pytest.mark.parametrize("last", [20, 24], ids=["most", "all"])
def test_zeroed_rows_leave_the_range_of_wall_head_and_outliers(name: str, last: int) -> None:
    """By an edit, and with the rows that come after it."""
    session = started(SPECS.get(name, PRESETS[name].spec))
    make_edit(session, Zero(0, Rows(0, last)))
    for _ in range(3):
        session.force(0, (5,))
        for tensor in ("keys", "values"):
            piece = wall(session, 8, 4, tensor)
            assert piece.magnitudes is not None
            for index, layer in enumerate(piece.layers):
                _check_range(session, tensor, layer, piece, index)
        session.step()


def _check_range(session: Session, tensor: str, layer: int, piece: WallPicture, index: int) -> None:
    assert piece.magnitudes is not None
    heads = [head_of(session, tensor, layer, head, piece.num_tokens) for head in range(piece.heads[index])]
    numbers = np.concatenate([np.abs(head.low).ravel() for head in heads])
    numbers = numbers[np.isfinite(numbers)]
    limit, largest = float(piece.magnitudes.limit[index]), float(piece.magnitudes.largest[index])
    assert largest == pytest.approx(float(numbers.max()), rel=1e-6)
    if largest == 0.0:
        assert limit == 0.0
        assert {head.limit for head in heads} == {1.0}
        return
    assert limit >= float(np.median(numbers[numbers > 0]))
    assert largest / limit < 10
    for head in heads:
        sizes = np.sort(np.abs(head.low).ravel())
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        assert head.limit == (sizes[int(0.995 * sizes.size)] if sizes.size else 1.0)


def head_of(session: Session, tensor: str, layer: int, head: int, tokens: int) -> HeadPicture:
    """A head with a cell for every number."""
    piece = session.take_picture(HeadRequest(0, tokens, tensor, layer, head, 0, tokens, tokens))  # type: ignore[arg-type]
    assert isinstance(piece, HeadPicture)
    return piece


@pytest.mark.parametrize(
    ("architecture", "spec"),
    [
        ("llama", CacheSpec("growing")),
        ("llama", CacheSpec("paged")),
        ("llama", CacheSpec("static")),
        ("llama", CacheSpec("none")),
        ("gemma3_text", CacheSpec("growing")),
        ("llama", SPECS["h2o"]),
        ("llama", SPECS["kivi-4"]),
        ("llama", SPECS["int8"]),
        ("llama", PRESETS["paged-int8"].spec),
        ("llama", PRESETS["paged-fp8"].spec),
        ("llama", PRESETS["fp8"].spec),
        ("mistral", PRESETS["int8"].spec),
    ],
)
def test_kept_up_step_by_step_it_is_as_if_counted_anew(architecture: str, spec: CacheSpec) -> None:
    session = started(spec, architecture)
    for tensor in ("keys", "values"):
        wall(session, 8, 4, tensor)
    for number in range(9):
        session.force(0, (5 + number,))  # a random model ends its text at any moment
        session.step()
        for tensor in ("keys", "values"):
            kept = told(wall(session, 8, 4, tensor))
            session.live.memos.forget(0)
            np.testing.assert_allclose(kept, told(wall(session, 8, 4, tensor)), rtol=1e-6)


def counted_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows are counted from now on, one number for each piece of a layer and tensor."""
    sizes: list[int] = []

    def spied(numbers, *args):  # type: ignore[no-untyped-def]
        sizes.extend([numbers.shape[2]] * len(numbers))
        return counted(numbers, *args)

    monkeypatch.setattr("engine.look.magnitudes.counted", spied)
    return sizes


@pytest.mark.parametrize("name", ["growing", "paged", "int8", "paged-int8", "paged-fp8"])
def test_new_rows_alone_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every mode that writes a row once, coded or not."""
    session = started(PRESETS[name].spec)
    session.force(0, (5, 6, 7, 8))
    wall(session, 8, 4)
    sizes = counted_rows(monkeypatch)
    for _ in range(3):
        session.step()
    wall(session, 8, 4)
    assert sizes == [3] * 4  # K and V of two layers
    wall(session, 20, 2)
    assert sizes == [3] * 4


# not in fp8: within the prompt, rows were read exact, and are counted as they were
@pytest.mark.parametrize("name", ["growing", "paged", "static", "int8", "paged-int8"])
def test_of_an_earlier_step_only_the_rows_since_the_last_block_are_counted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.look.magnitudes.BLOCK", 8)
    session = started(PRESETS[name].spec if name != "static" else CacheSpec("static", max_length=40))
    wall(session, 8, 4)
    sizes = counted_rows(monkeypatch)
    for tokens, num_counted in ((23, 7), (20, 4), (16, 0), (24, 0), (5, 5), (6, 6)):
        sizes.clear()
        wall(session, 8, 4, tokens=tokens)
        assert sizes == [num_counted] * 4 * bool(num_counted), tokens  # K, V; 2 layers


def test_blocks_of_a_long_sequence_become_longer_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.look.magnitudes.BLOCK", 2)
    monkeypatch.setattr("engine.look.magnitudes.MOST_BLOCKS", 3)
    session = started(length=31)
    wall(session, 8, 4)
    for tokens in (30, 17, 9, 31, 2, 1):
        kept = told(wall(session, 8, 4, tokens=tokens))
        assert kept == told(drawn_anew(session, tokens)), tokens


def counts_of(session: Session, seq_id: int, tokens: int) -> dict[int, LayerCount]:
    """The histograms of K in two layers, counted anew."""
    lens, source = LENSES["keys"], session.rows_at(seq_id, tokens)
    return Blocks().of(lens, source, held_of_all(source, lens, (0, 1)))


def drawn_anew(session: Session, tokens: int) -> WallPicture:
    session.live.memos.forget(0)
    return wall(session, 8, 4, tokens=tokens)


def sizes_after_a_step(spec: CacheSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """How many rows of each layer are counted for a wall of K when one step has passed, and how many there are."""
    session = started(spec)
    wall(session, 8, 4)
    sizes = counted_rows(monkeypatch)
    session.force(0, (5,))
    session.step()
    wall(session, 8, 4)
    return sizes, session.cache_of(0).num_tokens


@pytest.mark.parametrize("name", ["none", "transformers-quantized"])
def test_where_rows_were_computed_anew_all_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, num_tokens = sizes_after_a_step(PRESETS[name].spec, monkeypatch)
    assert sizes == [num_tokens] * 2  # K of two layers


def test_where_rows_were_dropped_all_that_are_left_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, _ = sizes_after_a_step(SPECS["h2o"], monkeypatch)
    assert sizes == [SPECS["h2o"].retention.budget] * 2


def test_the_residual_that_kivi_has_still_to_quantise_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 25 rows the first 16 keys are quantised, in both layers; of the values the 8th has just become so."""
    sizes, num_tokens = sizes_after_a_step(SPECS["kivi-4"], monkeypatch)
    assert num_tokens == 25
    assert sizes == [9, 9, 1, 1, 16, 16]


def test_a_prompt_that_waits_for_its_scale_is_counted_once_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, _ = sizes_after_a_step(PRESETS["fp8"].spec, monkeypatch)
    assert sizes == [1] * 4  # K and V of two layers


def test_a_long_layer_is_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made on the way never holds more numbers than are counted at once."""
    tensor = torch.randn(2, 1000, 8, generator=torch.Generator().manual_seed(3))
    tensor[1, 997, 3] = -50.0
    whole = count_of(tensor)
    sizes: list[int] = []
    farthest = magnitudes.farthest_from_zero

    def spied(values: torch.Tensor, dim: int) -> torch.Tensor:
        sizes.append(values.numel())
        return farthest(values, dim)

    monkeypatch.setattr(magnitudes, "farthest_from_zero", spied)
    monkeypatch.setattr(magnitudes, "COUNTED_AT_ONCE", 1024)
    pieces = count_of(tensor)
    assert max(sizes) == 1024
    assert sum(sizes) == tensor.numel()
    assert np.array_equal(pieces.counts, whole.counts)
    assert np.array_equal(pieces.peak, whole.peak)
    assert pieces.num_rows == whole.num_rows == 1000


def test_after_a_failed_step_the_rows_that_were_computed_anew_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that has wrapped cannot be cropped, so all rows are computed once more, and a planted one is gone."""
    session = started(CacheSpec("dynamic"), "gemma3_text")
    rows = session.cache_of(0).rows(1)
    assert rows is not None
    assert rows.first == 0
    with torch.inference_mode():
        rows.keys[0, 0, 3, 5] = 50.0
    assert told(wall(session, 8, 4))[1][1] == 50.0
    add = session.history.tree.add

    def fails(*_: object) -> None:
        monkeypatch.setattr(session.history.tree, "add", add)
        raise MemoryError("no room for a checkpoint")

    monkeypatch.setattr(session.history.tree, "add", fails)
    session.force(0, (7, 8))
    with pytest.raises(MemoryError):
        session.step()
    wall(session, 8, 4)
    session.step()
    kept = told(wall(session, 8, 4))
    assert kept[1][1] < 10
    session.live.memos.forget(0)
    np.testing.assert_allclose(kept, told(wall(session, 8, 4)), rtol=1e-6)


def test_going_back_and_on_another_way_counts_what_is_held() -> None:
    session = started()
    for _ in range(4):
        session.step()
    wall(session, 8, 4)
    past = told(wall(session, 8, 4, tokens=25))
    session.go_to(1)
    assert told(wall(session, 8, 4)) == past
    session.force(0, (7,))
    for _ in range(5):
        session.step()
    kept = told(wall(session, 8, 4))
    session.live.memos.forget(0)
    assert told(wall(session, 8, 4)) == kept


def test_a_fork_and_another_mode_are_counted_by_themselves() -> None:
    session = started()
    wall(session, 8, 4)
    fork = session.fork(0).child
    session.force(fork, (9,))
    for _ in range(3):
        session.step()
    tokens = session.sequence(fork).num_tokens
    piece = session.take_picture(WallRequest(fork, tokens, tokens, "keys", False, 8, 4))
    assert isinstance(piece, WallPicture)
    fresh = counts_of(session, fork, tokens)
    assert told(piece)[1] == magnitudes_of([fresh[0], fresh[1]]).largest.tolist()
    session.set_cache(SPECS["int8"])
    coded = counts_of(session, 0, session.sequence(0).num_tokens)
    assert told(wall(session, 8, 4))[1] == magnitudes_of([coded[0], coded[1]]).largest.tolist()


def test_no_size_of_a_picture_changes_the_range_and_a_head_has_that_of_its_layer() -> None:
    session = started()
    small, large = wall(session, 3, 2), wall(session, 200, 64)
    assert told(small) == told(large)
    tokens = session.sequence(0).num_tokens
    piece = session.take_picture(HeadRequest(0, tokens, "keys", 1, 0, 0, tokens, 100))
    assert isinstance(piece, HeadPicture)
    assert piece.magnitudes is not None
    assert piece.magnitudes.limit.tolist() == [told(small)[0][1]]
    part = session.take_picture(HeadRequest(0, tokens, "keys", 1, 1, 5, 9, 100))
    assert isinstance(part, HeadPicture)
    assert part.magnitudes is not None
    assert part.magnitudes.limit.tolist() == piece.magnitudes.limit.tolist()


def test_the_list_finds_a_planted_channel_and_the_most_attended_token() -> None:
    session = started()
    session.step()
    rows = session.cache_of(0).rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 1, :, 3] *= 30
    tokens = session.sequence(0).num_tokens
    found = session.take_picture(OutliersRequest(0, tokens, session.last_step or 0, 5))
    assert isinstance(found, OutliersPicture)
    first = found.values[0]
    assert (first.layer, first.kv_head, first.channel) == (1, 1, 3)
    assert first.value == float(rows.values[0, 1, first.position, 3])
    assert abs(first.value) == float(rows.values[0, 1, :, 3].abs().max())
    limit = wall(session, 8, 4, "values").magnitudes.limit[1]  # type: ignore[union-attr]
    assert first.ratio == pytest.approx(abs(first.value) / limit)
    assert first.ratio > 2 > found.values[1].ratio
    assert len(found.keys) == len(found.values) == len(found.attended) == 5
    weights = torch.cat(list((session.history.attention.get((session.last_step or 0, 0)) or {}).values()))
    top = found.attended[0]
    assert top.position == int(weights.mean(0).argmax())
    assert top.weight == pytest.approx(float(weights.mean(0).max()))
    assert top.most == pytest.approx(float(weights[:, top.position].max()))
    assert top.kv_head == top.head // (weights.shape[0] // 2 // 2)
