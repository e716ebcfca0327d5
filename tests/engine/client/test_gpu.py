"""A GPU is found without torch being imported: by the libraries that torch has, and by what their driver counts."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from engine.client import gpu, kind_for

DRIVERS = {
    "libtorch_cuda.so": ("libcuda.so.1", "cuInit", "cuDeviceGetCount"),
    "libtorch_hip.so": ("libamdhip64.so", "hipInit", "hipGetDeviceCount"),
}
SOURCE = """
int {init}(unsigned flags) {{ return 0; }}
int {count}(int *count) {{ *count = {number}; return 0; }}
"""


@pytest.fixture
def torch_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of torch's libraries, on Linux."""
    folder = tmp_path / "torch" / "lib"
    folder.mkdir(parents=True)
    found = ModuleSpec("torch", None, origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


@pytest.mark.parametrize("library", DRIVERS)
@pytest.mark.parametrize("number", [0, 2])
def test_the_driver_of_the_library_that_torch_has_counts_the_gpus(
    library: str, number: int, torch_with: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, init, count = DRIVERS[library]
    source, driver = tmp_path / "driver.c", tmp_path / name
    source.write_text(SOURCE.format(init=init, count=count, number=number), "utf-8")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(driver), str(source)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no C compiler")
    real = ctypes.CDLL

    def loaded(wanted: str) -> ctypes.CDLL:
        return real(str(driver)) if wanted == name else real(wanted)

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    assert not gpu.has_gpu(), "this torch is for CPUs"
    (torch_with / library).touch()
    assert gpu.has_gpu() == (number > 0)


def test_a_library_without_its_driver_is_no_gpu(torch_with: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    for library in DRIVERS:
        (torch_with / library).touch()
        assert not gpu.has_gpu()


@pytest.mark.parametrize(("processor", "kind"), [("arm64", "thread"), ("x86_64", "process")])
def test_apples_own_processors_have_one(
    processor: str, kind: str, torch_with: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: processor)
    assert kind_for("auto", "auto") == kind
