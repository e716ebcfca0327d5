"""How a run of the program begins: it reads the settings and starts the engine, at once where the engine has a
processor of its own."""

from __future__ import annotations

import os

from app.control.engine import Engine
from app.start.arguments import Arguments
from app.start.paths import settings_path
from app.start.settings import Settings, theme_choice
from engine.client import kind_for
from engine.wire.commands import OpenSnapshot


class Beginning:
    """The settings with the changes of the command line, and the engine they ask for.

    An engine in a process of its own starts here, before the window is made, so that torch is imported meanwhile. One
    that would share the interpreter or the only processor with a window that is not painted yet waits for
    `start_engine`.
    """

    def __init__(self, arguments: Arguments) -> None:
        path = arguments.settings or settings_path()
        self.settings = settings = Settings() if arguments.tour is not None else Settings.load(path)
        settings.overrule(
            theme=None if arguments.theme is None else theme_choice(arguments.theme),
            kept_bytes=arguments.kept_bytes,
            loading=arguments.loading,
        )
        if arguments.prompt is not None:
            settings.prompt = arguments.prompt
        self._arguments = arguments
        self._model = arguments.model.loaded_as(settings.loading)
        self.engine = Engine(arguments.engine or settings.engine)
        if kind_for(self.engine.choice, self._model.device) != "thread" and (os.cpu_count() or 1) > 1:
            self.start_engine()

    def start_engine(self) -> None:
        """Start the engine unless it has started already."""
        if self.engine.kind is None:
            given = self._arguments
            opened = None if given.snapshot is None else OpenSnapshot(given.snapshot)
            self.engine.start(self._model, given.cache, opened, is_remembered=given.loading is None)
