from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.start import preflight
from app.start.arguments import parse
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec

ROOT = Path(__file__).resolve().parents[3]
X11 = {"DISPLAY": ":0"}


def without(*libraries: str) -> preflight.Opens:
    return lambda name: name not in libraries


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_all_there_is_no_problem() -> None:
    assert preflight.library_problem(X11, without()) is None


def test_what_is_missing_is_named_with_one_command() -> None:
    problem = preflight.library_problem(X11, without("libxcb-icccm.so.4", "libEGL.so.1"))
    assert problem is not None
    assert "2 system libraries are missing" in problem
    assert problem.endswith("sudo apt install libegl1 libxcb-icccm4")


def test_offscreen_needs_no_x11_libraries() -> None:
    assert preflight.library_problem({"QT_QPA_PLATFORM": "offscreen"}, without("libxcb-cursor.so.0")) is None
    assert preflight.library_problem({"QT_QPA_PLATFORM": "xcb"}, without("libxcb-cursor.so.0")) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="displays are a variable on Linux only")
def test_displays() -> None:
    assert not preflight.has_display({})
    assert preflight.has_display({"WAYLAND_DISPLAY": "wayland-0"})
    assert preflight.has_display({"QT_QPA_PLATFORM": "offscreen"})


def test_the_doctor_answers_without_qt_and_torch() -> None:
    report, _ = preflight.doctor(Path("/nowhere/settings.ini"), {})
    assert "PySide6-Essentials" in report
    assert "display: none: use --tour DIR\nsettings: /nowhere/settings.ini (not written yet)\n" in report
    told, _ = preflight.doctor(ROOT, {"DISPLAY": ":7", "HF_HOME": "/nowhere"})
    assert f"display: :7\nsettings: {ROOT}\nmodels of this computer: /nowhere (none)\nfree disk: " in told
    assert told.splitlines()[0].startswith("Python 3")
    asked = (
        "import app.start.preflight, app.start.arguments, sys\n"
        "print([m for m in ('torch', 'PySide6') if m in sys.modules])"
    )
    assert python("-c", asked).stdout.strip() == "[]"


def test_streams_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    preflight.stand_in_streams()
    assert sys.stderr is not None
    sys.stderr.close()


def test_arguments() -> None:
    arguments = parse(["--model", "/m", "--cache", "static", "--tour", "out", "--steps", "3", "--size", "1280x800"])
    assert arguments.model == ModelSpec("/m")
    assert arguments.cache == CacheSpec("static")
    assert (arguments.tour, arguments.steps, arguments.size) == (Path("out"), 3, (1280, 800))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--cache", "grwoing"], "Unknown cache 'grwoing'"),
        (["--steps", "0"], "0 steps is nothing to do"),
        (["--steps", "-1"], "-1 steps"),
        (["--steps", "many"], "invalid int value"),
        (["--model", " "], "has no name"),
        (["--prompt", ""], "prompt is empty"),
        (["--size", "huge"], "not WIDTHxHEIGHT"),
        (["--size", "1x1"], "outside"),
        (["--size", "1600x100"], "outside"),
        (["--size", "20000x1000"], "outside"),
        (["--theme", "pink"], "invalid choice"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert says in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries are those of Linux")
def test_a_library_is_there_when_the_loader_opens_it() -> None:
    assert preflight.missing_libraries(["libc.so.6", "libnowhere.so.1"]) == ["libnowhere.so.1"]
