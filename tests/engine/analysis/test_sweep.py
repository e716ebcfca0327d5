"""The sweep says of every mode what it costs, saves and changes on every text; a file keeps what is done."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.__main__ import main
from engine.analysis import sweep as texts_module
from engine.analysis.reference import reference
from engine.analysis.sweep import recall_tokens, sweep, tokens_of
from engine.errors import InputError
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.grid import SweepMode, SweepText, grid
from engine.spec.sampling import Prompt
from engine.wire.measurements import LEAST_KL, SweepRow, Unavailable
from tests.engine.cli.conftest import Twin
from tests.engine.tiny import model_of, prompt_ids, write_config

IDS = ",".join(map(str, prompt_ids(60)))
GROWING = SweepMode("growing", CacheSpec())


def text(kind: Any = "greedy", length: int = 20, **options: Any) -> SweepText:
    return SweepText(str(kind), Prompt(token_ids=prompt_ids(length)), kind, **options)


def rows_of(*arguments: Any, **options: Any) -> list[SweepRow | Unavailable]:
    return list(sweep(model_of("llama"), *arguments, **options))


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"shape:{write_config('llama', tmp_path)}"


@pytest.fixture
def twin(capsys: pytest.CaptureFixture[str]) -> Twin:
    return Twin(capsys)


def test_a_sweep_tells_every_preset_or_why_not(twin: Twin, source: str) -> None:
    sizes = ("--budget", "20", "--window", "10", "--group", "16", "--residual", "16")
    common = ("sweep", "--steps", 6, *sizes, "--model", source, "--token-ids", IDS, "--threads", 1)
    lines = twin.lines(*common)
    assert [line["cache"] for line in lines] == list(PRESETS)
    for line in lines:
        assert {"kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity"} <= line.keys()
        assert (line["text"], line["kind"], line["num_prompt_tokens"], line["num_steps"]) == ("prompt", "greedy", 60, 6)
        assert line["recall"] is None
        if PRESETS[line["cache"]].lossless:
            assert line["mean_kl"] < 1e-6
            assert line["top1_agreement"] == 1
    by_name = {line["cache"]: line for line in lines}
    assert by_name["kivi-2"]["kv_bytes"] < by_name["kivi-4"]["kv_bytes"] < by_name["growing"]["kv_bytes"]
    assert by_name["int8"]["mean_kl"] < by_name["kivi-2"]["mean_kl"]
    assert by_name["sliding"]["kv_bytes"] * 6 < by_name["growing"]["kv_bytes"]
    assert by_name["sliding"]["perplexity"] > 0
    _, out, _ = twin.run(*common)
    (words,) = (line for line in out.splitlines() if line.startswith("best for their bytes on prompt: "))
    names = words.removeprefix("best for their bytes on prompt: ").split(", ")
    num_bytes = [by_name[name]["kv_bytes"] for name in names]
    assert num_bytes == sorted(num_bytes)
    last = by_name[names[-1]]
    assert last["lossless"] or last["mean_kl"] < LEAST_KL, "an exact mode, or one that is as good to rounding"


def test_a_sweep_can_be_stopped_at_any_row() -> None:
    modes = grid({"growing": CacheSpec(), "kivi-4": PRESETS["kivi-4"].spec, "int8": PRESETS["int8"].spec})
    rows = sweep(model_of("llama"), (text(),), modes, 4)
    assert isinstance(next(rows), SweepRow)
    unavailable = next(rows)
    assert isinstance(unavailable, Unavailable)
    assert "do not divide" in unavailable.unavailable
    rows.close()  # type: ignore[attr-defined]


def test_a_sweep_ends_between_two_steps() -> None:
    model, calls = model_of("llama"), 0

    class Enough(Exception):
        pass

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise Enough

    with pytest.raises(Enough):
        list(sweep(model, (text(),), (SweepMode("none", CacheSpec("none")), GROWING), 4, (), check))
    calls = 0
    with pytest.raises(Enough):
        reference(model, prompt_ids(20), 9, check)


def test_what_exceeds_the_context_is_refused() -> None:
    with pytest.raises(InputError, match="exceed"):
        reference(model_of("llama"), prompt_ids(120), 9)
    assert len(reference(model_of("llama"), prompt_ids(120), 8).token_ids) == 8
    first, second = rows_of((text(length=124), text("given", 30)), (GROWING,), 5)
    assert isinstance(first, Unavailable)
    assert "exceed" in first.unavailable
    assert first.text == "greedy"
    assert isinstance(second, SweepRow), "the other text goes on"


# ---- texts -------------------------------------------------------------------------------------------------------


def test_perplexity_is_of_the_given_text() -> None:
    """By hand: the mean surprisal of its own last tokens, from one forward over all of it."""
    model, ids = model_of("llama"), prompt_ids(30)
    (row,) = rows_of((text("given", 30),), (GROWING,), 6)
    assert isinstance(row, SweepRow)
    logprobs = model.reference_logits(torch.tensor([ids])).log_softmax(-1)
    surprisal = [-float(logprobs[at - 1, ids[at]]) for at in range(24, 30)]
    assert row.perplexity == pytest.approx(torch.tensor(surprisal).mean().exp().item(), rel=1e-4)
    assert (row.kind, row.num_prompt_tokens, row.num_steps) == ("given", 24, 6)
    (chosen,) = rows_of((text("greedy", 24),), (GROWING,), 6)
    assert isinstance(chosen, SweepRow)
    assert chosen.perplexity < row.perplexity, "what the model itself chooses surprises it less"


def test_a_given_text_is_read_as_far_as_the_context_holds() -> None:
    found = tokens_of(model_of("llama"), text("given", 400), 6)
    assert (found.prompt_ids, found.forced) == (prompt_ids(400)[:122], prompt_ids(400)[122:128])
    assert len(tokens_of(model_of("llama"), text("given", 7), 6).prompt_ids) == 1
    with pytest.raises(InputError, match="has 6 tokens, of which 6"):
        tokens_of(model_of("llama"), text("given", 6), 6)


@pytest.mark.parametrize(("depth", "where"), [(0.0, 1), (0.5, 24), (1.0, 47)])
def test_a_fact_is_planted_at_its_depth_and_asked_for_at_the_end(depth: float, where: int) -> None:
    model = model_of("llama")
    fact, answer, mark = texts_module.fact_of(model)
    assert (len(fact), len(answer), mark) == (8, 8, ())
    found = recall_tokens(model, prompt_ids(30), text("recall", 30, num_tokens=79, depth=depth))
    assert found.forced == answer
    assert len(found.prompt_ids) + len(answer) == 79
    assert found.prompt_ids[where : where + 16] == (*fact, *answer)
    assert found.prompt_ids[-8:] == fact
    others = found.prompt_ids[:where] + found.prompt_ids[where + 16 : -8]
    assert others == (prompt_ids(30) * 2)[:47], "the text again, where it is too short"
    with pytest.raises(InputError, match="exceeds the model's context of 128"):
        recall_tokens(model, prompt_ids(30), text("recall", 30, num_tokens=129))
    with pytest.raises(InputError, match="take 33 tokens, and 32 are given"):
        recall_tokens(model, prompt_ids(30), text("recall", 30, num_tokens=32))
    for total in (33, 128):
        assert len(recall_tokens(model, prompt_ids(30), text("recall", 30, num_tokens=total)).prompt_ids) == total - 8


def test_a_fact_that_is_dropped_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose greedy tokens are the answer tells it all, as long as its rows are there."""
    model = model_of("llama")
    ids = prompt_ids(30)
    asked = recall_tokens(model, ids, text("recall", 30, num_tokens=64)).prompt_ids
    told = reference(model, asked, 8).token_ids
    fact, _, _ = texts_module.fact_of(model)
    monkeypatch.setattr(texts_module, "fact_of", lambda model: (fact, told, ()))
    found = recall_tokens(model, ids, text("recall", 30, num_tokens=64))
    exact = reference(model, found.prompt_ids, 8, forced=found.forced)
    expected = float((exact.logits.argmax(-1) == torch.tensor(told)).float().mean())
    modes = grid({"growing": CacheSpec(), "sliding": PRESETS["sliding"].spec}, (4,))
    whole, window = rows_of((text("recall", 30, num_tokens=64),), modes, 3)
    assert isinstance(whole, SweepRow)
    assert isinstance(window, SweepRow)
    assert whole.recall == pytest.approx(expected)
    assert whole.num_steps == 8, "as many as the fact has"
    assert window.recall is not None
    assert window.recall != whole.recall or window.perplexity > whole.perplexity


