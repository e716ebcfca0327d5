"""The desk that a person works at: window, controller and settings wired together. Nothing else knows all three.

Dialogs and sheets are imported when they are asked for: none of them is part of the first picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast, get_args

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication, QFileDialog

from app.control.controller import Controller
from app.control.navigation import Navigator
from app.kit.files import save_picture, save_text
from app.kit.measurement import MeasuringPanel
from app.kit.theme import ThemeChoice, apply_theme, resolve_theme
from app.models import Models
from app.start.cache_modes import MODES
from app.start.settings import Settings
from app.window.docks import LAYOUTS
from app.window.window import MainWindow
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED, SHAPE_PREFIX, ModelSpec
from engine.wire.commands import Command
from engine.wire.records import EngineStatus, Event


class Shell(QObject):
    """Builds the window on the models and binds every action and intent to one slot."""

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
        self.models = Models()
        theme = resolve_theme(settings.theme)
        apply_theme(app, theme)
        self.window = MainWindow(self.models, theme)
        self.controller = Controller(self.models, send, drain, self)
        self.navigator = Navigator(self.models, self)
        self._export_folder = Path.home()
        self._bind_run()
        self._bind_view()
        self._bind_files()
        self._connect_intents()
        self._mark_theme()
        self.window.prompt.edit.set_text(settings.prompt)
        self.window.top.model.set_recent(settings.recent_models)
        self.window.restore_state(settings.geometry, settings.docks, settings.layout)
        if settings.set_aside is not None:
            self.models.status.notify(f"The settings were damaged: the old file is kept as {settings.set_aside}")

    def remember(self) -> None:
        """Bring the settings up to date with the window."""
        self.settings.prompt = self.window.prompt.edit.text()
        self.settings.layout = self.window.docks.layout_name
        self.settings.geometry, self.settings.docks = self.window.save_state()

    # ---- one slot per action -------------------------------------------------------------------------------------

    def _bind_run(self) -> None:
        bind, controller, navigator = self.window.actions_.bind, self.controller, self.navigator
        bind("prompt.send", self.window.prompt.submit)
        bind("prompt.add", self.window.prompt.submit_beside)
        bind("run.step", controller.on_step)
        bind("run.back", controller.on_step_back)
        bind("run.run", controller.on_run_or_pause)
        bind("run.to", self.ask_run_to)
        bind("run.cancel", controller.on_cancel)
        bind("run.rewind", controller.on_rewind_here)
        for scope in ("run", "timeline"):
            bind(f"{scope}.first", navigator.on_first_step)
            bind(f"{scope}.live", navigator.on_live)
        bind("timeline.play", navigator.on_play_or_stop)
        for name in MODES:
            bind(f"cache.{name}", self._choose_cache)
        bind("cache.tune", self.ask_parameters)
        bind("cache.calculator", self.open_calculator)
        bind("cache.max", self.open_max_parameters)
        bind("truth.parity", self.check_parity)
        bind("truth.sweep", self.measure_sweep)
        bind("truth.regret", self.measure_regret)

    def _bind_view(self) -> None:
        bind, navigator, window = self.window.actions_.bind, self.navigator, self.window
        bind("view.keys", navigator.show_keys)
        bind("view.values", navigator.show_values)
        bind("view.change", navigator.toggle_change)
        bind("view.layer_up", navigator.on_layer_up)
        bind("view.layer_down", navigator.on_layer_down)
        bind("view.layers_up", navigator.on_layers_up)
        bind("view.layers_down", navigator.on_layers_down)
        bind("view.head_left", navigator.on_head_left)
        bind("view.head_right", navigator.on_head_right)
        bind("view.token_left", navigator.on_token_left)
        bind("view.token_right", navigator.on_token_right)
        bind("view.find", window.tokens.open_find)
        bind("view.reset", self._reset_picture)
        bind("view.zoom", self._zoom_picture)
        bind("view.colors", self._fit_picture)
        bind("view.outliers", self.open_outliers)
        bind("view.full", window.toggle_full_screen)
        for name in LAYOUTS:
            bind(f"layout.{name}", self._choose_layout)
        for name in get_args(ThemeChoice):
            bind(f"theme.{name}", self._choose_theme)

    def _bind_files(self) -> None:
        bind = self.window.actions_.bind
        bind("model.open", self.ask_folder)
        bind("model.hub", self.ask_hub_name)
        bind("model.shape", self.ask_config)
        bind("model.bundled", self.load_bundled)
        bind("export", self.ask_export)
        bind("picture.copy", self._copy_picture)
        bind("picture.save", self._save_picture)
        bind("quit", self.window.close)
        bind("help.palette", self.open_palette)
        bind("help.keys", self.open_keys)
        bind("help.about", self.open_about)

    def _connect_intents(self) -> None:
        window, controller = self.window, self.controller
        window.prompt.submitted.connect(controller.on_prompt_submitted)
        window.prompt.added.connect(controller.on_prompt_added)
        window.prompt.sampling_changed.connect(controller.on_sampling_changed)
        window.prompt.text_edited.connect(controller.on_text_edited)
        controller.tokenized.connect(window.prompt.set_tokens)
        controller.untokenized.connect(window.prompt.refuse)
        window.sequences.stopped.connect(controller.on_sequence_stopped)
        window.sequences.removed.connect(controller.on_sequence_removed)
        window.sequences.forked.connect(controller.on_forked)
        window.next_token.token_forced.connect(controller.on_token_forced)
        window.top.model.chosen.connect(controller.on_model_chosen)
        window.top.model.opened.connect(controller.on_models_wanted)
        window.top.cache.chosen.connect(controller.on_cache_chosen)
        controller.models_found.connect(window.top.model.set_found)
        window.dropped.connect(controller.on_model_chosen)
        window.truth_asked.connect(controller.on_truth_wanted)
        window.cache_applied.connect(controller.on_cache_chosen)
        window.cancelled.connect(controller.on_cancel)
        window.rebuild_wanted.connect(controller.on_rebuild_wanted)
        self.models.status.changed.connect(self._on_status)

    # ---- choices -------------------------------------------------------------------------------------------------

    def _triggered_name(self) -> str:
        """The last word of the key of the action that is being handled."""
        return self.window.actions_.current.split(".", 1)[1]

    def _choose_cache(self) -> None:
        self.window.top.cache.choose(MODES[self._triggered_name()].spec)

    def _choose_layout(self) -> None:
        self.window.arrange(self._triggered_name())

    def _choose_theme(self) -> None:
        self.set_theme(cast(ThemeChoice, self._triggered_name()))

    def set_theme(self, choice: ThemeChoice) -> None:
        """Dark, light, or as the desktop says."""
        self.settings.theme = choice
        theme = resolve_theme(choice)
        apply_theme(self._app, theme)
        self.window.set_theme(theme)
        self._mark_theme()

    def _mark_theme(self) -> None:
        for name in get_args(ThemeChoice):
            self.window.actions_.check(f"theme.{name}", name == self.settings.theme)

    def _reset_picture(self) -> None:
        self.window.picture.reset_view()

    def _zoom_picture(self) -> None:
        self.window.picture.zoom_to_selection()

    def _fit_picture(self) -> None:
        self.window.picture.fit_colors()

    def _copy_picture(self) -> None:
        self.window.picture.copy_picture()

    def _save_picture(self) -> None:
        self.window.picture.save_picture()

    def _on_status(self, old: EngineStatus | None, new: EngineStatus) -> None:
        known = old.model.source if old is not None and old.model is not None else None
        if new.model is not None and new.model.source != known:
            if new.model.source != BUNDLED:
                self.settings.remember_model(new.model.source)
                self.window.top.model.set_recent(self.settings.recent_models)
            self.models.status.notify(f"{new.model.name} is loaded")
        if not new.running and new.model is not None and new.work is None:
            self.window.setWindowTitle(self._title(new.model.name, new.step))

    def _title(self, model: str, step: int | None) -> str:
        """What a task bar shows of a window at rest: the model, and how far it is."""
        return f"{model} — KV Loupe" if step is None else f"{model} · step {step} — KV Loupe"

    # ---- measurements --------------------------------------------------------------------------------------------

    def check_parity(self) -> None:
        self._measure("parity")

    def measure_sweep(self) -> None:
        self._measure("sweep")

    def measure_regret(self) -> None:
        self._measure("evicted")

    def _measure(self, name: str) -> None:
        """Let a panel ask, where it can be seen: in the Truth layout if it is nowhere."""
        self.window.need_truth()
        dock = self.window.docks.docks[name]
        if not dock.isVisible():
            self.window.arrange("truth")
        dock.raise_()
        panel = self.window.panels[name]
        assert isinstance(panel, MeasuringPanel)
        panel.measure()

    # ---- questions -----------------------------------------------------------------------------------------------

    def load_bundled(self) -> None:
        self.controller.on_model_chosen(ModelSpec())

    def ask_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self.window, "Open model folder")
        if path:
            self.controller.on_model_chosen(ModelSpec(path))

    def ask_config(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self.window, "Shape from config.json", "", "Model config (*.json)")
        if path:
            self.controller.on_model_chosen(ModelSpec(f"{SHAPE_PREFIX}{path}"))

    def ask_hub_name(self) -> None:
        from app.dialogs.dialogs import HubDialog

        dialog = HubDialog(self.window)
        dialog.chosen.connect(self.controller.on_model_chosen)
        dialog.open()

    def ask_run_to(self) -> None:
        from app.dialogs.dialogs import RunToDialog

        dialog = RunToDialog(self.window)
        dialog.chosen.connect(self.controller.on_run_to)
        dialog.open()

    def ask_parameters(self) -> None:
        from app.dialogs.dialogs import CacheDialog
        from app.dialogs.pool import PoolDialog

        spec, status = self.controller.cache, self.models.status.now
        model = status.model if status is not None else None
        paged = spec.is_paged and spec.retention.keeps_all
        dialog = PoolDialog(spec, model, self.window) if paged else CacheDialog(spec, self.window)
        dialog.chosen.connect(self._on_cache_tuned)
        dialog.open()

    def _on_cache_tuned(self, spec: CacheSpec) -> None:
        self.controller.on_cache_chosen(spec)

    def open_calculator(self) -> None:
        """Not modal: it is used beside the window."""
        from app.dialogs.calculator import Calculator

        status = self.models.status.now
        model = status.model if status is not None else None
        sheet = Calculator(model, self.controller.cache, self.window.theme, self.window)
        sheet.told.connect(self.models.status.notify)
        sheet.show()

    def open_max_parameters(self) -> None:
        from app.dialogs.max_params import MaxParams

        status = self.models.status.now
        if status is not None and status.model is not None:
            sheet = MaxParams(status.model, self.window.theme, self.window)
            sheet.told.connect(self.models.status.notify)
            sheet.show()

    def open_outliers(self) -> None:
        """Not modal: it is walked through beside the window."""
        from app.dialogs.outliers import OutliersDialog

        for dialog in self.window.findChildren(OutliersDialog):  # one is enough
            dialog.raise_()
            dialog.activateWindow()
            return
        OutliersDialog(self.models, self.window).show()

    def ask_export(self) -> None:
        from app.dialogs.export import ExportDialog

        dialog = ExportDialog(self.models, self._export_folder, self.window)
        dialog.snapshot_chosen.connect(self._on_snapshot_chosen)
        dialog.table_chosen.connect(self.export_table)
        dialog.picture_chosen.connect(self.export_picture)
        dialog.open()

    def _on_snapshot_chosen(self, path: Path, notes: str) -> None:
        self._export_folder = path.parent
        self.controller.on_export_chosen(path, notes)

    def export_table(self, path: Path) -> None:
        """Write the step table and say so."""
        from app.models.step_table import step_csv

        self._export_folder = path.parent
        problem = save_text(step_csv(self.models.timeline), path)
        self._tell(problem, f"Step table written to {path}")

    def export_picture(self, path: Path) -> None:
        """Write a picture of the whole window and say so."""
        self._export_folder = path.parent
        problem = save_picture(self.window.grab_window(), path)
        self._tell(problem, f"Picture written to {path}")

    def _tell(self, problem: str, news: str) -> None:
        if problem:
            self.models.status.fail(problem)
        else:
            self.models.status.notify(news)

    def open_palette(self) -> None:
        from app.window.palette import Palette

        palette = Palette(self.window.actions_, self.window.theme, self.window)
        palette.open_over(self.window)

    def open_keys(self) -> None:
        from app.dialogs.dialogs import KeysDialog

        KeysDialog(self.window.actions_, self.window).open()

    def open_about(self) -> None:
        from app.dialogs.dialogs import AboutDialog

        AboutDialog(self.window).open()
