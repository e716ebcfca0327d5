"""The headless twin's contract: JSON lines, exit codes, and one line on standard error for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicLayer, StaticLayer

from engine.__main__ import main
from engine.analysis import reference as compare
from engine.cache.layers.growing import GrowingLayer
from engine.cache.paged.layer import PagedLayer
from engine.spec.presets import PRESETS
from tests.engine.model.test_loader import write_tokenizer
from tests.engine.tiny import config_dict, write_config

IDS = "5,6,7,8,9,10"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer, whose weights make it prefer one token over another."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_dict("llama")))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"shape:{write_config('llama', tmp_path)}"


class Twin:
    """Runs the program in this process and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def run(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        said = self.capsys.readouterr()
        return status, said.out, said.err

    def lines(self, *arguments: object) -> list[dict[str, Any]]:
        status, out, err = self.run(*arguments, "--json")
        assert (status, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    def refused(self, *arguments: object) -> str:
        status, out, err = self.run(*arguments)
        assert status == 2
        assert out == ""
        assert len(err.splitlines()) == 1, err
        assert "Traceback" not in err
        return err


@pytest.fixture
def twin(capsys: pytest.CaptureFixture[str]) -> Twin:
    return Twin(capsys)


# ---- run ---------------------------------------------------------------------------------------------------------


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


# ---- verify ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt_oss", "deepseek_v3", "bloom", "mamba"])
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


def test_verify_fails_with_1_when_a_mode_is_wrong(twin: Twin, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = compare.session_logits
    monkeypatch.setattr(compare, "session_logits", lambda *arguments: real(*arguments) + 0.01)
    status, out, err = twin.run("verify", "--model", source, "--token-ids", IDS, "--steps", 2, "--caches", "growing")
    assert (status, err) == (1, "")
    assert "DIFFERS by more than 0.001" in out
    assert "of 2 steps" in out


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


@pytest.mark.parametrize("cache", ["dynamic", "static", "growing", "paged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
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
    """A static cache reserves 4,096 tokens of a long context; the work may need more."""
    monkeypatch.setattr("engine.predict.capacity.DEFAULT_STATIC_TOKENS", 16)
    source = f"shape:{write_config('llama', tmp_path)}"
    bench = twin.lines(
        "bench", "--model", source, "--context", 40, "--steps", 4, "--caches", "growing,static"
    )  # fmt: skip
    assert [line["cache"] for line in bench] == ["growing", "static"]
    assert bench[1]["reserved_bytes"] == 44 * 2 * 2 * 2 * 16 * 4
    ids = ",".join(map(str, range(5, 45)))
    done = twin.lines("run", "--model", source, "--token-ids", ids, "--steps", 4, "--cache", "static")[-1]
    assert len(done["token_ids"]) == 4
    for command in ("sweep", "verify"):
        lines = twin.lines(command, "--model", source, "--token-ids", ids, "--steps", 4, "--caches", "growing,static")
        assert [line["mean_kl"] < 1e-6 for line in lines] == [True, True]


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "0"], "0 steps"),
        (["--steps", "-1"], "-1 steps"),
        (["--steps", "two"], "steps"),
        (["--cache", "nonsense"], "nonsense"),
        (["--cache", "Growing"], "Growing"),
        (["--cache", "static", "--max-length", "0"], "0 tokens"),
        (["--cache", "static", "--max-length", "99999"], "99999"),
        (["--cache", "growing", "--max-length", "10"], "max_length"),
        (["--cache", "static", "--max-length", "3"], "6 tokens"),
        (["--cache", "paged", "--page-size", "3"], "power of two"),
        (["--cache", "paged", "--pool-pages", "1"], "pool"),
        (["--cache", "growing", "--pool-pages", "9"], "pool"),
        (["--temperature", "-1"], "emperature"),
        (["--temperature", "nan"], "emperature"),
        (["--temperature", "inf"], "emperature"),
        (["--top-k", "0"], "top-k"),
        (["--top-p", "0"], "top-p"),
        (["--top-p", "1.5"], "top-p"),
        (["--min-p", "-0.1"], "min-p"),
        (["--seed", "-1"], "Seed"),
        (["--dtype", "float8"], "dtype"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--threads", "0"], "threads"),
        (["--export", "/no/such/folder/x.safetensors"], "/no/such/folder"),
        (["--export", "/"], "folder"),
        (["--export", "/dev/null"], "no regular file"),
        (["--events", "/dev/null"], "no regular file"),
        (["--nonsense"], "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_one_line_and_status_2(twin: Twin, source: str, arguments: list[str], says: str) -> None:
    assert says in twin.refused("run", "--model", source, "--token-ids", IDS, *arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", ""], "empty"),
        (["--token-ids", ""], "empty"),
        (["--token-ids", "1,x"], "list of token ids"),
        (["--token-ids", "1,-2"], "outside the vocabulary"),
        (["--token-ids", "128"], "outside the vocabulary"),
        (["--token-ids", "9" * 40], "outside the vocabulary"),
        (["--token-ids", ",".join(["5"] * 129)], "128"),
        (["--prompt", "text"], "no tokenizer"),
        (["--prompt-file", "/no/such/file"], "/no/such/file"),
        (["--prompt-file", "/"], "cannot be read"),
        (["--prompt-file", "/dev/zero"], "no regular file"),
        (["--prompt-file", "a\0b"], "cannot be read"),
        ([], "required"),
        (["--prompt", "a", "--token-ids", "1"], "not allowed"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_prompts_are_one_line_and_status_2(twin: Twin, source: str, arguments: list[str], says: str) -> None:
    assert says in twin.refused("run", "--model", source, *arguments)


def test_a_prompt_longer_than_the_context(twin: Twin, folder: Path) -> None:
    message = twin.refused("run", "--model", folder, "--prompt", "a" * 500)
    assert "500" in message
    assert "128" in message


def test_text_that_is_no_unicode(twin: Twin, folder: Path, tmp_path: Path) -> None:
    """A shell may hand over any bytes: they arrive as lone surrogates."""
    path = tmp_path / "latin"
    path.write_bytes(b"caf\xe9")
    assert "UTF-8" in twin.refused("run", "--model", folder, "--prompt-file", path)
    assert twin.refused("run", "--model", folder, "--prompt", "caf\udce9")


def test_a_prompt_file_is_read_no_further_than_its_limit(twin: Twin, folder: Path, tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)  # opening it would wait for a writer
    assert "no regular file" in twin.refused("run", "--model", folder, "--prompt-file", pipe)
    with large.open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    assert "larger than 64 MiB" in twin.refused("run", "--model", folder, "--prompt-file", large)


@pytest.mark.parametrize("gib", [500, 60_000])
def test_a_host_tier_larger_than_memory_is_refused(twin: Twin, source: str, gib: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.cache.paged.store.free_bytes", lambda device: 8 << 30)
    arguments = ("run", "--model", source, "--token-ids", IDS, "--steps", 1, "--cache", "offloaded", "--host-gib")
    message = twin.refused(*arguments, gib)
    assert f"A host tier of {gib} GiB takes {gib:,}.0 GiB and " in message
    assert "8.0 GiB are free" in message
    status, _, _ = twin.run(*arguments, 0.25)
    assert status == 0


@pytest.mark.parametrize("cache", ["static", "allocated"])
def test_a_reservation_larger_than_memory_is_refused(
    twin: Twin, source: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 tokens of 512 bytes are reserved at once."""
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 1, "--cache", cache)
    monkeypatch.setattr("engine.cache.memory.free_bytes", lambda device: 128 * 512 - 1)
    assert "A cache of 128 reserved tokens takes" in twin.refused(*given)
    monkeypatch.setattr("engine.cache.memory.free_bytes", lambda device: 128 * 512)
    assert twin.run(*given)[0] == 0


def test_a_host_tier_is_what_the_pool_leaves(twin: Twin, source: str, monkeypatch: Any) -> None:
    """Each of them fits alone: 2 layers of 2 x 16 x 2 float32 numbers are 512 bytes a token, 8,192 a page."""
    monkeypatch.setattr("engine.cache.paged.store.free_bytes", lambda device: 1 << 27)
    arguments = ("run", "--model", source, "--token-ids", IDS, "--steps", 1, "--cache", "offloaded", "--host-gib", 0.1)
    assert twin.run(*arguments, "--pool-pages", 100)[0] == 0
    assert "A host tier" in twin.refused(*arguments, "--pool-pages", 10_000)
    assert "A pool of 20,000 pages" in twin.refused(*arguments, "--pool-pages", 20_000)


@pytest.mark.parametrize(
    "model",
    [
        "/no/such/model",
        "someone/not-here",
        "shape:/no/such/config.json",
        "",
        "shape:",
        "/dev/zero",
        "shape:/dev/zero",
        "shape:/",
    ],
)
def test_models_that_are_not_there(twin: Twin, model: str) -> None:
    assert twin.refused("run", "--model", model, "--token-ids", IDS)
    assert twin.refused("verify", "--model", model, "--token-ids", IDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--caches", "growing,nonsense"], "nonsense"),
        (["--caches", ""], "No cache is named"),
        (["--steps", "0"], "0 steps"),
        (["--steps", "123"], "128"),
        (["--prefill-chunk", "0"], "chunk of 0"),
    ],
)
def test_verify_refuses_nonsense(twin: Twin, source: str, arguments: list[str], says: str) -> None:
    assert says in twin.refused("verify", "--model", source, "--token-ids", IDS, *arguments)


def test_a_failed_export_keeps_the_old_file(twin: Twin, source: str, tmp_path: Path) -> None:
    import resource

    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        arguments = ("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--export", path, "--json")
        status, _, err = twin.run(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_a_process_of_its_own_whose_reader_has_seen_enough(source: str) -> None:
    """`python -m engine run … | head -1`: one line, no complaint."""
    command = [sys.executable, "-m", "engine", "run", "--model", source, "--token-ids", IDS, "--steps", "12", "--json"]
    environment = {**os.environ, "LANG": "C"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(120)
    assert first["event"] == "step"
    assert process.returncode == 0


# ---- caches made smaller -----------------------------------------------------------------------------------------


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