def test_with_a_tokenizer_the_fact_is_a_sentence(tmp_path: Path, twin: Twin) -> None:
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time there was a little red hen. " * 12, "utf-8")
    common = ("sweep", "--threads", 1, "--steps", 3, "--caches", "growing,sliding", "--window", 16)
    lines = twin.lines(*common, "--text", story, "--recall", "140:0.9", "--recall", "140:0.9")
    rows = lines
    assert [(r["cache"], r["text"], r["kind"]) for r in rows] == [
        (cache, name, kind)
        for name, kind in (("story", "given"), ("recall 140 at 90%", "recall"), ("recall 140 at 90% 2", "recall"))
        for cache in ("growing", "sliding")
    ]
    near = {r["cache"]: r for r in rows if r["text"] == "recall 140 at 90%"}
    assert near["growing"]["num_prompt_tokens"] + near["growing"]["num_steps"] == 140
    assert near["growing"]["perplexity"] < near["sliding"]["perplexity"], "its window does not hold the fact"


# ---- the grid and the file ---------------------------------------------------------------------------------------


def test_a_grid_on_the_command_line(twin: Twin, source: str) -> None:
    common = ("sweep", "--model", source, "--token-ids", IDS, "--steps", 3, "--threads", 1)
    lines = twin.lines(*common, "--caches", "growing,h2o", "--budgets", "12,50%", "--codecs", "exact,int8,int8/fp8")
    names = [line["cache"] for line in lines]
    assert names == [
        "growing", "int8", "int8/fp8", "h2o@12", "h2o@50%", "h2o+int8@12", "h2o+int8@50%", "h2o+int8/fp8@12",
        "h2o+int8/fp8@50%",
    ]  # fmt: skip
    by_name = {line["cache"]: line for line in lines}
    assert by_name["h2o@12"]["kv_bytes"] * 32 == by_name["h2o@50%"]["kv_bytes"] * 12, "a half of 63 tokens is 32"
    assert by_name["h2o+int8@12"]["kv_bytes"] < by_name["h2o@12"]["kv_bytes"]
    assert "is no budget" in twin.refused(*common, "--budgets", "x")
    assert "codec" in twin.refused(*common, "--codecs", "x")
    assert "There is nothing to read" in twin.refused("sweep", "--model", source)
    assert "--recall: 'x' is not" in twin.refused(*common, "--recall", "x")


