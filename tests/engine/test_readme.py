"""What the README says of caches is what the code does: its table of presets, and its example of a policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.compressed import retention
from engine.cli.run import markdown_table
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.snapshot.write import write_snapshot
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import PRESETS
from engine.spec.retention import LayerBudgets, RetentionSpec
from engine.spec.sampling import Prompt
from engine.spec.tuning import tuned
from tests.engine.tiny import model_of, prompt_ids

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def test_the_table_of_presets_is_the_one_that_is_generated() -> None:
    assert markdown_table() in README, "write it with `kvloupe-engine caches --markdown`"


@pytest.mark.parametrize("layout", ["growing", "paged"])
def test_the_example_of_a_policy_works_as_it_stands(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(class .*?)```", README, re.DOTALL)
    made = dict(vars(retention))
    exec(code, made)
    monkeypatch.setitem(retention.RULES, "knorm", made["SpreadKeys"])
    spec = CacheSpec(layout, page_size=4, retention=RetentionSpec("knorm", budget=12))  # type: ignore[arg-type]
    session = Session(model_of("llama"), spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(21)))
    record = session.step()
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    assert rows.positions is not None
    assert {eviction.rule for eviction in record.evictions} == {"flattest key"}
    assert rows.positions.shape[1] <= 12
    if layout == "growing":
        kept = rows.keys[0].std(-1).amin(1)
        lost = torch.tensor([max(e.scores) for e in record.evictions if e.layer == 0])
        assert bool((lost <= kept).all())


# ---- an exported snapshot ----------------------------------------------------------------------------------------

PROMPT, STEPS, BACK = 70, 14, 3  # no page is begun, and so none dropped, in the last three steps
RULES = {name: tuned(PRESETS[name].spec, budget=24) for name in ("h2o", "knorm")}
EXPORTED = {
    **{name: PRESETS[name].spec for name in ("dynamic", "paged")},
    **RULES,
    "pyramidkv": tuned(PRESETS["pyramidkv"].spec, budget=LayerBudgets(mean=24)),
    "sliding": tuned(PRESETS["sliding"].spec, window=24),
    "rerotated": tuned(PRESETS["streamingllm"].spec, sinks=4, window=20, rerotate=True),
    **{f"paged {name}": tuned(RULES[name], layout="paged", page_size=4) for name in RULES},
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
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", README, re.DOTALL)
    code = code.replace("resources/demo_model", str(Path(__file__).resolve().parents[2] / "resources/demo_model"))
    session = Session(bundled, EXPORTED[name])
    session.submit(Prompt(token_ids=prompt_ids(PROMPT)))
    session.force(0, prompt_ids(STEPS + 1, seed=1))
    for _ in range(1 + STEPS):
        session.step()
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    for count in (PROMPT + STEPS - BACK, PROMPT + STEPS):
        snapshot = session.snapshot(0, count, name, "")
        held = {snapshot.tensors[f"layers.{i}.{part}"].shape[2] for i in range(6) for part in ("keys", "values")}
        is_whole = EXPORTED[name].retention.keeps_all
        assert held == {count} if is_whole else max(held) < count
        for _ in write_snapshot(snapshot, tmp_path / "cache.safetensors"):
            pass
        if count == PROMPT + STEPS:
            session.step()
        next_id = session.sequence(0).token_ids[count]
        expected = next(logits for _, tokens, logits, _ in session.logged_logits(0) if tokens == count + 1)
        exec(code, {"input": lambda _, token=next_id: str(token), "print": seen.append})
        assert torch.equal(seen[-1].values, expected.topk(5).values)
        assert torch.equal(seen[-1].indices, expected.topk(5).indices)
