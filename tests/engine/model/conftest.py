"""A whole tiny model on disk, a copy to be spoiled, and a watch over what a load runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.model.folders import write_tokenizer
from tests.engine.tiny import config_dict

INSTALLED = str(Path(torch.__file__).parents[1])  # an environment may take packages from another one
WATCHED: list[str] = []
ON = [False]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tiny llama: config, weights, tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    torch.manual_seed(0)
    config = AutoConfig.for_model(**config_dict("llama"))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Sockets, processes, pickle, and any code object that comes from outside the installed packages."""
    if not ON[0]:
        return
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn")) or event in (
        "pickle.find_class",
        "os.fork",
    ):
        WATCHED.append(f"{event} {str(arguments)[:200]}")
    if event == "exec":
        name = str(getattr(arguments[0], "co_filename", ""))
        if not name.startswith(("<frozen", sys.prefix, sys.base_prefix, INSTALLED, "<string>", "<attrs", "<dynamic")):
            WATCHED.append(f"exec {name}")
    if event == "import" and "evil" in str(arguments[0]):
        WATCHED.append(f"import {arguments[0]}")


sys.addaudithook(watch)


@pytest.fixture
def nothing_runs() -> Iterator[list[str]]:
    """What the test ran: that its load ran no code, opened no socket and unpickled nothing is asserted at its end."""
    WATCHED.clear()
    ON[0] = True
    try:
        yield WATCHED
    finally:
        ON[0] = False
    assert WATCHED == []
