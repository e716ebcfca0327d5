"""One window for many tests: it is built once, and each test has it in a process of its own, a fork of the one that
built it. Every test begins with the same window whatever others did to theirs, and waits for none to be built.

Only Linux can fork a process that has a window, one that is on no screen, and only where Qt has no threads of its own:
tests/conftest.py asks it for none. Elsewhere, under a debugger and where coverage is measured each test builds its own.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
from _pytest.runner import runtestprotocol
from PySide6.QtWidgets import QApplication

from app.shell import Shell
from tests.app.fake_engine import FakeEngine
from tests.effort import effort

PATIENCE_S = effort(1800, 86_400)  # a test that hangs says where after that
FEWEST = 2  # tests of a file for which a window is kept
FIXTURE = pytest.StashKey[str]()  # of a test that gets the kept window: what gives it


class Forks:
    """The window that is kept with its engine, and the tests that get it. `builders`: of each fixture that gives such a
    window, the one with most in it last; `sweep` takes a window away."""

    def __init__(
        self, builders: dict[str, Callable[[], tuple[Shell, FakeEngine]]], sweep: Callable[[Shell], None]
    ) -> None:
        self._builders = builders
        self._sweep = sweep
        self._app: QApplication | None = None
        self.window: Shell | None = None
        self.engine: FakeEngine | None = None

    def choose(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Decide which tests get a window that is kept, and let those of a file that share one follow each other."""
        is_debugged = config.option.usepdb or "coverage" in sys.modules
        if sys.platform != "linux" or os.environ["QT_QPA_PLATFORM"] != "offscreen" or is_debugged:
            return
        wanted = {item: fixture for item in items if (fixture := self._fixture_of(item)) is not None}
        count = Counter((item.path, fixture) for item, fixture in wanted.items())
        for item, fixture in wanted.items():
            if count[item.path, fixture] >= FEWEST:
                item.stash[FIXTURE] = fixture
        places = {item.path: place for place, item in reversed([*enumerate(items)])}
        order = ["", *self._builders]
        items.sort(key=lambda item: (places[item.path], order.index(item.stash.get(FIXTURE, ""))))

    def _fixture_of(self, item: pytest.Item) -> str | None:
        """What gives this test a window that could be kept: as it stands in a conftest, and beside nothing that is made
        for a whole file."""
        if not isinstance(item, pytest.Function):
            return None
        defined = {name: found[-1] for name, found in item._fixtureinfo.name2fixturedefs.items()}
        given = [name for name in self._builders if name in defined]
        is_changed = hasattr(item, "callspec") and any(name in item.callspec.params for name in given)
        is_own = "engine" in defined and all(
            defined[name].func.__module__.endswith(".conftest") for name in ("engine", *given)
        )
        is_alone = all(each.scope in ("function", "session") for each in defined.values())
        return given[-1] if given and is_own and is_alone and not is_changed else None

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test that gets the kept window, and say whether this is one."""
        fixture = item.stash.get(FIXTURE, None)
        if fixture is None:
            return False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self.window is None:
            self._app = self._app or application(item.config)
            item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # each fork would empty it
            gc.disable()  # as in a test
            self.window, self.engine = self._builders[fixture]()
        for report in forked(item):
            item.ihook.pytest_runtest_logreport(report=report)
        if nextitem is None or (nextitem.path, nextitem.stash.get(FIXTURE, None)) != (item.path, fixture):
            self.end()
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # of what tests before it have left for this file
        return True

    def end(self) -> None:
        """Take the kept window away, if there is one."""
        if self.window is not None:
            self._sweep(self.window)
            self.window = self.engine = None
            gc.enable()


def application(config: pytest.Config) -> QApplication:
    """The one that the fixture `qapp` finds."""
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    app.setApplicationName(config.getini("qt_qapp_name"))
    app.setCursorFlashTime(0)
    return app


def forked(item: pytest.Item) -> list[pytest.TestReport]:
    """Run a test in a fork of this process, and return its reports."""
    hook = item.config.hook
    with tempfile.TemporaryFile("w+") as told, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads, as those of numpy, stay behind
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=sys.__stderr__)
                if (torch := sys.modules.get("torch")) is not None:
                    torch.set_num_threads(1)
                reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
                json.dump(
                    [hook.pytest_report_to_serializable(config=item.config, report=each) for each in reports], told
                )
                told.flush()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        told.seek(0)
        if text := told.read():
            return [hook.pytest_report_from_serializable(config=item.config, data=each) for each in json.loads(text)]
    why = f"its process ended without a report: {os.waitstatus_to_exitcode(status)}"
    return [pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")]
