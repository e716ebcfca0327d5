"""The sub-commands params and budget as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.geometry.dimensions import CacheGeometry
from engine.spec.model import RESOURCES

LLAMA_8B = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "max_position_embeddings": 131072}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return str(path)


def run(*argv: str) -> int:
    try:
        return main(list(argv))
    except SystemExit as end:
        return int(end.code or 0)


def found(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert run(*argv, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = captured.out.splitlines()
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_params_of_llama_8b(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = found(capsys, "params", "--config", llama)
    assert answer["shape_per_block"] == [2, 32, 128, 8, 128]
    assert answer["bytes_per_block"] == 16_777_216
    assert answer["n_kv_heads_per_device"] == 8
    assert answer["dtype_shorthand"] == "bf16"
    assert answer["page_size"] == 128
    assert answer["max_seq_len"] == 131072
    assert "num_device_blocks" not in answer
    assert "num_host_blocks" not in answer


def test_params_with_everything(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = found(
        capsys, "params", "--config", llama, "--dtype", "float8_e4m3fn", "--page-size", "256", "--devices", "2",
        "--data-parallel", "2", "--prefix-caching", "--connector", "local", "--swap-gib", "10.5",
        "--scale-dtype", "float32", "--granularity", "32", "--available-bytes", str(2**31),
    )  # fmt: skip
    per_block = 2 * 32 * 256 * 8 * (128 + 4 * 4)
    assert answer["bytes_per_block"] == per_block
    assert answer["shape_per_scale_block"] == [2, 32, 256, 8, 4]
    assert answer["quantized_kv_cache"] is True
    assert answer["kvcache_quant_config"] == {"scale_dtype": "float32", "quantization_granularity": 32}
    assert answer["devices"] == ["gpu:0", "gpu:1"]
    assert answer["num_device_blocks"] == 2**30 // per_block
    assert answer["max_seq_len_fitting_in_cache"] == 2**30 // per_block * 256
    assert answer["num_host_blocks"] == int(10.5 * 2**30) // per_block


def test_a_connector_without_a_host_tier_has_no_host_pages(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys, "params", "--config", llama, "--connector", "null", "--swap-gib", "8")["num_host_blocks"] == 0


def test_kernels_probes_and_one_replica(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--devices", "2", "--data-parallel", "2", "--cache-length", "600", "--batch", "3")
    answer = found(capsys, "params", "--config", llama, *asked, "--speculative", "eagle", "--draft-tokens", "4")
    assert answer["resolve_attn_key"]["batch_size"] == 3
    assert answer["resolve_attn_key"]["max_prompt_length"] == 1 + 4, "the newest token and four drafts are verified"
    assert answer["graph_capture_probe_cache_lengths"] == {"count": 3, "first": [256, 512, 600], "last": [600]}
    assert answer["copy_as_dp_1"] == {
        "n_devices": 1,
        "data_parallel_degree": 1,
        "n_kv_heads_per_device": 8,
        "shape_per_block": [2, 32, 128, 8, 128],
        "bytes_per_block": 2 * 32 * 128 * 8 * 128 * 2,
    }
    assert "note" not in answer
    assert "copy_as_dp_1" not in found(capsys, "params", "--config", llama)
    assert run("params", "--config", llama, "--draft-tokens", "4") == 2
    assert "needs --speculative" in capsys.readouterr().err


def test_small_pages_are_the_managers_business(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "at least 128" in found(capsys, "params", "--config", llama, "--page-size", "64")["note"]
    assert found(capsys, "params", "--config", llama, "--page-size", "16")["shape_per_block"][2] == 16


@pytest.mark.parametrize("source", ["folder", "file", "shape"])
def test_a_model_is_its_config(llama: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"folder": str(Path(llama).parent), "file": llama, "shape": f"shape:{llama}"}[source]
    assert found(capsys, "params", "--model", model)["bytes_per_block"] == 16_777_216


def test_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((RESOURCES / "demo_model" / "config.json").read_text())
    answer = found(capsys, "budget", "--model", "bundled", "--context", "10")
    assert answer["bytes_per_token"] == CacheGeometry.from_config(config).bytes_per_token("bfloat16") > 0
    assert answer["bytes_per_sequence"] == 10 * answer["bytes_per_token"]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--devices", "3"], "n_kv_heads (8) must be divisible by the number of devices (3)"),
        (["--devices", "4", "--data-parallel", "2"], "2"),
        (["--data-parallel", "2"], "n_devices is 1"),
        (["--connector", "local", "--swap-gib", "4"], "requires prefix caching"),
        (["--connector", "tiered", "--prefix-caching"], "host_kvcache_swap_space_gb is None"),
        (["--connector", "local", "--prefix-caching", "--swap-gib", "0.001"], "holds no KV cache page"),
        (
            ["--dtype", "float8_e4m3fn", "--scale-dtype", "float32", "--granularity", "96"],
            "quantization_granularity (96)",
        ),
        (["--available-bytes", "16777215"], "16777215"),
        (["--page-size", "0"], "--page-size"),
        (["--page-size", "-128"], "'-128'"),
        (["--page-size", "9" * 5000], "--page-size"),
        (["--page-size", "1e3"], "1e3"),
        (["--page-size", "²"], "²"),
        (["--devices", "0"], "--devices"),
        (["--devices", "1000000000"], "4,096"),
        (["--swap-gib", "-1"], "--swap-gib"),
        (["--swap-gib", "nan"], "nan"),
        (["--swap-gib", "1e300"], "1e300"),
        (["--available-bytes", "-5"], "--available-bytes"),
        (["--dtype", "int3"], "int3"),
        (["--connector", "tape"], "tape"),
        (["--scale-dtype", "int8"], "int8"),
    ],
)
def test_params_refuses_in_one_line(
    llama: str, extra: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "params", "--config", llama, *extra)


@pytest.mark.parametrize("command", ["params", "budget"])
@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not valid JSON"), ("[1]", "no JSON object"), ("{}", "num_hidden_layers"), ("[" * 100_000, "not valid JSON"),
     (json.dumps({**LLAMA_8B, "num_hidden_layers": -1}), "-1"), (None, "No such file"),
     (json.dumps({**LLAMA_8B, "vocab_size": 0}).replace("0}", "9" * 5000 + "}"), "thousands of digits")],
)  # fmt: skip
def test_a_broken_config_is_named(
    command: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    assert said in refused(capsys, command, "--config", str(path))


@pytest.mark.parametrize("command", ["params", "budget"])
def test_a_config_that_never_ends_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no regular file" in refused(capsys, command, "--config", "/dev/zero")
    assert "no regular file" in refused(capsys, command, "--model", "shape:/dev/zero")


def test_a_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in refused(capsys, "params")
    assert "neither a folder nor a hub name" in refused(capsys, "params", "--model", "no where/at all")


def test_a_model_without_a_cache_has_no_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba"}))
    assert "keeps no K and V" in refused(capsys, "params", "--config", str(path))


def test_plain_text(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("params", "--config", llama) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "bytes_per_block: 16,777,216" in lines
    assert "shape_per_block: [2, 32, 128, 8, 128]" in lines
    assert "is_mla: no" in lines
    assert run("budget", "--table") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "table:"
    assert lines[2].split() == ["model", "GPT-2", "Small", "context", "512", "bytes", "18,874,368", "megabytes", "18.9"]


def test_a_calculation_starts_without_torch(llama: str) -> None:
    code = (
        "import sys\n"
        "from engine.__main__ import main\n"
        f"assert main(['params', '--config', {llama!r}]) == 0\n"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("method", "per_step"), [("eagle", 1), ("mtp", 1), ("dflash", 4)])
def test_a_speculative_method_says_what_it_changes_and_what_not(
    llama: str, capsys: pytest.CaptureFixture[str], method: str, per_step: int
) -> None:
    asked = ("params", "--config", llama, "--cache-length", "600", "--prefix-caching")
    plain = found(capsys, *asked)
    assert not any("speculation" in name for name in plain)
    assert (plain["speculative_method"], plain["num_draft_tokens"]) == (None, 0)
    answer = found(capsys, *asked, "--speculative", method, "--draft-tokens", "4")
    assert (answer["speculative_method"], answer["num_draft_tokens"]) == (method, 4)
    assert answer["num_draft_tokens_per_step"] == per_step
    changed = {row["name"]: (row["without"], row["with"]) for row in answer["changed_by_speculation"]}
    unchanged = answer["unchanged_by_speculation"]
    assert changed["num_draft_tokens"] == (0, 4)
    assert changed["draft_attention_dispatch_metadata"] == (None, "a graph input")
    assert changed["graph_capture_probe_cache_lengths"][0]["first"] == [1, 256, 512]
    assert changed["graph_capture_probe_cache_lengths"][1]["first"] == [256, 512, 600], "none below 1 + 2 · 4"
    assert ("num_draft_tokens_per_step" in changed) == (per_step > 1)
    assert {"shape_per_block", "bytes_per_block", "n_kv_heads_per_device", "kv_blocks", "lookup_table"} <= set(
        unchanged
    )
    assert not set(unchanged) & set(changed)
    for name in set(plain) & set(answer):
        assert (name in changed) == (plain[name] != answer[name]), name
    assert run(*asked, "--speculative", method) == 0
    assert "unchanged_by_speculation: n_devices, " in capsys.readouterr().out


def test_latent_attention_probes_lengths_of_verification_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One below each multiple of 64, as MAX lists them where more than one token is verified."""
    path = tmp_path / "config.json"
    latent = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
              "max_position_embeddings": 4096}  # fmt: skip
    path.write_text(json.dumps(latent))
    asked = ("params", "--config", str(path), "--cache-length", "256")
    assert found(capsys, *asked)["graph_capture_probe_cache_lengths"]["count"] == len([1, 64, 128, 192, 256])
    probes = found(capsys, *asked, "--speculative", "mtp")["graph_capture_probe_cache_lengths"]
    assert probes == {"count": len([64, 128, 192, 256, 63, 127, 191, 255]), "first": [64, 128, 192], "last": [255]}
