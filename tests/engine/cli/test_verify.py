"""`verify`: every cache against the model without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicLayer, StaticLayer

from engine.analysis import reference as compare
from engine.cache.layers.layer import GrowingLayer
from engine.cache.paged.cache import PagedLayer
from engine.session.session import Session
from engine.spec.cache import PRESETS
from tests.effort import effort
from tests.engine.cli.conftest import IDS, Twin
from tests.engine.tiny import write_config

SOME = ["llama", "mistral", "gpt_oss", "deepseek_v3", "bloom", "mamba"]


@pytest.mark.parametrize("architecture", effort(SOME[::3], SOME))
def test_verify_passes_every_mode(twin: Twin, tmp_path: Path, architecture: str) -> None:
    source = f"shape:{write_config(architecture, tmp_path)}"
    lines = twin.lines("verify", "--model", source, "--token-ids", IDS, "--steps", 10, "--prefill-chunk", 4)
    assert [line["cache"] for line in lines] == list(PRESETS)
    for line in lines:
        if "unavailable" in line:
            assert architecture == "mamba" or not PRESETS[line["cache"]].lossless
            continue
        assert line.keys() >= {"lossless", "max_abs_logit_diff", "mean_kl", "top1_agreement", "first_divergence"}
        if line["lossless"]:
            assert line["max_abs_logit_diff"] <= 1e-4
            assert line["top1_agreement"] == 1.0
            assert line["first_divergence"] is None


def test_verify_names_the_modes_asked_for(twin: Twin, source: str) -> None:
    lines = twin.lines("verify", "--model", source, "--token-ids", IDS, "--steps", 2, "--caches", "static, dynamic")
    assert [line["cache"] for line in lines] == ["static", "dynamic"]


def test_a_lossy_mode_that_lost_nothing_yet_is_told_from_one_that_did(twin: Twin, source: str) -> None:
    _, out, _ = twin.run(
        "verify", "--model", source, "--token-ids", IDS, "--steps", 2, "--caches", "sliding,int8,growing"
    )
    ends = [line.split(" steps   ")[1] for line in out.splitlines()[:3]]
    assert ends == ["lossy, within 0.001 on these tokens", "lossy, measured", "ok, within 0.001"]


def test_verify_fails_with_1_when_a_mode_is_wrong(twin: Twin, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = compare.session_logits
    monkeypatch.setattr(compare, "session_logits", lambda *arguments: real(*arguments) + 0.01)
    status, out, err = twin.run("verify", "--model", source, "--token-ids", IDS, "--steps", 2, "--caches", "growing")
    assert (status, err) == (1, "")
    assert "DIFFERS by more than 0.001" in out
    assert "of 2 steps" in out


def test_verify_fails_a_mode_whose_pages_are_at_odds(twin: Twin, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = compare.session_logits

    def leaked(session: Session, *arguments: Any) -> torch.Tensor:
        logits = real(session, *arguments)
        if session.live.mode.store is not None:
            session.live.mode.store.groups[0].pool._refs[1] += 1
        return logits

    monkeypatch.setattr(compare, "session_logits", leaked)
    asked = ("verify", "--model", source, "--token-ids", IDS, "--steps", 2, "--caches", "paged,growing")
    status, out, err = twin.run(*asked)
    assert (status, err) == (1, "")
    paged, growing, *_ = out.splitlines()
    assert "corrupted" in paged
    assert paged.endswith("page 1 has 2 references, but 1 tables hold it")
    assert "ok, within" in growing


STORY = "Once upon a time there was a little girl named Lily. She liked to play in the park with her dog."


LOSSLESS = [name for name, preset in PRESETS.items() if preset.lossless]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_verify_passes_the_bundled_model_in_every_dtype(twin: Twin, dtype: str) -> None:
    lines = twin.lines(
        "verify", "--prompt", STORY, "--steps", 12, "--dtype", dtype, "--prefill-chunk", 16,
        "--caches", ",".join(LOSSLESS),
    )  # fmt: skip
    assert [line["cache"] for line in lines] == LOSSLESS
    for line in lines:
        assert (line["passes"], line["wrong_row"], line["steps"]) == (True, None, 12), line
        assert line["max_abs_logit_diff"] <= line["tolerance"] / 2, "a healthy cache is far from the limit"


WRONG = [
    (dtype, name) for name in ("dynamic", "static", "growing", "paged") for dtype in ("float32", "bfloat16", "float16")
]


@pytest.mark.parametrize(("dtype", "cache"), effort([*WRONG[::4], WRONG[-1]], WRONG))
def test_verify_fails_a_cache_with_one_wrong_row(
    twin: Twin, dtype: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position 9 of layer 2 gets the values of its neighbour, once, while the prompt is read."""
    layer_class = {
        "dynamic": DynamicLayer, "static": StaticLayer, "growing": GrowingLayer, "paged": PagedLayer,
    }[cache]  # fmt: skip
    real, seen = layer_class.update, []

    def update(self: Any, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **more: Any) -> Any:
        if values.shape[2] == 16:
            seen.append(self)
            if len(seen) == 3:
                values = values.clone()
                values[:, :, 9] = values[:, :, 8]
        return real(self, keys, values, *rest, **more)

    # the reference records its rows in a growing cache: there the whole text goes in at once
    monkeypatch.setattr(layer_class, "update", update)
    arguments = ("verify", "--prompt", STORY, "--steps", 12, "--dtype", dtype, "--prefill-chunk", 16)
    status, out, err = twin.run(*arguments, "--caches", f"none,{cache}")
    assert (status, err) == (1, "")
    healthy, wrong = out.splitlines()
    assert "ok, within" in healthy
    assert "DIFFERS" in wrong
    assert "first in values of layer 2 at position 9" in wrong


