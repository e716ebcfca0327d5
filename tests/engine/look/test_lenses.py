"""Every lens against the same thing computed in plain torch from the projections of the model's layers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.cli.command_line import run_command_line
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import Rows, Zero
from engine.spec.lenses import LENSES, TABLE
from engine.spec.sampling import Prompt
from engine.wire.pictures import AttentionPicture, AttentionRequest, HeadPicture, HeadRequest, WallPicture, WallRequest
from tests.engine.analysis.comparison.comparisons import compared, comparison_of
from tests.engine.opened.sessions import opened
from tests.engine.tiny import model_of, prompt_ids

PROMPT, STEPS = 21, 5
COUNT = PROMPT + STEPS


def started(spec: CacheSpec, architecture: str = "llama", steps: int = STEPS) -> Session:
    session = Session(model_of(architecture), spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(PROMPT)))
    while session.is_prefilling:
        session.step()
    for number in range(steps):
        session.force(0, (7 + number,))
        session.step()
    return session


def projected(session: Session, layer: int) -> dict[str, torch.Tensor]:
    """Queries, keys and values `[H, T, D]` of one layer for all tokens at once, before any rotation."""
    model, found = session.model.model, dict[str, torch.Tensor]()
    attention = model.model.layers[layer].self_attn
    heads = attention.head_dim

    def note(name: str) -> Any:
        return lambda module, given, out: found.__setitem__(name, out[0].unflatten(-1, (-1, heads)).transpose(0, 1))

    hooks = [getattr(attention, f"{name}_proj").register_forward_hook(note(name)) for name in "qkv"]
    ids = session.sequence(0).token_ids[:COUNT]
    with torch.inference_mode():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def turned(rows: torch.Tensor, session: Session) -> torch.Tensor:
    """Rows `[H, T, D]` turned by their positions, half against half."""
    dims, base = rows.shape[-1], session.model.model.config.rope_parameters["rope_theta"]
    angles = torch.arange(rows.shape[1])[:, None] / base ** (torch.arange(0, dims, 2) / dims)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    half = torch.cat([-rows[..., dims // 2 :], rows[..., : dims // 2]], -1)
    return rows * cos + half * sin


def expected(session: Session, layer: int) -> dict[str, torch.Tensor]:
    """What each lens shows of a layer, `[H, T, values]`."""
    rows = projected(session, layer)
    queries, keys = turned(rows["q"], session), turned(rows["k"], session)
    scores = queries @ keys.repeat_interleave(len(queries) // len(keys), 0).mT / math.sqrt(keys.shape[-1])
    is_later = torch.ones(COUNT, COUNT, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    return {
        "keys": keys,
        "values": rows["v"],
        "keys-norm": keys.square().sum(-1, keepdim=True).sqrt(),
        "values-norm": rows["v"].square().sum(-1, keepdim=True).sqrt(),
        "keys-before-rotation": rows["k"],
        "attention": weights[:, -1, :, None],
        "attention-received": weights.sum(1)[..., None],
        "attention-entropy": torch.special.entr(weights).sum(-1)[..., None],
        "attention-map": weights,
    }


def head_of(session: Any, lens: str, layer: int, head: int, count: int = COUNT) -> HeadPicture:
    piece = (session.take_picture if isinstance(session, Session) else session.take)(
        HeadRequest(0, count, lens, layer, head, 0, count, 100)
    )
    assert isinstance(piece, HeadPicture)
    return piece


@pytest.mark.parametrize("mode", ["dynamic", "growing", "paged", "static"])
def test_on_the_wall_and_in_a_head_it_is_what_plain_torch_gives(mode: str) -> None:
    session = started(PRESETS[mode].spec)
    for layer in range(2):
        wanted = expected(session, layer)
        assert set(wanted) == set(LENSES), "every lens has something to be compared with"
        for name, numbers in wanted.items():
            for head in range(len(numbers)):
                piece = head_of(session, name, layer, head)
                np.testing.assert_allclose(piece.low, numbers[head].numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
            wall = session.take_picture(WallRequest(0, COUNT, COUNT, name, False, 100, 100))
            assert isinstance(wall, WallPicture)
            if LENSES[name].is_of_every_head:
                np.testing.assert_allclose(wall.low[layer], numbers.numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
                assert wall.magnitudes is not None
                assert (name == "attention-received") == (wall.note == f"Summed over {COUNT} queries.")
            else:
                assert wall.note == "The attention map is a picture of one head, not of all: choose another lens."


def of_queries(session: Session, lens: str, layer: int, head: int = 0, **more: Any) -> AttentionPicture:
    step = session.last_step
    assert step is not None
    piece = session.take_picture(AttentionRequest(0, step, layer, 100, lens=lens, head=head, max_rows=100, **more))
    assert isinstance(piece, AttentionPicture)
    return piece


def test_the_attention_panel_shows_what_plain_torch_gives() -> None:
    session = started(CacheSpec("growing"))
    for name, numbers in expected(session, 1).items():
        if LENSES[name].reads == "queries":
            for head in range(len(numbers)):
                piece, is_map = of_queries(session, name, 1, head), LENSES[name].values == "tokens"
                wanted, found = (numbers[head], piece.weights) if is_map else (numbers[head, :, 0], piece.weights[head])
                np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
                assert piece.provenance == "recomputed", "the prompt's queries were not recorded"
            assert head_of(session, name, 1, 0).provenance == "recomputed"
    pooled = session.take_picture(AttentionRequest(0, session.last_step or 0, 1, 9, 2, 20, "attention-map", 1, 5))
    assert isinstance(pooled, AttentionPicture)
    assert (pooled.queries_per_row, pooled.tokens_per_column, pooled.first_query) == (6, 2, 0)
    block = expected(session, 1)["attention-map"][1, 6:12, 4:6]
    assert pooled.weights[1, 1] == pytest.approx(float(block.max()), rel=2e-3, abs=2e-4)
    assert "no attention map" in of_queries(session, "attention-map", 1, 77).note


def test_sums_are_over_as_many_of_the_latest_queries_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    session = started(CacheSpec("growing"), steps=STEPS - 1)
    of_queries(session, "attention-received", 1, latest=12)
    session.force(0, (7 + STEPS - 1,))
    session.step()  # the oldest of the twelve is one no more
    weights = expected(session, 1)["attention-map"]
    for latest, provenance in ((3, "recorded"), (12, "recomputed"), (0, "recomputed"), (90, "recomputed")):
        piece = of_queries(session, "attention-received", 1, latest=latest)
        wanted = weights[:, -latest:].sum(1) if latest < COUNT else weights.sum(1)
        np.testing.assert_allclose(piece.weights, wanted.numpy(), rtol=2e-3, atol=2e-4)
        said = f"the latest {latest} of {COUNT}" if 0 < latest < COUNT else str(COUNT)
        assert (piece.note, piece.provenance) == (f"Summed over {said} queries.", provenance)
    assert of_queries(session, "attention-map", 1, latest=3).weights.shape == (3, COUNT)
    monkeypatch.setattr("engine.session.pictures.MOST_QUERIES", COUNT)
    session.force(0, (3,))
    session.step()  # more queries than pictures are made of: those that were summed stay in the sum
    piece = of_queries(session, "attention-received", 1)
    assert piece.note == f"Summed over {COUNT + 1} queries."
    assert float(piece.weights[0].sum()) == pytest.approx(COUNT + 1, rel=1e-3)
    running = started(CacheSpec("growing"), steps=2)
    for number in range(2, STEPS):  # one more of the latest two each time, as a run has it
        of_queries(running, "attention-received", 1, latest=2)
        running.force(0, (7 + number,))
        running.step()
    piece, entropy = (of_queries(running, f"attention-{name}", 1, latest=2) for name in ("received", "entropy"))
    np.testing.assert_allclose(piece.weights, weights[:, -2:].sum(1).numpy(), rtol=2e-3, atol=2e-4)
    wanted = torch.special.entr(weights).sum(-1)[:, -2:].numpy()
    np.testing.assert_allclose(entropy.weights[:, -2:], wanted, rtol=2e-3, atol=2e-4)


def test_looked_at_amid_a_prompt_it_is_of_no_query_that_was_not_recorded() -> None:
    session = Session(model_of("llama"), PRESETS["int8"].spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(PROMPT)))
    for count in (8, 16, PROMPT):  # the newest query of each chunk is recorded
        session.step()
        for lens in ("attention-entropy", "attention-map"):
            assert head_of(session, lens, 1, 0, count).positions.tolist() == [count - 1]
        assert of_queries(session, "attention-received", 1).note == f"Summed over the latest 1 of {count} queries."


def test_layers_that_read_the_rows_of_others_have_attention_of_their_own() -> None:
    """The prompt's queries are computed again for these as well."""
    session = started(CacheSpec("growing"), "gemma3n_text")
    for layer in (2, 3):
        whole = head_of(session, "attention-map", layer, 1).low
        assert whole.shape == (COUNT, COUNT)
        np.testing.assert_allclose(whole.sum(1), 1.0, rtol=1e-4)
        received, entropy = (head_of(session, f"attention-{name}", layer, 1).low for name in ("received", "entropy"))
        np.testing.assert_allclose(received[:, 0], whole.sum(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(entropy[:, 0], torch.special.entr(torch.tensor(whole)).sum(1), rtol=1e-3, atol=1e-5)


def test_the_map_of_another_branch_is_not_that_of_the_one_before() -> None:
    session = started(CacheSpec("growing"))
    before = of_queries(session, "attention-map", 1).weights
    session.go_to((session.last_step or 0) - 3)
    for token in (50, 51, 52):
        session.force(0, (token,))
        session.step()
    now = of_queries(session, "attention-map", 1).weights
    assert now.shape == before.shape
    np.testing.assert_allclose(now[-1], of_queries(session, "attention", 1).weights[0], atol=1e-5)
    assert np.abs(now[-1] - before[-1]).max() > 1e-3


@pytest.mark.parametrize("lens", [lens.name for lens in TABLE])
def test_of_an_earlier_step_it_is_what_it_was_then(lens: str) -> None:
    session = started(CacheSpec("growing"), steps=STEPS - 2)
    then = head_of(session, lens, 1, 1, COUNT - 2)
    for token in (5, 6):
        session.force(0, (token,))
        session.step()
    head_of(session, lens, 1, 1)
    now = head_of(session, lens, 1, 1, COUNT - 2)
    np.testing.assert_allclose(now.low, then.low, rtol=1e-3, atol=1e-5)


def test_of_a_difference_it_is_that_of_the_error() -> None:
    session = started(CacheSpec("growing"))
    comparison = comparison_of(session, 0, PRESETS["int8"].spec)
    compared(comparison)
    sides = [run.source(COUNT).rows(1, "keys") for run in (comparison.a, comparison.b)]
    assert sides[0] is not None
    assert sides[1] is not None
    error = sides[0].numbers - sides[1].numbers
    piece = comparison.picture(HeadRequest(0, COUNT, "keys-norm", 1, 0, 0, COUNT, 100), "difference")
    assert isinstance(piece, HeadPicture)
    np.testing.assert_allclose(piece.low[:, 0], error[0].norm(dim=-1).numpy(), rtol=1e-5)
    wall = comparison.picture(WallRequest(0, COUNT, COUNT, "keys-before-rotation", False, 100, 100), "difference")
    assert isinstance(wall, WallPicture)
    np.testing.assert_allclose((wall.low[1, 0] ** 2).sum(1) ** 0.5, error[0].norm(dim=-1).numpy(), rtol=1e-3)


def test_where_it_cannot_be_it_says_why(tmp_path: Path) -> None:
    session = started(CacheSpec("growing"))
    snapshot = opened(session, tmp_path)
    for lens, words in (("attention-entropy", "newest query"), ("keys-before-rotation", "without the model")):
        piece = head_of(snapshot, lens, 1, 0)
        assert not piece.low.size
        assert words in piece.note
    same = [head_of(each, "attention", 1, 0).low for each in (session, snapshot)]
    np.testing.assert_allclose(*same, rtol=1e-6)
    make_edit(session, Zero(0, Rows(2, 5)))
    piece = head_of(session, "attention-received", 1, 0)
    assert piece.note == f"Summed over the latest {STEPS + 1} of {COUNT} queries."
    dropped = started(PRESETS["h2o"].spec)
    piece = head_of(dropped, "attention-entropy", 1, 0)
    assert piece.positions[0] >= PROMPT - 1, "queries of the prompt were not recorded, and read rows that are gone"
    latent = Session(model_of("deepseek_v3"), CacheSpec("growing"))
    latent.submit(Prompt(token_ids=prompt_ids(5)))
    latent.step()
    assert "latent" in head_of(latent, "keys-before-rotation", 0, 0, 5).note


@pytest.mark.parametrize("architecture", ["gemma3_text", "mistral", "qwen3", "gpt_neox", "cohere"])
def test_keys_are_turned_back_as_each_model_turns_them(architecture: str) -> None:
    """Keys of the same token are the same wherever it stands, once they are turned back, in the first layer."""
    session = Session(model_of(architecture), CacheSpec("growing"))
    session.submit(Prompt(token_ids=(9, 5, 5, 7, 5)))
    session.step()
    source = session.rows_at(0, 5)
    assert not isinstance(source.rotation, str), source.rotation
    piece = head_of(session, "keys-before-rotation", 0, 0, 5)
    np.testing.assert_allclose(piece.low[[2, 4]], piece.low[[1, 1]], rtol=1e-3, atol=1e-4)
    assert not np.allclose(head_of(session, "keys", 0, 0, 5).low[2], piece.low[2])


def test_the_command_line_lists_them_and_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["lenses", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in listed] == list(LENSES)
    assert all(set(line) == {"name", "label", "formula", "values", "exact"} for line in listed)
    how = ["--token-ids", "1,5,9,23,7", "--steps", "3", "--layer", "1", "--head", "0", "--json"]
    assert run_command_line(["lens", "attention-map", *how]) == 0
    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert (line["lens"], line["layer"], line["head"], line["positions"]) == ("attention-map", 1, 0, list(range(7)))
    np.testing.assert_allclose(np.sum(line["values"], 1), 1.0, rtol=1e-4)
    assert run_command_line(["lens", "length", *how]) == 2
    assert "choose one of keys, values" in capsys.readouterr().err
