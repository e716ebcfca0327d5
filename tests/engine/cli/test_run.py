"""`run`: steps as lines, pages, sequences and exports; and caches made smaller."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from engine.model.runners.decoder import FusedDecoder
from engine.snapshot import save_cache
from engine.snapshot.read import SnapshotFile
from engine.spec.cache import PRESETS
from engine.spec.condition import ROWS
from tests.engine.cli.conftest import IDS, Twin
from tests.engine.tiny import write_config


def test_run_tells_every_step_and_the_end(twin: Twin, folder: Path) -> None:
    *steps, done = twin.lines("run", "--model", folder, "--prompt", "Hello", "--steps", 5, "--threads", 1)
    assert [s["event"] for s in steps] == ["step"] * 5
    wanted = {"event", "step", "phase", "token_id", "text", "num_tokens", "kv_bytes", "ms"}
    assert all(wanted <= s.keys() for s in steps)
    assert [s["step"] for s in steps] == [0, 1, 2, 3, 4]
    assert [s["phase"] for s in steps] == ["prefill"] + ["decode"] * 4
    assert [s["num_tokens"] for s in steps] == [5, 6, 7, 8, 9]
    assert [s["kv_bytes"] for s in steps] == [n * 2 * 2 * 2 * 16 * 4 for n in (5, 6, 7, 8, 9)]
    assert done["event"] == "done"
    assert done["token_ids"] == [s["token_id"] for s in steps]
    assert done["text"]
    assert done["cache"] == "growing"
    assert done["kv_bytes"] == steps[-1]["kv_bytes"]
    assert done["tok_per_s"] > 0


def test_run_takes_a_runner_and_says_what_computed_each_step(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 2)
    assert [line["runner"] for line in twin.lines(*given)[:-1]] == ["fused"] * 2
    *steps, done = twin.lines(*given, "--runner", "transformers")
    assert [line["runner"] for line in steps] == ["transformers"] * 2
    assert done["token_ids"] == twin.lines(*given)[-1]["token_ids"]
    *steps, done = twin.lines(*given, "--cache", "paged", "--page-size", 4, "--paged-attention", "pages")
    assert [line["runner"] for line in steps] == ["fused", "fused+pages"], "a prompt is gathered where no kernel is"
    assert done["token_ids"] == twin.lines(*given)[-1]["token_ids"]


def test_run_tells_the_surprisal_of_a_long_prompt_and_exports_it(
    twin: Twin, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as where it is computed in the step."""
    target = tmp_path / "cache.safetensors"
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 2)
    inside = [line["surprisal"] for line in twin.lines(*given)[:-1]]
    assert [None not in inside[0][1:], len(inside[0]), len(inside[1])] == [True, 6, 1]
    monkeypatch.setattr("engine.model.batch.PRODUCTS_IN_STEP", 0)
    assert [line["surprisal"] for line in twin.lines(*given, "--export", target)[:-1]] == inside
    with SnapshotFile(target) as file:
        assert file.records[0].sequences[0].surprisal[1:] == pytest.approx(inside[0][1:], abs=1e-4)


