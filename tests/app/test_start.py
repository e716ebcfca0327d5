"""The program as a process: what it imports, how it starts, and that it ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def test_importing_the_window_or_the_loop_does_not_import_torch() -> None:
    done = python(
        """
        import pkgutil, importlib, sys, app, engine.loop.loop
        for module in pkgutil.walk_packages(app.__path__, "app."):
            if module.name != "app.__main__":
                importlib.import_module(module.name)
        print(sorted({"torch", "transformers", "safetensors", "tokenizers"} & set(sys.modules)))
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_twenty_thousand_signals_survive() -> None:
    done = python(
        """
        from PySide6.QtCore import QObject, Signal
        class Speaker(QObject):
            said = Signal(object, bool)
        class Listener(QObject):
            heard = 0
            def on_said(self, what, flag):
                self.heard += flag
        speaker, listener = Speaker(), Listener()
        speaker.said.connect(listener.on_said)
        for _ in range(20_000):
            speaker.said.emit(None, True)
        print(listener.heard)
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "20000"), done.stderr


CLOSING = """
    import sys
    from PySide6.QtCore import QTimer
    import app.main as program
    from app.start.arguments import parse
    opened = program.Program.open
    def open_and_close(self):
        opened(self)
        def close():
            print("closing", flush=True)
            self.shell.window.close()
        QTimer.singleShot(int(sys.argv[1]), close)
    program.Program.open = open_and_close
    sys.exit(program.run(parse(["--settings", sys.argv[2]])))
"""


@pytest.mark.parametrize("after_ms", [0, 400, 2500])
def test_closing_while_it_starts_ends_it(tmp_path: Path, after_ms: int) -> None:
    """Before the engine starts, in the middle of importing torch, and while the model loads."""
    settings = tmp_path / "settings.ini"
    done = python(CLOSING, str(after_ms), str(settings))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "closing\n"
    assert settings.exists()
    assert "Traceback" not in done.stderr


def test_the_window_is_painted_before_torch_is_imported(tmp_path: Path) -> None:
    done = python(
        """
        import sys
        from PySide6.QtCore import QTimer
        import app.main as program
        from app.start.arguments import parse
        started = program.Program._start_engine
        def start(self):
            print("painted", self.shell.window._is_painted, "torch", "torch" in sys.modules, flush=True)
            self.shell.window.close()
        program.Program._start_engine = start
        program.LATEST_START_MS = 600_000  # a busy machine may paint later than it is waited for
        sys.exit(program.run(parse(["--settings", sys.argv[1]])))
        """,
        str(tmp_path / "settings.ini"),
    )
    assert done.stdout.splitlines()[0] == "painted True torch False", done.stderr


def test_what_pictures_need_is_imported_in_the_windows_thread(tmp_path: Path) -> None:
    """PySide makes a class when it is first named; where two threads name one, it crashed one start in a hundred."""
    done = python(
        """
        import sys, threading
        from PySide6.QtCore import QTimer
        import app.main as program
        from app.start.arguments import parse
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "pyqtgraph":
                    print(threading.current_thread() is threading.main_thread(), flush=True)
        sys.meta_path.insert(0, Finder())
        timer = QTimer()
        opened = program.Program.open
        def open_and_close(self):
            opened(self)
            timer.timeout.connect(lambda: "app.kit.graphics" in sys.modules and self.shell.window.close())
            timer.start(10)
        program.Program.open = open_and_close
        sys.exit(program.run(parse(["--settings", sys.argv[1]])))
        """,
        str(tmp_path / "settings.ini"),
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


def test_without_a_display_a_missing_tour_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "app", "--tour", str(tmp_path / "file" / "x")],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_an_engine_of_its_own_process_is_at_work_before_there_is_a_window(tmp_path: Path) -> None:
    """It has torch to import, the window has itself; what it says meanwhile is there when somebody listens. One that
    shares the window's interpreter, or its only processor, waits until that is painted."""
    done = python(
        """
        import sys
        import app.main as program
        from app.start.arguments import parse
        from engine.wire.events import StateChanged
        for kind, cores in (("thread", 2), ("process", 1), ("process", 2)):
            program.usable_cores = lambda: cores
            begun = program.Beginning(parse(["--settings", sys.argv[1], "--engine", kind]))
            print(begun.engine.kind, flush=True)
        import threading
        rung = threading.Event()
        begun.engine.listen(rung.set)
        works = []
        while not works:
            rung.wait(1)
            rung.clear()
            told = [event.status for event in begun.engine.drain() if isinstance(event, StateChanged)]
            works = [status.work.label for status in told if status.work]
        begun.start_engine()  # it has
        print(works[0], flush=True)
        begun.engine.close(1)
        """,
        str(tmp_path / "settings.ini"),
    )
    assert done.stdout.splitlines() == ["None", "None", "process", "Starting torch and transformers"], done.stderr
