"""Tests never reach the network, never run compiled code from the hub, and open no window on a person's screen."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import TIERS, is_in_tier, kept_cases, set_tier

gc.set_threshold(10_000, 20, 20)  # most objects made in tests are freed without the collector
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for name in [name for name in os.environ if name.startswith("QT_")]:
    del os.environ[name]  # scale, font size, style and theme of a person's desktop, which pictures would have
os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a second thread of a small product waits for the other tests
os.environ.setdefault(
    "TORCHINDUCTOR_COMPILE_THREADS", "1"
)  # worker processes would import torch to compile two functions

# No deadline for an example, and no check how fast they are made: another process may have the processor. The same
# examples everywhere, so that a change is refused for what it changed: the long tier alone tries others each time.
for tier in TIERS:
    settings.register_profile(
        tier, deadline=None, suppress_health_check=[HealthCheck.too_slow],
        max_examples=40 if tier == "default" else 100, derandomize=tier != "long",
    )  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="default: minutes; rest: what that leaves out; full; long")


@pytest.hookimpl(tryfirst=True)  # before the processes that run the tests get the options
def pytest_configure(config: pytest.Config) -> None:
    """Set the tier: what is named on the command line runs whole, unless a tier is named too."""
    if config.option.tier is None:
        is_named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.tier = "full" if is_named else "default"
    set_tier(config.option.tier)
    settings.load_profile(config.option.tier)
    if sys.dont_write_bytecode:
        _keep_bytecode_aside(config)


def _keep_bytecode_aside(config: pytest.Config) -> None:
    """Who wants no bytecode beside the sources gets none there. But dozens of processes that each compile torch anew
    take longer than the tests: they share a folder, which goes when the tests are done."""
    folder = tempfile.mkdtemp(prefix="kvloupe-bytecode-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not run."""
    kept = kept_cases()
    is_run = [is_in_tier(item.nodeid, kept) for item in items]
    if left_out := [item for item, runs in zip(items, is_run, strict=True) if not runs]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, runs in zip(items, is_run, strict=True) if runs]
    if any("transformers-quantized" in item.nodeid for item in items) and not saturates():
        for item in items:
            if "transformers-quantized" in item.nodeid:
                item.add_marker(
                    pytest.mark.skip(reason="this torch makes NaN of what is beyond transformers' fp8 scale")
                )


def saturates() -> bool:
    """Whether torch casts a number beyond float8 to its largest number, as from 2.12 on; before, it became NaN. True
    without torch."""
    try:
        import torch
    except ImportError:
        return True
    return bool(torch.tensor(1e3).to(torch.float8_e4m3fn).float().isfinite())


@pytest.hookimpl(tryfirst=True)  # before the fixtures, of a file or a session too
def pytest_runtest_setup() -> None:
    """Random numbers of a test are the same in whatever order, and in whichever process, the tests run."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # torch.manual_seed would look for GPUs


def pytest_collection_finish() -> None:
    """Exempt everything imported and collected so far from garbage collection: it stays until the end."""
    gc.collect()
    gc.freeze()
