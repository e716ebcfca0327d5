"""Pictures of earlier steps show exactly the rows of that step, or say that they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import InputError
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import CacheSpec, Quantizer, cache_preset, tuned
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import Prompt
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    RowPicture,
    RowRequest,
    TablePicture,
    TableRequest,
    WallPicture,
    WallRequest,
)
from tests.effort import effort
from tests.engine.session.pasts import PROMPT, SCORED, SPECS, STEPS, started
from tests.engine.snapshot.sessions import snapshot, written
from tests.engine.tiny import model_of, prompt_ids


def looks(session: Session, tokens: int, previous: int) -> list[Any]:
    """Every kind of picture of the state with so many tokens."""
    requests = [
        WallRequest(0, tokens, tokens, "keys", False, 16, 8),
        WallRequest(0, tokens, previous, "keys", True, 64, 16),
        HeadRequest(0, tokens, "values", 1, 1, 0, tokens, 64),
        RowRequest(0, tokens, 5),
        RowRequest(0, tokens, tokens - 1),
    ]
    return [session.take_picture(request) for request in requests]


def same(mine: Any, theirs: Any) -> None:
    for name in ("low", "high", "absent", "holders", "counts", "positions", "num_nan"):
        if hasattr(mine, name):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    if isinstance(mine, RowPicture):
        assert (mine.layers, mine.evicted) == (theirs.layers, theirs.evicted)
        for a, b in zip(mine.keys + mine.values, theirs.keys + theirs.values, strict=True):
            np.testing.assert_array_equal(a, b)


def provenance_now(session: Session) -> str:
    """The provenance of all rows that sequence 0 holds now."""
    return session.rows_at(0, session.cache_of(0).num_tokens).provenance


@pytest.mark.parametrize("name", effort([*SPECS][::2], [*SPECS]))
def test_a_past_step_looks_as_it_looked_then(name: str) -> None:
    session = started(SPECS[name])
    count = PROMPT
    live = {count: looks(session, count, 0)}
    while count < PROMPT + STEPS:
        session.step()
        live[count + 1] = looks(session, count + 1, count)
        count += 1
    for tokens, then in live.items():
        again = looks(session, tokens, 0 if tokens == PROMPT else tokens - 1)
        for mine, theirs in zip(again, then, strict=True):
            same(mine, theirs)
            is_put_back = SPECS[name].codec.is_exact and tokens < count
            assert mine.provenance == ("recorded" if is_put_back else theirs.provenance)
    # looking back has changed nothing
    for mine, theirs in zip(looks(session, count, count - 1), live[count], strict=True):
        same(mine, theirs)


def test_a_moment_before_an_edit_looks_as_it_stood_though_it_had_as_many_tokens() -> None:
    """From the state that is kept for undo; where that is gone, the picture says that it shows the rows as they are."""
    session = started(CacheSpec())
    session.step()
    step, count = session.last_step, PROMPT + 1
    requests = WallRequest(0, count, count, "keys", False, 64, 16), HeadRequest(0, count, "keys", 1, 1, 0, count, 64)
    before = [session.take_picture(request) for request in requests]
    edited = make_edit(session, Zero(0, Rows(2, 9)))[0].node.step
    zeroed = [session.take_picture(request) for request in requests]
    for request, then, now in zip(requests, before, zeroed, strict=True):
        past, live = session.take_picture(request, step), session.take_picture(request, edited)
        same(past, then)
        same(live, now)
        assert (past.provenance, live.provenance) == ("kept", "live cache")
    session.kept.clear()
    for request, now in zip(requests, zeroed, strict=True):
        past = session.take_picture(request, step)
        same(past, now)
        assert past.provenance == "as stored now"


@pytest.mark.parametrize("name", ["h2o", "rerotate", "kivi-2"])
def test_looking_back_does_not_change_what_comes(name: str) -> None:
    one, other = started(SPECS[name]), started(SPECS[name])
    for step in range(STEPS):
        one.step()
        other.step()
        looks(one, PROMPT + step // 2, PROMPT)
    mine, theirs = one.logits(0), other.logits(0)
    assert mine is not None
    assert theirs is not None
    assert torch.equal(mine, theirs)


def test_a_picture_of_the_change_shows_what_was_coded_late() -> None:
    session = started(SPECS["kivi-2"])
    for _ in range(STEPS):
        session.step()
    tokens = next(n for n in range(PROMPT + 1, PROMPT + STEPS) if n % 16 == 0)
    piece = session.take_picture(WallRequest(0, tokens, tokens - 1, "keys", True, 64, 16))
    assert isinstance(piece, WallPicture)
    assert (piece.low[:, :, : tokens - 1] != 0).any()  # a whole residual of keys became coarse in this step
    piece = session.take_picture(WallRequest(0, tokens + 1, tokens, "keys", True, 64, 16))
    assert isinstance(piece, WallPicture)
    assert (piece.low[:, :, :tokens] == 0).all()
    assert not piece.note


def test_what_was_exact_before_the_prompt_ended_is_shown_as_it_was_while_the_log_has_it() -> None:
    session = Session(model_of("llama"), SPECS["fp8"], prefill_chunk=16)
    session.submit(Prompt(token_ids=prompt_ids(40)))
    session.step()
    then = looks(session, 16, 0)
    for _ in range(3):
        session.step()
    for past, now in zip(looks(session, 16, 0), then, strict=True):
        same(past, now)
        assert past.provenance == now.provenance
    assert looks(session, 40, 39)[0].provenance == "dequantised"
    session.cache_of(0).forget_past()
    assert looks(session, 16, 0)[0].provenance == "as stored now"
    with pytest.raises(InputError, match="go to it first"):
        snapshot(session, 0, 16)


def test_rows_that_are_all_in_the_residual_are_those_that_attention_read() -> None:
    """Drawn at that step or after later steps coded them; no copy of them is decoded."""
    session = started(tuned(SPECS["kivi-2"], group=16, residual=32))
    for count in range(PROMPT, PROMPT + 12):
        gaps = [gap.name for layer in session.bytes().layers for gap in layer.gaps]
        is_coded = count >= 32
        assert session.rows_at(0, count).provenance == ("dequantised" if is_coded else "live cache")
        assert ("dequantised copy" in gaps) == is_coded
        session.step()
    assert [session.rows_at(0, count).provenance for count in (31, 32)] == ["live cache", "dequantised"]


def test_transformers_quantised_cache_knows_only_the_present() -> None:
    session = started(CacheSpec("quantized", quantizer=Quantizer()))
    session.step()
    assert looks(session, PROMPT, 0)[0].provenance == "as stored now"
    assert looks(session, PROMPT + 1, PROMPT)[0].provenance == "dequantised"


@pytest.mark.parametrize(
    ("first", "second", "before"),
    [
        ("growing", "sliding", "recorded"),
        ("growing", "h2o", "as stored now"),  # recomputed under the new rule
        ("growing", "int8", "as stored now"),
        ("h2o", "growing", "as stored now"),
        ("kivi-2", "growing", "as stored now"),
        ("growing", "dynamic", "live cache"),
    ],
)
def test_a_mode_that_took_over_tells_only_what_it_knows(first: str, second: str, before: str) -> None:
    specs = {**SPECS, "growing": CacheSpec(), "dynamic": CacheSpec("dynamic")}
    session = started(specs[first])
    for _ in range(4):
        session.step()
    then = looks(session, PROMPT + 2, PROMPT + 1)
    session.set_cache(specs[second])
    session.step()
    again = looks(session, PROMPT + 2, PROMPT + 1)
    assert again[0].provenance == before
    if before != "as stored now":
        np.testing.assert_array_equal(again[0].low, then[0].low)
    assert looks(session, PROMPT + 5, PROMPT + 4)[0].provenance == provenance_now(session)
    session.go_to(3)  # rows from before the change belong to the new mode now
    session.step()
    assert looks(session, PROMPT + 4, PROMPT + 3)[0].provenance == provenance_now(session)


@pytest.mark.parametrize(
    ("first", "second"),
    [("knorm", "growing"), ("h2o", "none"), ("int8", "growing"), ("growing", "int8"), ("growing", "knorm"),
     ("growing", "sliding"), ("growing", "rerotate"), ("growing", "paged knorm"), ("none", "growing")],
)  # fmt: skip
def test_the_last_step_before_a_change_of_mode_is_not_drawn_from_after_it(first: str, second: str) -> None:
    knorm = tuned(SPECS["knorm"], layout="paged", page_size=4)
    specs = {**SPECS, "growing": CacheSpec(), "none": CacheSpec("none"), "paged knorm": knorm}
    session = started(specs[first])
    for _ in range(4):
        session.step()
    session.set_cache(specs[second])
    now = looks(session, PROMPT + 4, PROMPT + 3)
    assert now[0].provenance == provenance_now(session), "the present holds the rows as the new mode took them over"
    session.step()
    session.step()
    assert {piece.provenance for piece in looks(session, PROMPT + 4, PROMPT + 3)} == {"as stored now"}
    with pytest.raises(InputError, match="go to it first"):
        snapshot(session, 0, PROMPT + 4)
    assert looks(session, PROMPT + 5, PROMPT + 4)[0].provenance in ("recorded", provenance_now(session))
    session.go_to(4)
    assert session.cache == specs[first]
    assert snapshot(session, 0, PROMPT + 4).manifest["provenance"] == provenance_now(session)


def test_the_last_step_before_its_rows_were_copied_is_still_known() -> None:
    session = started(CacheSpec())
    for _ in range(4):
        session.step()
    then = looks(session, PROMPT + 4, PROMPT + 3)
    session.set_cache(CacheSpec("paged"))
    session.step()
    for mine, theirs in zip(looks(session, PROMPT + 4, PROMPT + 3), then, strict=True):
        same(mine, theirs)
        assert mine.provenance == "live cache"


def test_the_change_of_the_first_step_in_a_mode_starts_from_what_the_mode_made_of_the_rows() -> None:
    session = started(CacheSpec())
    for _ in range(7):
        session.step()  # 31 tokens: the next one fills a residual
    session.set_cache(SPECS["kivi-2"])
    session.step()
    then = looks(session, PROMPT + 8, PROMPT + 7)[1]
    session.step()
    again = looks(session, PROMPT + 8, PROMPT + 7)[1]
    assert not then.note
    assert not again.note
    assert (then.low[:, :, : PROMPT + 7] != 0).any()
    same(again, then)


def wall(session: Session, tokens: int) -> WallPicture:
    piece = session.take_picture(WallRequest(0, tokens, tokens, "keys", False, 64, 8))
    assert isinstance(piece, WallPicture)
    return piece


@pytest.mark.parametrize(
    ("architecture", "mode"),
    [(name, mode) for name in ("mistral", "gemma2") for mode in ("dynamic", "static", "paged", "none")]
    + [("gemma2", "paged knorm")],
)
def test_what_has_left_a_window_is_not_said_to_be_whole(architecture: str, mode: str) -> None:
    knorm = tuned(SPECS["knorm"], layout="paged", page_size=4, budget=40)  # more than there are: the rule drops none
    paged = {"paged": CacheSpec("paged", page_size=4), "paged knorm": knorm}
    session = Session(model_of(architecture), paged.get(mode) or CacheSpec(mode), prefill_chunk=8)  # type: ignore[arg-type]
    session.submit(Prompt(token_ids=prompt_ids(4)))
    session.force(0, prompt_ids(30, seed=3))
    then: dict[int, WallPicture] = {}
    said = set()
    for _ in range(14):
        tokens = session.step().sequences[0].num_tokens
        then[tokens] = wall(session, tokens)
        for count, before in then.items():
            again = wall(session, count)
            is_whole = again.low.shape == before.low.shape and np.allclose(
                again.low, before.low, atol=1e-5 if mode == "none" else 0, equal_nan=True
            )
            assert (again.provenance == "as stored now") != is_whole, f"{count} of {tokens} tokens"
            said.add(is_whole)
            if not is_whole:
                assert "have left the window of some layers" in again.note
                with pytest.raises(InputError, match="go to it first"):
                    snapshot(session, 0, count)
    assert said == {True, False}


def test_layers_without_rows_lose_none() -> None:
    """A recurrent layer has no rows to drop: K and V of the other layers are complete."""
    session = Session(model_of("lfm2"), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(6)))
    session.force(0, prompt_ids(8, seed=3))
    then = [wall(session, session.step().sequences[0].num_tokens) for _ in range(4)]
    for piece in then:
        again = wall(session, piece.num_tokens)
        same(again, piece)
        assert again.provenance == "live cache"


def test_an_exported_past_step_is_that_step() -> None:
    session = started(SPECS["h2o"])
    for _ in range(6):
        session.step()
    then = snapshot(session, 0)
    for _ in range(6):
        session.step()
    again = snapshot(session, 0, PROMPT + 6)
    assert again.manifest["step"] == then.manifest["step"] == "6"
    assert again.manifest["provenance"] == "recorded"
    for name, tensor in then.tensors.items():
        torch.testing.assert_close(
            written(again.tensors[name]), written(tensor), rtol=0, atol=0, equal_nan=True, msg=name
        )


def test_holders_count_heads_and_layers() -> None:
    session = started(SPECS["h2o"])
    for _ in range(8):
        session.step()
    tokens = PROMPT + 8
    piece = looks(session, tokens, tokens)[0]
    assert piece.holders.shape == (2, tokens)
    assert piece.holders[0].sum() == 2 * 2 * 20  # two layers, two heads, the budget
    assert piece.holders[0].max() <= 4
    assert piece.holders[1].max() <= 2


def test_recorded_attention_tells_dropped_rows_from_bad_ones() -> None:
    session = started(SPECS["h2o"])
    for _ in range(4):
        session.step()
    piece = session.take_picture(AttentionRequest(0, 4, 0, 512))
    assert isinstance(piece, AttentionPicture)
    assert piece.absent is not None
    np.testing.assert_array_equal(np.isnan(piece.weights), piece.absent == 1)
    head = session.take_picture(HeadRequest(0, PROMPT + 4, "keys", 0, 0, 0, PROMPT + 4, 512))
    assert isinstance(head, HeadPicture)
    assert head.num_nan == 0
    assert head.absent is not None
    assert head.absent.sum() == PROMPT + 4 - 20


@pytest.mark.parametrize(
    "name", ["paged", "paged-fp8", "paged-int8", "growing", "dynamic", "fp8", "int8", "h2o", "none"]
)
def test_a_sequence_that_waits_has_empty_pictures_and_no_row(name: str) -> None:
    session = Session(model_of("llama"), cache_preset(name).spec)
    session.submit(Prompt(token_ids=prompt_ids(6)))
    wall = session.take_picture(WallRequest(0, 0, 0, "keys", False, 8, 8))
    head = session.take_picture(HeadRequest(0, 0, "keys", 0, 0, 0, 0, 8))
    row = session.take_picture(RowRequest(0, 0, 0))
    assert isinstance(wall, WallPicture)
    assert isinstance(head, HeadPicture)
    assert isinstance(row, RowPicture)
    assert "no step has been computed" in wall.note
    assert head.low.shape[0] == 0
    assert row.layers == ()
    assert row.note


@pytest.mark.parametrize("name", ["knorm", "h2o", "sliding"])
def test_a_past_page_table_has_the_pages_that_were_dropped_since(name: str) -> None:
    more = {"window": 12} if name == "sliding" else SCORED
    session = started(tuned(cache_preset(name).spec, layout="paged", page_size=4, **more))
    then = {}
    for count in range(PROMPT, PROMPT + STEPS):
        piece = session.take_picture(TableRequest(0, count))
        assert isinstance(piece, TablePicture)
        then[count] = piece.tables[0].tolist()
        session.step()
    assert then[PROMPT] != then[PROMPT + STEPS - 1][: len(then[PROMPT])], "some were dropped"
    for count, pages in then.items():
        piece = session.take_picture(TableRequest(0, count))
        assert isinstance(piece, TablePicture)
        assert piece.tables[0].tolist() == pages, count