def test_modes_that_are_refused_say_so_and_the_others_go_on(twin: Twin, tmp_path: Path) -> None:
    """KIVI's groups of 32 do not divide heads of 16 channels."""
    source = f"shape:{write_config('llama', tmp_path)}"
    given = ("--model", source, "--token-ids", IDS, "--steps", 3, "--json")
    for command in ("verify", "sweep", "bench"):
        status, out, err = twin.run(command, *given, "--caches", "growing,kivi-4,paged")
        lines = {line["cache"]: line for line in map(json.loads, out.splitlines())}
        assert (status, err) == (1, ""), "a mode that was named and cannot run"
        assert "do not divide" in lines.pop("kivi-4")["unavailable"]
        assert set(lines) == {"growing", "paged"}
        assert not any("unavailable" in line for line in lines.values())
        assert twin.run(command, *given, "--caches", "all")[0] == 0, "all that there are"


def test_a_reserved_length_follows_the_work(twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A static cache reserves 4,096 tokens of a long context; the work may need more. A bench warms up with a step."""
    monkeypatch.setattr("engine.predict.capacity.DEFAULT_STATIC_TOKENS", 16)
    source = f"shape:{write_config('llama', tmp_path)}"
    bench = twin.lines(
        "bench", "--model", source, "--context", 40, "--steps", 4, "--caches", "growing,static"
    )  # fmt: skip
    assert [line["cache"] for line in bench] == ["growing", "static"]
    assert bench[1]["reserved_bytes"] == (40 + 1 + 4) * 2 * 2 * 2 * 16 * 4
    ids = ",".join(map(str, range(5, 45)))
    done = twin.lines("run", "--model", source, "--token-ids", ids, "--steps", 4, "--cache", "static")[-1]
    assert len(done["token_ids"]) == 4
    for command in ("sweep", "verify"):
        lines = twin.lines(command, "--model", source, "--token-ids", ids, "--steps", 4, "--caches", "growing,static")
        assert [line["mean_kl"] < 1e-6 for line in lines] == [True, True]
