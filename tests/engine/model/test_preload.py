from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from engine.model.preload import preload_torch
preload_torch()
assert "torch" not in sys.modules
print("libtorch_cpu" in open("/proc/self/maps").read())
import torch
print(torch.ones(2).sum().item())
preload_torch()
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_the_library_is_there_before_torch_is_imported_and_torch_works_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "2.0"]
