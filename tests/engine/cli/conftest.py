"""Commands run in this process, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.__main__ import main
from tests.engine.model.folders import write_tokenizer
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