def test_a_file_keeps_what_is_done(twin: Twin, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sweep.jsonl"
    common = ("sweep", "--model", source, "--token-ids", IDS, "--steps", 3, "--threads", 1, "--resume", file)
    first = twin.lines(*common, "--caches", "growing,int8")
    assert len(file.read_text("utf-8").splitlines()) == 3
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"cache": "h2o", "kv_by')  # killed in the middle of a row
    measured: list[str] = []
    from engine.analysis import sweep as module

    original = module.sweep_row
    monkeypatch.setattr(
        module, "sweep_row", lambda m, mode, *rest: measured.append(mode.name) or original(m, mode, *rest)
    )
    lines = twin.lines(*common, "--caches", "growing,int8,tova", "--budget", 9)
    assert measured == ["tova"]
    assert lines[:2] == first[:2], "not measured again"
    assert len(file.read_text("utf-8").splitlines()) == 4
    for again in (row := json.loads(file.read_text("utf-8").splitlines()[1])), {**row, "tok_per_s": 7.5}:
        file.write_text(file.read_text("utf-8") + json.dumps(again) + "\n", "utf-8")
    found = twin.lines(*common, "--caches", "growing,int8")
    assert sorted(line["cache"] for line in found) == ["growing", "int8"], "what two programs measured is told once"
    assert {line["tok_per_s"] for line in found if line["cache"] == row["cache"]} == {7.5}
    twin.lines(*common, "--caches", "tova", "--budget", 11)
    assert measured == ["tova", "tova"], "another size is another mode"
    assert "another model, other texts or other steps" in twin.refused(*common[:5], "--steps", 4, "--resume", file)
    file.write_text(file.read_text("utf-8") + '{"cache": "growing"}\n', "utf-8")
    assert "no row of a sweep" in twin.refused(*common, "--caches", "growing")
    assert "is a folder" in twin.refused(*common[:-1], tmp_path)


def test_a_reader_that_has_seen_enough_keeps_the_rows(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is in the file before the next row begins, whatever ends the program."""
    from engine.analysis import sweep as module

    original = module.sweep_row

    def stops(model: Any, mode: SweepMode, *rest: Any) -> SweepRow:
        if mode.name == "int8":
            raise KeyboardInterrupt
        return original(model, mode, *rest)

    monkeypatch.setattr(module, "sweep_row", stops)
    file = tmp_path / "sweep.jsonl"
    arguments = ["--token-ids", IDS, "--steps", "2", "--caches", "growing,int8,h2o", "--resume", str(file), "--json"]
    assert main(["sweep", "--model", source, *arguments]) == 130
    capsys.readouterr()
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()[1:]]
    assert [row["cache"] for row in rows] == ["growing"]


def test_a_file_name_is_plain_text(twin: Twin, tmp_path: Path) -> None:
    story = tmp_path / "story\x1b[31m.txt"
    story.write_text("Once upon a time there was a little red hen. " * 4, "utf-8")
    _, out, _ = twin.run("sweep", "--text", story, "--steps", 2, "--caches", "growing,kivi-4", "--threads", 1)
    assert "\x1b" not in out
    assert "story\\x1b[31m" in out


def test_the_rate_is_of_decode_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second each: the step that reads the prompt is none of them."""
    now = count(0.0, 0.5)
    clock = SimpleNamespace(perf_counter=lambda: next(now))  # of nobody else
    monkeypatch.setattr("engine.analysis.reference.time", clock)
    (row,) = rows_of((text(),), (GROWING,), 5)
    assert isinstance(row, SweepRow)
    assert (row.tok_per_s, row.num_steps) == (2.0, 5)