def test_run_is_greedy_and_agrees_with_generate(twin: Twin, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = model.generate(torch.tensor([[5, 6, 7, 8, 9, 10]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    for cache in (name for name, preset in PRESETS.items() if preset.lossless):
        done = twin.lines("run", "--model", folder, "--token-ids", IDS, "--steps", 12, "--cache", cache)[-1]
        assert done["token_ids"] == expected[0, 6:].tolist(), cache
        assert done["cache"] == cache


def test_sampling_is_repeated_by_its_seed(twin: Twin, source: str) -> None:
    def tokens(*more: object) -> list[int]:
        return twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 10, *more)[-1]["token_ids"]

    warm = ("--temperature", 2, "--top-k", 40, "--top-p", 0.95, "--min-p", 0.01)
    assert tokens(*warm, "--seed", 4) == tokens(*warm, "--seed", 4)
    assert tokens(*warm, "--seed", 4) != tokens(*warm, "--seed", 5)
    assert tokens("--temperature", 0) == tokens()


def test_several_prompts_that_take_pages_from_each_other_end_as_if_alone(twin: Twin, folder: Path) -> None:
    prompts = ["abcdefg", "hijklmnop"]
    alone = [
        twin.lines("run", "--model", folder, "--prompt", p, "--steps", 20, "--cache", "growing")[-1]["token_ids"]
        for p in prompts
    ]
    arguments = ["--cache", "paged", "--page-size", 4, "--pool-pages", 10]
    lines = twin.lines(
        "run", "--model", folder, "--prompt", prompts[0], "--prompt", prompts[1], "--steps", 20, *arguments
    )
    assert any("preempted" in line for line in lines), "the pool was large enough after all"
    assert [s["token_ids"] for s in lines[-1]["sequences"]] == alone


def test_plain_text_shows_the_text_and_no_terminal_escapes(twin: Twin, folder: Path) -> None:
    status, out, err = twin.run("run", "--model", folder, "--prompt", "Hello", "--steps", 3)
    assert (status, err) == (0, "")
    assert "tok/s" in out
    assert "\x1b" not in out


def test_a_prompt_may_come_from_a_file(twin: Twin, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Hello")
    from_file = twin.lines("run", "--model", folder, "--prompt-file", path, "--steps", 3)[-1]
    assert (
        from_file["token_ids"]
        == twin.lines("run", "--model", folder, "--prompt", "Hello", "--steps", 3)[-1]["token_ids"]
    )


def test_the_context_ends_the_run(twin: Twin, source: str) -> None:
    ids = ",".join(["7"] * 126)
    done = twin.lines("run", "--model", source, "--token-ids", ids, "--steps", 50)[-1]
    assert done["sequences"][0]["stop"] == "context full"
    assert len(done["token_ids"]) == 3


def test_export_is_the_cache_after_the_last_step(twin: Twin, source: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    done = twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 4, "--export", path)[-1]
    with safe_open(path, framework="pt") as opened:
        assert opened.get_tensor("layers.0.keys").shape == (1, 2, 9, 16)
        assert opened.get_tensor("token_ids")[0, 6:].tolist() == done["token_ids"][:3]
        assert opened.metadata()["cache"] == "growing"


@pytest.mark.parametrize(
    ("options", "cache"),
    [
        (["--cache", "paged", "--codec", "int8"], "paged-int8"),
        (["--cache", "paged-fp8", "--page-size", "2"], "paged-fp8"),
        (["--cache", "h2o", "--layout", "paged", "--page-size", "2", "--budget", "4"], "paged+h2o"),
        (["--cache", "pyramidkv", "--budget", "4", "--window", "2"], "pyramidkv"),
        (["--cache", "snapkv", "--budget", "pyramid:4", "--window", "2"], "pyramidkv"),
        (["--cache", "tova", "--budget", "5,3"], "tova"),
    ],
)
def test_smaller_caches_run_by_their_options(twin: Twin, source: str, options: list[str], cache: str) -> None:
    plain = twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 6)[-1]
    done = twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 6, *options)[-1]
    assert done["cache"] == cache
    assert 0 < done["kv_bytes"] < plain["kv_bytes"]


def test_a_codec_of_k_and_another_of_v_are_both_named(twin: Twin, source: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--codec", "int8/fp8-head")
    done = twin.lines(*given, "--export", path)[-1]
    assert done["cache"] == "int8/fp8-head"
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["cache"] == "int8/fp8-head"
    assert "K INT8 · V FP8 per head" in twin.run(*given)[1]


def test_a_run_that_ends_for_want_of_room_says_so(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 40)
    assert (
        "cache full: sequence 0 ended after 12 tokens" in twin.run(*given, "--cache", "static", "--max-length", 12)[1]
    )
    long = ("run", "--model", source, "--token-ids", IDS, "--steps", 200)
    assert "context full: sequence 0 ended after 128 tokens" in twin.run(*long)[1]
    assert "full" not in twin.run(*given)[1]


@pytest.mark.parametrize(
    ("architecture", "words"),
    [("llama", "K and V"), ("mamba", "recurrent state"), ("lfm2", "K, V and recurrent state")],
)
def test_run_says_what_its_bytes_are(twin: Twin, tmp_path: Path, architecture: str, words: str) -> None:
    source = f"shape:{write_config(architecture, tmp_path)}"
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--cache", "dynamic")
    stored = twin.lines(*given)[-1]["kv_bytes"]
    assert f"{stored:,} bytes of {words}\n" in twin.run(*given)[1]


def test_modes_are_compared_in_pages(twin: Twin, source: str) -> None:
    lines = twin.lines(
        "sweep", "--model", source, "--token-ids", IDS, "--steps", 3, "--caches", "growing,tova", "--layout", "paged"
    )
    assert [line["cache"] for line in lines] == ["growing", "tova"]
    status, _, err = twin.run("verify", "--token-ids", IDS, "--caches", "growing", "--layout", "paged")
    assert (status, "--layout means nothing to growing" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cache", "h2o", "--budget", "5,4,3"], "3 budgets are given, and 2 layers"),
        (["--cache", "h2o", "--budget", "cone:4"], "no budget"),
        (["--cache", "h2o", "--budget", "4", "--sinks", "4"], "cannot hold 4 sinks"),
        (["--cache", "paged", "--codec", "kivi-4"], "attend to its exact rows"),
        (["--cache", "fp8", "--layout", "paged"], "shared among prompts"),
        (["--cache", "h2o", "--layout", "paged", "--budget", "8"], "hold a page of 16"),
        (["--cache", "paged", "--budget", "8"], "keeps all rows"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_line(twin: Twin, source: str, options: list[str], says: str) -> None:
    status, out, err = twin.run("run", "--model", source, "--token-ids", IDS, "--steps", 2, *options)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_run_makes_edits_when_the_prompt_is_read(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 3)
    plain = twin.lines(*given)
    lines = twin.lines(*given, "--edit", "scale by=1 pos=0:2", "--edit", "bias only=11")
    assert [line["event"] for line in lines] == ["step", "edit", "edit", "step", "step", "done"]
    assert [line["edit"] for line in lines[1:3]] == ["scale by 1 positions 0 … 1", "bias logits: only 11"]
    assert lines[1]["kl"] == 0
    assert lines[2]["kl"] > 0
    assert lines[2]["token_id"] == 11
    assert [line["step"] for line in lines[:5]] == [0, 1, 2, 3, 4]
    assert lines[-1]["token_ids"] == [11, 11, 11]
    assert plain[-1]["token_ids"] != [11, 11, 11]


def test_run_refuses_an_edit_that_cannot_be_read_before_a_model_is_loaded(twin: Twin) -> None:
    assert "no edit" in twin.refused("run", "--model", "/nowhere", "--prompt", "a", "--edit", "erase pos=1")


def test_an_edit_that_is_refused_when_the_prompt_is_read_says_so_on_a_line_of_its_own(twin: Twin, folder: Path) -> None:
    status, out, err = twin.run("run", "--model", folder, "--prompt", "ab", "--edit", "zero pos=90", "--steps", 2)
    assert status == 2
    assert out.endswith("\n"), "the first token has been chosen and printed by then"
    assert "position 90" in err


def test_a_run_halts_where_a_condition_holds_and_says_which(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 12)
    *steps, done, halted = twin.lines(*given, "--stop-when", "tokens = 9", "--stop-when", "nonfinite")
    assert [line["num_tokens"] for line in steps] == [6, 7, 8, 9]
    assert done["event"] == "done"
    assert halted == {
        "event": "halted", "condition": "tokens = 9", "step": 3, "seq_id": 0, "value": "tokens 9",
    }  # fmt: skip
    status, out, _ = twin.run(*given, "--stop-when", "tokens = 9")
    assert status == 0
    assert out.splitlines()[-1] == "halted after step 3: tokens = 9 · tokens 9 · sequence 0"
    assert [line["event"] for line in twin.lines(*given, "--stop-when", "step = 99")][-1] == "done"


def test_a_condition_that_is_none_or_never_holds_is_refused(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS)
    assert "At character 1 “entrpy” cannot stand: write entropy." in twin.refused(*given, "--stop-when", "entrpy > 2")
    assert "has no pages: take a paged cache." in twin.refused(*given, "--stop-when", "pages_shared")


def test_a_text_ends_a_run(twin: Twin) -> None:
    *_, done = twin.lines("run", "--prompt", "Once upon a time", "--steps", 20, "--stop", "little", "--threads", 1)
    assert done["text"].endswith("little")
    assert done["sequences"][0]["stop"] == "stop string"


def test_the_help_of_run_lists_what_conditions_may_be_about(twin: Twin) -> None:
    _, out, _ = twin.run("run", "--help")
    for quantity in ROWS:
        assert f"  {quantity.example}" in out


def test_an_edit_that_leaves_nothing_to_choose_ends_a_run_and_says_why(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 6, "--edit", "scale by=3e38 pos=0:6")
    first, edit, done = twin.lines(*given)
    assert (first["event"], edit["event"], edit["kl"], done["event"]) == ("step", "edit", None, "done")
    assert "token_id" not in edit
    assert (done["token_ids"], done["sequences"][0]["stop"]) == ([], "non-finite logits")
    status, out, err = twin.run(*given)
    assert (status, err) == (0, "")
    assert "nan" not in out
    assert "non-finite logits: sequence 0 ended after 6 tokens" in out.splitlines()


def test_a_step_whose_logits_are_no_numbers_tells_no_token(
    twin: Twin, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = FusedDecoder.__call__

    def broken(self: FusedDecoder, *given: Any) -> Any:
        logits = forward(self, *given)
        return logits if given[0].ids.shape[1] > 1 else logits * math.nan

    monkeypatch.setattr(FusedDecoder, "__call__", broken)
    first, second, done = twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 6)
    assert (second["token_id"], second["text"]) == (None, "")
    assert done["token_ids"] == [first["token_id"]]


def test_what_a_run_exports_is_not_stopped_and_goes_on_as_one_run(twin: Twin, folder: Path, tmp_path: Path) -> None:
    """Also where one of two sequences had its tokens before the other."""
    path, run = tmp_path / "x.safetensors", ("run", "--model", folder, "--threads", 1, "--prompt", "upon a time")
    whole = twin.lines(*run, "--steps", 8)[-1]["token_ids"]
    first = twin.lines(*run, "--steps", 5, "--export", path)[-1]
    assert first["sequences"][0]["stop"] == "stopped", "so many as were asked for"
    with SnapshotFile(path) as file:
        assert file.manifest.sequence.stop is None
    rest = twin.lines("run", "--model", folder, "--threads", 1, "--from", path, "--steps", 3)[-1]["token_ids"]
    assert first["token_ids"] + rest == whole


def test_a_cache_of_ones_own_loop_goes_on(twin: Twin, folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids, path = [5, 6, 7, 8, 9, 10], tmp_path / "x.safetensors"
    with torch.inference_mode():
        cache = model(torch.tensor([ids])).past_key_values
        whole = model.generate(torch.tensor([ids]), max_new_tokens=4, min_new_tokens=4, do_sample=False)[0].tolist()
    save_cache(cache, path, tokens=ids, model=model)
    lines = twin.lines("run", "--model", folder, "--threads", 1, "--from", path, "--steps", 3)
    with SnapshotFile(path) as file:
        assert (file.manifest.fingerprint != "", file.manifest.sequence.sampled) == (True, None)
    assert lines[-1]["token_ids"] == whole[6:9]
