"""What the README says of caches is what the code does: its table of presets, and its example of a policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from engine.cache import retention
from engine.cli_run import markdown_table
from engine.config import CacheSpec, Prompt
from engine.retention_spec import RetentionSpec
from engine.session import Session
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
