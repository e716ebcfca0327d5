"""Bad input is one line and exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.cli.conftest import IDS, Twin


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "0"], "--steps: '0' is no whole number from 1"),
        (["--steps", "-1"], "'-1' is no whole number"),
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
        (["--runner", "fast"], "runner 'fast'"),
        (["--paged-attention", "flat"], "paged attention 'flat'"),
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
        (["--prompt-file", "/"], "cannot be opened"),
        (["--prompt-file", "/dev/zero"], "no regular file"),
        (["--prompt-file", "a\0b"], "cannot be opened"),
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
    monkeypatch.setattr("engine.device.free_bytes", lambda device: 128 * 512 - 1)
    assert "A cache of 128 reserved tokens takes" in twin.refused(*given)
    monkeypatch.setattr("engine.device.free_bytes", lambda device: 128 * 512)
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
        (["--steps", "0"], "--steps: '0' is no whole number from 1"),
        (["--steps", "123"], "128"),
        (["--prefill-chunk", "0"], "'0' is no whole number from 1"),
    ],
)
def test_verify_refuses_nonsense(twin: Twin, source: str, arguments: list[str], says: str) -> None:
    assert says in twin.refused("verify", "--model", source, "--token-ids", IDS, *arguments)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("engine.session.session.Session.step", "There is not enough memory for this ("),
        ("engine.model.weights.AutoModelForCausalLM.from_pretrained", "There is not enough memory for Tales 5M: its"),
    ],
)
def test_memory_that_runs_out_is_said_in_a_line(
    where: str, words: str, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, lambda *_, **__: torch.empty(1 << 50))
    assert words in twin.refused("run", "--prompt", "Once", "--threads", 1)


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
        process.wait(600)
    assert first["event"] == "step"
    assert process.returncode == 0


@pytest.mark.parametrize("option", ["--export-layers=9-1", "--export-heads=99", "--export-script", "--notes=mine"])
def test_how_to_export_is_refused_where_nothing_is_exported(twin: Twin, option: str) -> None:
    said = twin.refused("run", "--model", "/nowhere", "--prompt", "a", option)
    assert f"{option.split('=')[0]} says how to export, and nothing is exported" in said


def test_more_threads_than_can_be_started_are_refused(twin: Twin) -> None:
    """A hundred thousand ended the process with a fault."""
    given = ("run", "--model", "/nowhere", "--prompt", "a", "--threads")
    assert "give at most 1,024" in twin.refused(*given, 1025)
    assert "/nowhere" in twin.refused(*given, 1024)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("zero pos=1:3 layer=99", "There is no layer 99"),
        ("zero pos=1:3 head=77", "There is no kv head 77"),
        ("replace pos=1 tokens=99999999", "outside the vocabulary"),
        ("bias add=99999999:1", "outside the vocabulary"),
        ("noise ratio=-1 pos=1", "is none"),
        ("mask pos=1:", "The newest token reads its own row"),
        ("drop pos=1:3 part=keys", "as a whole"),
        ("overwrite pos=1:3 file=/nowhere.safetensors", "/nowhere.safetensors"),
    ],
)
def test_an_edit_that_no_sequence_can_take_is_refused_before_a_model_is_loaded(
    twin: Twin, source: str, edit: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr("engine.model.loader.load", loaded.append)
    assert said in twin.refused("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--edit", edit)
    assert not loaded


def test_an_edit_that_depends_on_the_sequence_is_judged_when_that_is_there(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--edit")
    assert twin.run(*given, "zero pos=-2:5")[0] == 0
    assert "There is no position 90" in twin.run(*given, "zero pos=90")[2]
