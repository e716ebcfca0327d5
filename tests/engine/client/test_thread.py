"""The loop in a thread: it ends at any moment and keeps no process alive."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.client.thread import ThreadClient
from engine.files.atomic import PART_SUFFIX
from engine.spec.cache import CacheSpec
from engine.wire.commands import Run, SetCache, TakePicture
from engine.wire.events import Stopped
from engine.wire.exporting import Export
from engine.wire.pictures import WallRequest
from tests.engine.loop.driver import PATIENCE_S, Driver, prompt, shape_of
from tests.engine.tiny import write_config


@pytest.mark.parametrize("seed", range(12))
def test_it_ends_at_any_moment(tmp_path: Path, seed: int) -> None:
    """During load, prefill, decode, slices and export: the thread ends, and says so."""
    chance = random.Random(seed)
    driver = Driver(shape_of(tmp_path, max_position_embeddings=8192, num_hidden_layers=4))
    driver.send(prompt(4000), Run(), SetCache(CacheSpec("paged")))
    for _ in range(20):
        driver.send(TakePicture(WallRequest(0, 100, 100, "keys", False, 64, 16)))
    driver.send(Export(tmp_path / "x.safetensors", 0))
    time.sleep(chance.random() * 0.4)
    assert driver.loop.close(PATIENCE_S)
    driver.events += driver.loop.drain()
    assert isinstance(driver.events[-1], Stopped)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(PART_SUFFIX)]


def test_it_may_end_before_it_was_asked_anything() -> None:
    assert ThreadClient().close(PATIENCE_S)


def test_a_process_that_simply_ends_is_not_held_up(tmp_path: Path) -> None:
    """No shutdown at all: the thread is a daemon, and the interpreter ends with status 0."""
    source = f"shape:{write_config('llama', tmp_path)}"
    script = (
        "import time\n"
        "from engine.client.thread import ThreadClient\n"
        "from engine.spec.cache import CacheSpec\n"
        "from engine.spec.model import ModelSpec\n"
        "from engine.wire.commands import LoadModel\n"
        "loop = ThreadClient()\n"
        f"loop.send(LoadModel(ModelSpec({source!r}, num_threads=1), CacheSpec('growing')))\n"
        "time.sleep(0.3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=600, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_torch_before_a_model_is_asked_for() -> None:
    script = (
        "import sys\n"
        "from engine.client.thread import ThreadClient\n"
        "ThreadClient()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=600, check=True)
