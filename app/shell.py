"""Connects the window, the controller and the settings. No other module knows all three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, get_args

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication

from app.actions import dialogs, menus
from app.actions.menus import MENUS
from app.control.actions import Action, Actions
from app.control.controller import Controller
from app.control.intents import Intents, Navigator
from app.control.requests import PACES
from app.control.sender import DeferredSend
from app.kit.theme import ThemeChoice, apply_colors, apply_shapes, apply_theme, resolve_theme
from app.kit.widgets import connect_all, prose
from app.models import Models
from app.models.saved_view import Arrangement, read_view, view_text
from app.panels.prompt.view import CHAT, TEXT
from app.start.settings import Settings
from app.window.menus import recent_name
from app.window.window import MainWindow
from engine.client import is_elsewhere
from engine.client.ssh import remote_of
from engine.spec.bookmark import BookmarkTarget
from engine.spec.model import BUNDLED, SHAPE_PREFIX, ModelSpec
from engine.spec.sampling import Chat
from engine.wire.commands import SetKeptLimit, Step
from engine.wire.events import Event, SessionOpened
from engine.wire.message import Command
from engine.wire.serving import AttachServer, ServerSpec
from engine.wire.status import EngineStatus, OpenedFile

VIEW_MS = 300  # what the window shows is recorded so long after it began to change


class ViewClock(QTimer):
    """Rings soon after what the window shows has begun to change, if that window still lives."""

    def __init__(self, window: QObject) -> None:
        super().__init__(window, singleShot=True, interval=VIEW_MS)

    def on_changed(self) -> None:
        if not self.isActive():
            self.start()


class Shell(QObject):
    """Builds the window and the controller on the models, and connects each signal of the views to the intent that
    handles it; every action's `do` is called with the shell.

    Signals: `engine_wanted(choice)`, restart the engine there: in a thread, in a process, (auto) where it suits the
    device, on another machine, or empty for where it was chosen to run;
    `session_wanted(path)`, open the session again that ended in this file; `reload_wanted()`, load the unloaded model
    again and replay its steps; `cpu_wanted()`, restart the engine on the CPU.
    """

    engine_wanted: ClassVar[Signal] = Signal(str)
    session_wanted = Signal(object)
    reload_wanted: ClassVar[Signal] = Signal()
    cpu_wanted = Signal()

    models: Models
    window: MainWindow
    controller: Controller
    intents: Intents
    navigator: Navigator

    def __init__(
        self,
        app: QApplication,
        settings: Settings,
        send: Callable[[Command], None],
        drain: Callable[[], Sequence[Event]],
    ) -> None:
        super().__init__()
        self._app = app
        self.settings = settings
        self.server_tried = ServerSpec("")
        self.models = Models()
        theme = resolve_theme(settings.theme)
        apply_colors(app, theme)
        self.actions = Actions(self.models, MENUS, self)
        self.window = MainWindow(self.models, self.actions)
        apply_shapes(app, theme)
        self.controller = Controller(self.models, send, drain, self)
        self.intents = self.controller.intents
        self.navigator = Navigator(self.models, self.window)
        self._deferred = DeferredSend(self.models, self._send_deferred, self._step_deferred, self)
        self._view_clock = ViewClock(self.window)
        self._connect_intents()
        self._mark_theme()
        self.set_pace(settings.pace)
        if settings.kept_bytes is not None:
            self.intents.send(SetKeptLimit(settings.kept_bytes))
        self.window.prompt.take_draft(settings.prompt)
        self.window.top.model.set_recent(settings.recent_models)
        self.window.recent.set_names(settings.recent_snapshots)
        self.intents.loading = settings.loading
        self.intents.on_breakpoints_changed(settings.kept_breakpoints())
        self.window.restore_state(settings.geometry, settings.docks, settings.layout)
        if settings.set_aside is not None:
            self.models.status.notify(f"The settings were damaged: the old file is kept as {settings.set_aside}")

    def remember(self) -> None:
        """Copy the window's state into the settings."""
        self.settings.prompt = self.window.prompt.draft
        self.settings.layout = self.window.docks.layout_name
        self.settings.loading = self.intents.loading
        self.settings.keep_breakpoints(self.models.breakpoints.listed)
        self.settings.geometry, self.settings.docks = self.window.save_state()

    def save_session(self, path: Path) -> None:
        """Write the session to a file, and add the file to the recent ones."""
        if self.controller.saving.save(path):
            self._remember_file(path)

    def take_draft(self, text: str) -> None:
        """Put the text of an opened session into the editor, unless the user has begun another one."""
        if not self.window.prompt.is_begun:
            self.window.prompt.take_draft(text)

    def take_chat(self, chat: Chat | None) -> None:
        """Put a recovered conversation into the chat editor, and show it; None shows the text instead."""
        prompt = self.window.prompt
        if chat is not None:
            prompt.chat.take_draft(chat)
            prompt.choose(CHAT)
        else:
            prompt.chat.clear()
            if prompt.choice == CHAT:
                prompt.choose(TEXT)

    def return_to_former(self) -> None:
        """Return to the session that the present one has replaced."""
        if (former := self.models.kept_sessions.former) is not None:
            self.session_wanted.emit(former.path)

    def send_prompt(self, *, is_step: bool = False) -> None:
        """Send the prompt, or have it sent when the model that is being loaded is there. `is_step`: as the first step;
        asked for again during the load, it is a further one."""
        if self.models.status.awaits_model:
            self._deferred.wish(is_step=is_step)
        else:
            self.window.prompt.submit()

    def _send_deferred(self, num_steps: int) -> None:
        """Send the prompt, and take so many steps more. A conversation is answered to its end anyway."""
        self.window.prompt.refresh()  # token ids are read only now that their vocabulary is known
        self.actions["prompt.send"].trigger()
        if num_steps and self.is_prompt_sent and self.window.prompt.choice != CHAT:
            self.intents.send(Step(num_steps))

    def _step_deferred(self, num_steps: int) -> None:
        self.intents.send(Step(num_steps))

    @property
    def is_prompt_sent(self) -> bool:
        """Whether a prompt is on its way to the engine, which has no sequence of it yet."""
        return self.controller.requests.sequences.is_replacing_all

    def set_theme(self, choice: ThemeChoice) -> None:
        """Set the theme: dark, light, or the desktop's."""
        self.settings.theme = choice
        apply_theme(self._app, resolve_theme(choice))
        self._mark_theme()

    def _mark_theme(self) -> None:
        for name in get_args(ThemeChoice):
            self.actions.check(f"theme.{name}", name == self.settings.theme)

    def set_pace(self, name: str) -> None:
        """Set how fast a run goes and how often pictures of it are sent."""
        self.settings.pace = name
        for other in PACES:
            self.actions.check(f"pace.{other}", other == name)
        self.window.top.transport.pace.show_pace(PACES[name])
        self.window.status.show_pace(PACES[name])
        self.intents.send(PACES[name].command)

    def set_kept_limit(self, num_bytes: int) -> None:
        """Limit the memory, in bytes, for the kept state of steps that were left."""
        self.settings.kept_bytes = num_bytes
        self.intents.send(SetKeptLimit(num_bytes))

    # ---- which signal calls which intent -------------------------------------------------------------------------

    def _connect_intents(self) -> None:
        window, intents = self.window, self.intents
        connect_all(
            (window.banner.restart_wanted, self.actions["engine.restart"].trigger),
            (window.banner.cpu_wanted, self.cpu_wanted),
            (self.actions.triggered, self._on_action),
            (window.prompt.submitted, intents.on_prompt_submitted),
            (window.prompt.sampling_changed, intents.on_sampling_changed),
            (window.breakpoints.breakpoints_changed, intents.on_breakpoints_changed),
            (window.edits.repeated, intents.on_edits_repeated),
            (window.notes.wanted, intents.on_bookmark_wanted),
            (window.notes.edited, self._on_note_edited),
            (window.notes.deleted, self.models.bookmarks.remove),
            (window.note_menu.deleted, self.models.bookmarks.remove),
            (window.timeline.ran_here, intents.on_run_here),
            (window.branches.named, self.models.history.rename),
            (window.branches.compared, window.compare_with),
            (window.next_token.biased, intents.on_edited),
            (window.next_token.bias_wanted, self._on_bias_wanted),
            (window.top.model.chosen, intents.on_model_chosen),
            (window.top.model.wants, intents.take),
            (window.top.cache.wants, intents.take),
            (window.dropped, self._on_model_dropped),
            (window.file_dropped, self._on_file_dropped),
            (window.recent.chosen, self._on_recent_chosen),
            (window.sessions.chosen, self.session_wanted),
            (window.prompt.edit.edited, self._on_draft),
            (window.prompt.chat.edited, self._on_draft),
            (self.controller.events.session_opened, self._on_session_opened),
            (intents.model_wanted, window.top.model.open_menu),
            (window.wants, intents.take),
            (self.models.status.changed, self._on_status),
            (self.models.selection.changed, self._view_clock.on_changed),
            (self.models.viewport.changed, self._view_clock.on_changed),
            (window.docks.rearranged, self._view_clock.on_changed),
            (self._view_clock.timeout, self._keep_view),
        )

    def _on_bias_wanted(self, token_id: int) -> None:
        menus.ask_bias(self, (token_id,))

    def _on_model_dropped(self, model: ModelSpec) -> None:
        if self._machine:
            what, where = prose(model.base.removeprefix(SHAPE_PREFIX)), prose(self._machine)
            words = f"{what} lies on this machine, and the engine runs on {where}: choose a model there."
            self.models.status.fail(words)
        else:
            self.intents.on_model_chosen(model)

    def _on_file_dropped(self, path: Path) -> None:
        self._on_recent_chosen(path, "")

    def _on_recent_chosen(self, path: Path, machine: str) -> None:
        """Open a file of another machine, or of this one (empty), which may not be that of the engine."""
        if machine == self._machine:
            dialogs.open_path(self, path)
        elif not machine:
            self.intents.on_snapshot_chosen(path, is_here=True)
        else:
            name, there, where = prose(path.name), prose(machine), prose(self._machine) or "this machine"
            words = f"{name} lies on {there}, and the engine runs on {where}: let it run on {there} (Run · Engine)."
            self.models.status.fail(words)

    @property
    def _machine(self) -> str:
        """The other machine that the engine runs on; empty if it runs on this one."""
        engine = self.models.status.engine
        return remote_of(engine).machine if is_elsewhere(engine) else ""

    def attach(self, spec: ServerSpec) -> None:
        """Listen to a server, and show what it has cached."""
        self.server_tried = spec
        self.window.arrange("servers")
        self.intents.send(AttachServer(spec))

    def _on_note_edited(self, target: BookmarkTarget) -> None:
        dialogs.ask_note(self, target)

    def _on_draft(self) -> None:
        if not self.models.status.has_file or self.window.prompt.is_begun:
            self.controller.saving.set_draft(self.window.prompt.draft)
        self.controller.saving.set_draft_chat(self.window.prompt.chat.draft)

    def _on_session_opened(self, event: SessionOpened) -> None:
        """Restore the opened session's prompt, unless the user has begun another one, and what its window showed."""
        if event.draft:
            self.take_draft(event.draft)
        if event.draft_chat is not None and self.window.prompt.chat.draft is None:
            self.take_chat(event.draft_chat)
        if (view := read_view(event.view)) is not None:
            if event.reply_to is None:  # else the panels stand so already, or as they were moved since
                self.window.show_arrangement(view.arrangement if view.arrangement.layout else Arrangement(view.layout))
            self.window.show_selected(view)

    def _keep_view(self) -> None:
        if self.window.isVisible():  # of a window that closes, no panel is in front
            self.controller.saving.set_view(view_text(self.models, self.window.docks.arrangement))

    def _on_action(self, action: Action) -> None:
        if isinstance(action.do, Command):
            self.intents.send(action.do)
        else:
            action.do(self)

    def _on_status(self, old: EngineStatus, new: EngineStatus) -> None:
        if new.runner.note and old.runner.note != new.runner.note:
            self.models.status.notify(new.runner.note)
        if new.capture.note and old.capture.note != new.capture.note:
            self.models.status.notify(new.capture.note)
        if new.opened is not None:
            self._on_opened(old, new.opened)
            return
        known = old.model.source if old.model is not None else None
        if new.model is not None and new.model.source != known:
            if new.model.source != BUNDLED:
                self.settings.remember_model(new.model.source)
                self.window.top.model.set_recent(self.settings.recent_models)
            self.models.status.notify(f"{new.model.name} is loaded")

    def _on_opened(self, old: EngineStatus, opened: OpenedFile) -> None:
        """Remember a file that was just opened and show its name."""
        if old.opened is not None and old.opened.path == opened.path:
            return
        if self.intents.is_own_file:
            return
        self._remember_file(opened.path, "" if self.intents.carried == opened.path else self._machine)
        self.models.status.notify(f"{prose(opened.path.name)} is open, read-only")

    def _remember_file(self, path: Path, machine: str = "") -> None:
        """Put a file among the recent ones, with the other machine that it lies on; empty for this one."""
        if not machine:
            self.models.status.folder = path.parent
        self.settings.remember_snapshot(recent_name(path, machine))
        self.window.recent.set_names(self.settings.recent_snapshots)
