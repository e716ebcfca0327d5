"""What the manual says is what the code does: its tables, its commands, its recipe for a rule, its lines of Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.compressed.retention import rule_of
from engine.cli.command_line import command_line
from engine.cli.listings import markdown_table
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.snapshot.write import write_snapshot
from engine.spec import condition
from engine.spec.cache import PRESETS, rule_spec, tuned
from engine.spec.model import ModelSpec
from engine.spec.retention import RULES, LayerBudgets
from engine.spec.sampling import Prompt
from engine.wire.commands import PICTURES_PER_SECOND
from tests.engine.snapshot.sessions import snapshot
from tests.engine.tiny import prompt_ids

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "resources" / "manual").glob("*.md"))}
README = (ROOT / "README.md").read_text("utf-8")


def test_the_table_of_presets_is_the_one_that_is_generated() -> None:
    assert markdown_table() in PAGES["cache-modes"], "write it with `kvloupe-engine caches --markdown`"


def test_the_table_of_what_conditions_are_about_is_the_one_that_is_read() -> None:
    assert condition.markdown_table() in PAGES["breakpoints"]


def test_the_pace_of_pictures_is_the_one_that_is_kept() -> None:
    assert f"{PICTURES_PER_SECOND} pictures a second" in " ".join(PAGES["running"].split())


def commands() -> Iterator[str]:
    """Every command line of the README and the manual, each of its alternatives by itself."""
    for text in (README, *PAGES.values()):
        for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                if line.startswith("kvloupe-engine "):
                    several = re.search(r"(\w+)\|(\w+)", line)
                    yield from (
                        [line] if several is None else [line.replace(several[0], one) for one in several.groups()]
                    )


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_every_command_is_one_that_the_program_takes(line: str) -> None:
    command_line().parse_args(shlex.split(line, comments=True)[1:])


def test_every_link_leads_to_a_file() -> None:
    for folder, text in ((ROOT, README), *((ROOT / "resources" / "manual", page) for page in PAGES.values())):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert (folder / target).exists(), target


def test_the_page_of_the_architecture_names_what_is_there() -> None:
    files = (path for room in ("engine", "app", "tests") for path in (ROOT / room).rglob("*.py"))
    words = set(re.findall(r"\w+", "".join(path.read_text("utf-8") for path in files if path != Path(__file__))))
    for name in re.findall(r"`([^`\n]+)`", PAGES["architecture"]):
        if "/" in name:
            assert (ROOT / name).exists(), name
        else:
            assert set(re.findall(r"[A-Za-z_]\w+", name)) <= words | {"add_NAME"}, name


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1200


# what the recipe promises of a rule: a preset, parameters, both layouts, the reasons of what was dropped
TRY_THE_RULE = """
from engine.cli.listings import markdown_table
from engine.cli.command_line import command_line
from engine.session.session import Session
from engine.spec.cache import PRESETS, cache_name, cache_named
from engine.spec.sampling import Prompt
from engine.spec.cache import tuned
from tests.engine.tiny import model_of, prompt_ids

assert "| `spread` | Evicts the keys whose numbers are spread least |" in markdown_table()
assert (PRESETS["spread"].label, PRESETS["spread"].family) == ("Spread", "evicting")
for name in ("spread", "paged+spread"):
    spec = tuned(cache_named(name), budget=12, page_size=4)
    assert cache_name(spec) == name
    session = Session(model_of("llama"), spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(21)))
    record = session.step()
    rows = session.cache_of(seq_id).rows(0)
    assert {eviction.rule for eviction in record.evictions} == {"flattest key"}
    assert rows.positions.shape[1] <= 12
    if name == "spread":
        kept = rows.keys[0].std(-1).amin(1).tolist()
        lost = [max(e.scores) for e in record.evictions if e.layer == 0]
        assert all(gone <= stayed for gone, stayed in zip(lost, kept, strict=True))
