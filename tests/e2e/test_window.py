"""The installed command on a real X server, driven by keys alone, as a person would."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from engine.__main__ import main
from engine.files.atomic import PART_SUFFIX

COMMAND = Path(sys.executable).parent / "kvloupe"
PATIENCE_S = 600


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


@pytest.fixture
def display() -> Iterator[str]:
    needs("Xvfb", "xdotool")
    read, write = os.pipe()
    # Without -noreset the server begins anew whenever its last client leaves: xdotool is often the only one while the
    # window starts, and a window that connects in such a moment is turned away.
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-noreset"]
    server = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as stream:
        number = stream.readline().strip()
    assert number, "Xvfb did not start"
    yield f":{number}"
    server.terminate()
    server.wait(PATIENCE_S)


@pytest.fixture
def environment(display: str, tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home, so that no settings of the user are read."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("QT_", "XDG_", "WAYLAND_"))}
    return kept | {"DISPLAY": display, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}


class Keyboard:
    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(["xdotool", *arguments], env=self._environment, capture_output=True, text=True)
        return done.stdout.strip()

    def sees(self, title: str) -> bool:
        """Whether a window with these words in its title is on the screen; at rest the title names model and step."""
        return bool(self("search", "--onlyvisible", "--name", title))

    def reaches(self, title: str) -> bool:
        """Whether the keys go to a window with these words in its title."""
        return title in self("getwindowfocus", "getwindowname")

    def press(self, *keys: str) -> None:
        for key in keys:
            self("key", key)
            time.sleep(0.2)


def test_type_step_and_export(environment: dict[str, str], tmp_path: Path) -> None:
    if not COMMAND.exists():
        pytest.skip("kvloupe is not installed in this environment")
    said = tmp_path / "stderr.txt"
    with said.open("w") as stderr:
        window = subprocess.Popen([str(COMMAND)], env=environment, cwd=tmp_path, stderr=stderr)

    def wait_until(holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert window.poll() is None, f"the window ended before {what}: {said.read_text()}"
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}: {said.read_text()}"
            time.sleep(0.2)

    try:
        keyboard = Keyboard(environment)
        wait_until(lambda: keyboard.sees("KV Loupe"), "the window")
        wait_until(lambda: keyboard.sees("Tales 5M"), "the bundled model")
        wait_until(lambda: keyboard.reaches("Tales 5M"), "the focus")

        keyboard.press("ctrl+a")
        keyboard("type", "--delay", "20", "Once upon a time")
        keyboard.press("ctrl+Return")
        wait_until(lambda: keyboard.sees("step 0"), "the prefill")
        for step in (1, 2, 3):
            keyboard.press("F10")
            wait_until(lambda step=step: keyboard.sees(f"step {step} "), f"step {step}")

        keyboard.press("ctrl+e")
        wait_until(lambda: keyboard.reaches("Export"), "the question what to export")
        keyboard.press("Return")
        snapshot = tmp_path / "kvloupe-step3.safetensors"
        wait_until(snapshot.exists, "the snapshot")
        with safe_open(snapshot, framework="np") as file:
            facts = file.metadata()
            assert facts["format"] == "kvloupe-snapshot"
            assert facts["num_tokens"] == "9"  # six tokens of the prompt, three steps
            assert file.get_slice("layers.5.values").get_shape() == [1, 4, 9, 32]
        assert list(tmp_path.glob(f".*{PART_SUFFIX}")) == []

        keyboard.press("ctrl+q")
        assert window.wait(PATIENCE_S) == 0
        assert "Traceback" not in said.read_text()
    finally:
        window.kill()


def test_the_tour_leaves_pictures_a_snapshot_the_steps_and_a_session_that_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, "-m", "app", "--tour", str(tmp_path / "tour"), "--steps", "3", "--theme", "light"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    pictures = sorted((tmp_path / "tour").glob("*.png"))
    assert len(pictures) >= 5
    assert all(picture.stat().st_size > 20_000 for picture in pictures)
    with safe_open(tmp_path / "tour" / "snapshot.safetensors", framework="np") as file:
        assert file.metadata()["cache"] == "growing"
    with (tmp_path / "tour" / "steps.csv").open(newline="", encoding="utf-8") as stream:
        steps = list(csv.DictReader(stream))
    assert [row["phase"] for row in steps[:4]] == ["prefill", "decode", "decode", "decode"]
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "tour" / "session.json"), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    last = json.loads(said.out.splitlines()[-1])
    assert (last["differences"], last["same"]) == (0, True)
    assert last["steps"] >= len(steps)
