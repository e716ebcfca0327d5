"""The list of cache modes on the command line."""

from __future__ import annotations

import json

import pytest

from engine.__main__ import main
from engine.spec.cache import ALL_PRESETS


def test_caches_lists_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caches", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == list(ALL_PRESETS)
    by_name = {line["name"]: line for line in lines}
    assert by_name["h2o"] == {
        "name": "h2o",
        "label": "H2O",
        "lossless": False,
        "needs": ["layers with full attention", "attention weights"],
        "parameters": ["budget", "ratio", "sinks", "window", "layout"],
        "summary": "Keeps the tokens that received most attention, and the latest.",
    }
    assert (by_name["kivi-4"]["needs"], by_name["paged"]["lossless"]) == (["a group that divides head_dim"], True)
    assert main(["caches"]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in plain] == list(ALL_PRESETS)
    assert plain[list(ALL_PRESETS).index("tova")].endswith("Evicts what the newest query attends to least.")
