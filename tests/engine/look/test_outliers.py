"""The tokens attended to most, and the token at which a channel is largest, in numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from engine.geometry.dimensions import CacheGeometry
from engine.look import pictures
from engine.look.magnitudes import LayerCount, counted
from engine.look.pictures import largest, most_attended
from engine.look.source import Rows
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from engine.wire.pictures import OutliersPicture, OutliersRequest
from tests.engine.session.pasts import SPECS
from tests.engine.tiny import model_of, prompt_ids


def test_rows_of_different_lengths_end_at_the_newest_token() -> None:
    """The second layer holds the latest three of five tokens."""
    attention = {
        0: torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.2], [0.6, 0.0, 0.1, 0.1, 0.2]]),
        1: torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1]]),
    }
    geometry = CacheGeometry.uniform(2, 1, 4)
    heads = SimpleNamespace(layers=[SimpleNamespace(num_heads=2, num_kv_heads=1)] * geometry.num_layers)
    first, second = most_attended(attention, cast(Any, heads), 2, 5)
    assert (first.position, first.layer, first.head, first.kv_head) == (3, 1, 0, 0)
    assert (round(first.weight, 3), round(first.most, 3)) == (0.425, 0.8)
    assert (second.position, second.layer, second.head) == (0, 0, 1)


def test_a_row_of_a_later_token_is_none_of_then() -> None:
    """The third of four scattered rows is of the token after the five that there were."""
    values = torch.zeros(1, 1, 4, 2)
    values[0, 0, :, 1] = torch.tensor([1.0, -3.0, 9.0, 8.0])
    rows = Rows(values[0], 0, torch.tensor([[0, 4, 5, 6]]))
    for num_tokens, position, value in ((5, 4, -3.0), (6, 5, 9.0)):
        past = SimpleNamespace(
            num_tokens=num_tokens, rows=lambda *_, **__: rows, exact_from=lambda *_: 0, num_final=lambda *_: 0
        )
        count = LayerCount(counted(values, torch.tensor([[[0, 4, 5, 6]]]), num_tokens), 0)
        (found,) = largest({0: count}, cast(Any, past), "keys", 1, {})
        assert (found.position, found.value) == (position, value)


@pytest.mark.parametrize("name", ["growing", "paged", "int8", "paged-int8", "h2o", "kivi-4"])
def test_a_number_is_searched_once_and_is_where_it_was_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a row that stays as it is; and after each step, and back at an earlier one, the list is that made anew."""
    session = Session(model_of("llama"), SPECS.get(name, PRESETS[name].spec))
    session.submit(Prompt(token_ids=prompt_ids(24)))
    session.force(0, tuple(range(5, 15)))
    searched: list[int] = []
    search = pictures._position_of_largest

    def spied(*args: Any) -> tuple[int, float]:
        found = search(*args)
        searched.append(found[0])
        return found

    monkeypatch.setattr(pictures, "_position_of_largest", spied)
    while session.is_prefilling:
        session.step()
    taken(session, 24)
    for tokens in (25, 26, 27, 25):
        if is_new := tokens > session.sequence(0).num_tokens:
            session.step()
        searched.clear()
        found = taken(session, tokens)
        if is_new and name not in ("h2o", "kivi-4"):  # in these, rows are dropped, or have still to be quantised
            assert set(searched) <= {tokens - 1}
        session.live.memos.forget(0)
        assert found == taken(session, tokens)


def taken(session: Session, tokens: int) -> list[object]:
    """The largest numbers of K and V when there were so many tokens."""
    picture = session.take_picture(OutliersRequest(0, tokens, session.last_step or 0))
    assert isinstance(picture, OutliersPicture)
    return [msgspec.to_builtins(each) for each in (*picture.keys, *picture.values)]