"""


def test_a_row_and_a_class_as_they_stand_are_a_rule(tmp_path: Path) -> None:
    """The two pieces of the recipe are put into a copy of the program, which then has the rule everywhere."""
    root = Path(__file__).resolve().parents[2]
    # with what is compiled already, but for what another process writes at this moment, under a name that goes
    shutil.copytree(root / "engine", tmp_path / "engine", ignore=shutil.ignore_patterns("*.pyc.*"))
    (tmp_path / "tests" / "engine").mkdir(parents=True)
    for name in ("__init__.py", "engine/__init__.py", "engine/tiny.py"):
        shutil.copy2(root / "tests" / name, tmp_path / "tests" / name)
    (row,) = re.findall(r"```python\n(RuleRow\(.*?)```", PAGES["architecture"], re.DOTALL)
    (made,) = re.findall(r"```python\n(class .*?)```", PAGES["architecture"], re.DOTALL)
    rows, classes = tmp_path / "engine/spec/retention.py", tmp_path / "engine/cache/compressed/retention.py"
    text = rows.read_text("utf-8")
    last = '        RuleRow(\n            "random",'
    assert text.count(last) == 1
    rows.write_text(text.replace(last, row.rstrip() + ",\n" + last), "utf-8")
    classes.write_text(classes.read_text("utf-8") + "\n\n" + made, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", TRY_THE_RULE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_rule_has_a_class() -> None:
    assert {rule_of(rule_spec(row)).words for row in RULES.values()} == {row.victim for row in RULES.values()}


# ---- an exported snapshot ----------------------------------------------------------------------------------------

PROMPT, STEPS, BACK = 70, 14, 3  # no page is begun, and so none evicted, in the last three steps
EVICTING = {name: tuned(PRESETS[name].spec, budget=24) for name in ("h2o", "knorm")}
EXPORTED = {
    **{name: PRESETS[name].spec for name in ("dynamic", "paged")},
    **EVICTING,
    "pyramidkv": tuned(PRESETS["pyramidkv"].spec, budget=LayerBudgets(mean=24)),
    "sliding": tuned(PRESETS["sliding"].spec, window=24),
    "rerotated": tuned(PRESETS["streamingllm"].spec, sinks=4, window=20, rerotate=True),
    **{f"paged {name}": tuned(EVICTING[name], layout="paged", page_size=4) for name in EVICTING},
    "paged sliding": tuned(PRESETS["sliding"].spec, window=25, layout="paged", page_size=4),
}


@pytest.fixture(scope="module")
def bundled() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    yield load(ModelSpec("bundled", dtype="float32", device="cpu", num_threads=1))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_lines_that_open_a_snapshot_go_on_from_it(
    name: str, bundled: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as they stand, on the cache of now and of an earlier step: the logits of the live cache, to the last bit."""
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", PAGES["files"], re.DOTALL)
    code = code.replace("resources/demo_model", str(Path(__file__).resolve().parents[2] / "resources/demo_model"))
    session = Session(bundled, EXPORTED[name], prefill_chunk=PROMPT)  # the prompt is one step
    session.submit(Prompt(token_ids=prompt_ids(PROMPT)))
    session.force(0, prompt_ids(STEPS + 1, seed=1))
    for _ in range(1 + STEPS):
        session.step()
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    for count in (PROMPT + STEPS - BACK, PROMPT + STEPS):
        kept = snapshot(session, 0, count)
        held = {kept.tensors[f"layers.{i}.{part}"].shape[2] for i in range(6) for part in ("keys", "values")}
        is_whole = EXPORTED[name].retention.keeps_all
        assert held == {count} if is_whole else max(held) < count
        for _ in write_snapshot(kept, tmp_path / "cache.safetensors"):
            pass
        if count == PROMPT + STEPS:
            session.step()
        next_id = session.sequence(0).token_ids[count]
        expected = next(e.logits for e in session.history.logged_logits(0) if e.num_tokens == count + 1)
        exec(code, {"input": lambda _, token=next_id: str(token), "print": seen.append})
        assert torch.equal(seen[-1].values, expected.topk(5).values)
        assert torch.equal(seen[-1].indices, expected.topk(5).indices)
