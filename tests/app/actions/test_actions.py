"""Every action by its own key, where it acts: what was so before, and what is so after. One line per action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtGui import QGuiApplication

from app.control.requests import PACES
from app.kit.theme import current_theme
from engine.saved.document import is_session
from engine.spec.cache import PRESETS
from engine.spec.condition import Breakpoint
from engine.spec.edit import Drop, Edit, Mask, Pin, Zero
from engine.spec.model import CAPTURES, PAGED_ATTENTION, RUNNERS, ModelSpec
from engine.wire.breakpoints import SetBreakpoints
from engine.wire.commands import (
    Cancel,
    ChoosePagedAttention,
    ChooseRunner,
    CloseSnapshot,
    Continue,
    GoTo,
    LoadModel,
    MakeEdit,
    NextPhase,
    OpenSnapshot,
    RedoEdit,
    Run,
    SetCache,
    SetCapture,
    Step,
    SubmitPrompt,
    UndoEdit,
)
from engine.wire.devices import UnloadModel
from engine.wire.measurements import Bench, CheckParity, MeasureRegret, Sweep
from tests.app import samples
from tests.app.actions.desk import ACTIONS, AREA, STEPS, Desk, to_change


@dataclass(frozen=True)
class Effect:
    """What an action changes: read before and after it, and what must be found. `prepare` makes it possible; what
    `lasts` cannot be taken back by `Desk.rest` and has a window of its own."""

    read: Callable[[Desk], object]
    before: object
    after: object
    prepare: Callable[[Desk], None] = lambda _: None
    lasts: bool = field(default=False, kw_only=True)

    def fault(self, desk: Desk, key: str) -> str:
        """What is not as it should be before or after the action; empty where all is."""
        self.prepare(desk)
        found = self.read(desk)
        if found != self.before:
            return f"{key}: {found!r} before it, where {self.before!r} was expected"
        desk.press(key)
        found = self.read(desk)
        return "" if found == self.after else f"{key}: {found!r} after it, where {self.after!r} was expected"


def selected(name: str) -> Callable[[Desk], object]:
    return lambda desk: getattr(desk.models.selection.now, name)


def sent(kind: type) -> Callable[[Desk], object]:
    return lambda desk: desk.sent(kind)


def models_loaded(desk: Desk) -> list[str]:
    return [command.model.source.replace(str(desk.folder), "…") for command in desk.engine.of(LoadModel)]


def text_asked(desk: Desk) -> list[tuple[str | None, bool]]:
    return [(command.prompt.text, command.alone) for command in desk.engine.of(SubmitPrompt)]


def opens(name: str, prepare: Callable[[Desk], None] = lambda _: None) -> Effect:
    return Effect(Desk.dialogs, [], [name], prepare)


def whole_view(desk: Desk) -> bool:
    return desk.models.viewport.now.head_range is None


def edits(desk: Desk) -> list[object]:
    return [command.edit for command in desk.engine.of(MakeEdit)]


def drag_over(desk: Desk) -> None:
    desk.models.selection.update(position=4, area=AREA)


def drag_over_keys(desk: Desk) -> None:
    desk.models.selection.update(position=4, area=KEYS)


def chosen_part(desk: Desk) -> str:
    area = desk.models.selection.now.area
    return area.part if area is not None else ""


# Of a selection of K alone: what hides, pins or drops a row does it to K and V.
KEYS = replace(AREA, part="keys")
EDITS: dict[str, Edit] = {
    "edit.zero": Zero(0, KEYS),
    "edit.mask": Mask(0, AREA),
    "edit.unmask": Mask(0, AREA, hidden=False),
    "edit.pin": Pin(0, AREA),
    "edit.unpin": Pin(0, AREA, pinned=False),
    "edit.drop": Drop(0, AREA),
}
EFFECTS: dict[str, Effect] = {
    "model.open": Effect(models_loaded, [], ["…"]),
    "model.hub": opens("HubDialog"),
    "server.attach": opens("ServerDialog"),
    "model.shape": Effect(models_loaded, [], ["shape:…/config.json"]),
    "model.bundled": Effect(models_loaded, [], [ModelSpec().source]),
    "model.compute": opens("LoadingDialog"),
    "model.unload": Effect(sent(UnloadModel), [], [UnloadModel()]),
    "model.reload": Effect(lambda desk: desk.reloads, 0, 1, lambda desk: desk.unload()),
    "snapshot.open": Effect(lambda desk: [c.path.name for c in desk.engine.of(OpenSnapshot)], [], ["config.json"]),
    "session.save": Effect(lambda desk: is_session(desk.folder / "picture.png"), False, True),
    "session.return": Effect(lambda desk: desk.sessions, [], [Path("former.json")], Desk.have_a_former_session),
    "snapshot.continue": Effect(sent(Continue), [], [Continue(ModelSpec())], lambda desk: desk.open_file()),
    "snapshot.close": Effect(sent(CloseSnapshot), [], [CloseSnapshot(ModelSpec())], lambda desk: desk.open_file()),
    "export": opens("ExportDialog"),
    **{f"export.{kind}": opens("ExportDialog") for kind in ("npz", "table", "trace", "session", "picture")},
    "value.copy": Effect(
        lambda _: bool(QGuiApplication.clipboard().text()), False, True, lambda desk: desk.point_at_cell()
    ),
    "picture.copy": Effect(
        lambda _: QGuiApplication.clipboard().image().isNull(),
        True,
        False,
        lambda _: QGuiApplication.clipboard().setText("words"),
    ),
    "picture.save": Effect(lambda desk: (desk.folder / "picture.png").is_file(), False, True),
    "quit": Effect(lambda desk: desk.window.isVisible(), True, False, lasts=True),
    "prompt.send": Effect(text_asked, [], [("Once upon a time", True)], lasts=True),
    "prompt.add": Effect(text_asked, [], [("Once upon a time", False)], lasts=True),
    "run.step": Effect(sent(Step), [], [Step()], lasts=True),
    "run.back": Effect(selected("step"), None, STEPS - 1),
    "run.run": Effect(sent(Run), [], [Run()]),
    "run.phase": Effect(sent(NextPhase), [], [NextPhase()]),
    "run.to": opens("RunToDialog"),
    "run.here": Effect(sent(Run), [], [Run(12)], lambda desk: desk.models.selection.update(ahead=12), lasts=True),
    "run.here_token": Effect(
        lambda desk: [c.step == desk.models.timeline.token(0, 9).step for c in desk.engine.of(GoTo)],
        [],
        [True],
        lasts=True,
    ),
    "run.at_token": Effect(
        lambda desk: desk.models.selection.now.step == desk.models.timeline.token(0, 9).step, False, True
    ),
    "breakpoints.add": Effect(
        sent(SetBreakpoints), [], [SetBreakpoints((Breakpoint(1, "step = 20"),))], Desk.type_condition, lasts=True
    ),
    "breakpoints.switch": Effect(
        lambda desk: [stop.is_enabled for stop in desk.models.breakpoints.listed],
        [True],
        [False],
        lambda desk: desk.shell.intents.on_breakpoints_changed((Breakpoint(1, "step = 20"),)),
        lasts=True,
    ),
    "breakpoints.find": Effect(lambda desk: desk.window.breakpoints.line.hasFocus(), False, True),
    "breakpoints.next": Effect(selected("step"), 30, 40, Desk.search, lasts=True),
    "breakpoints.previous": Effect(selected("step"), 30, 20, Desk.search, lasts=True),
    "note.add": opens("BookmarkDialog"),
    "run.cancel": Effect(sent(Cancel), [], [Cancel()], Desk.run),
    "run.first": Effect(selected("step"), None, 0),
    "run.live": Effect(selected("step"), 7, None, Desk.look_back),
    "run.go_on": Effect(sent(GoTo), [], [GoTo(7)], Desk.look_back, lasts=True),
    "run.return": Effect(
        lambda desk: [c.step for c in desk.engine.of(GoTo)], [7], [7, STEPS], Desk.go_back, lasts=True
    ),
    "run.kept": opens("CheckpointLimitDialog"),
    "run.type_next": Effect(lambda desk: desk.window.next_token.continuation.edit.hasFocus(), False, True),
    "view.branches": Effect(lambda desk: desk.window.branches.visibleRegion().isEmpty(), True, False),
    "timeline.play": Effect(lambda desk: desk.shell.navigator.is_playing, False, True, lasts=True),
    "timeline.first": Effect(selected("step"), None, 0),
    "timeline.live": Effect(selected("step"), 7, None, Desk.look_back),
    "edit.undo": Effect(sent(UndoEdit), [], [UndoEdit()], Desk.edit, lasts=True),
    "edit.redo": Effect(sent(RedoEdit), [], [RedoEdit()], Desk.undo, lasts=True),
    "edit.scale": opens("ScaleForm", drag_over),
    "edit.noise": opens("NoiseForm", drag_over),
    "edit.overwrite": opens("OverwriteForm", drag_over),
    "edit.replace": opens("ReplaceForm", drag_over),
    "edit.bias": opens("BiasForm"),
    "edit.typed": opens("TypedForm"),
    "edit.both": Effect(chosen_part, "keys", "both", Desk.choose_keys),
    "edit.keys": Effect(chosen_part, "both", "keys", drag_over),
    "edit.values": Effect(chosen_part, "both", "values", drag_over),
    "cache.tune": opens("CacheDialog", lambda desk: desk.in_mode("h2o")),
    "truth.parity": Effect(sent(CheckParity), [], [CheckParity(0)]),
    "truth.sweep": Effect(lambda desk: desk.counted(Sweep), 0, 1),
    "truth.bench": Effect(lambda desk: desk.counted(Bench), 0, 1),
    "truth.regret": Effect(lambda desk: desk.counted(MeasureRegret), 0, 1),
    "cache.calculator": opens("Calculator"),
    "cache.max": opens("MaxParams"),
    "view.keys": Effect(lambda desk: selected("lens")(desk), "values", "keys", to_change),
    "view.values": Effect(selected("lens"), "keys", "values"),
    "view.change": Effect(selected("change"), False, True),
    "view.layer_up": Effect(selected("layer"), 4, 3),
    "view.layer_down": Effect(selected("layer"), 4, 5),
    "view.layers_up": Effect(selected("layer"), 4, 0),
    "view.layers_down": Effect(selected("layer"), 4, samples.LAYERS - 1),
    "view.head_left": Effect(selected("kv_head"), 1, 0),
    "view.head_right": Effect(selected("kv_head"), 1, 2),
    "view.token_left": Effect(selected("position"), 9, 8),
    "view.token_right": Effect(selected("position"), 9, 10),
    "view.find": Effect(lambda desk: desk.window.tokens.find_line.isVisible(), False, True),
    "view.outliers": opens("OutliersDialog"),
    "view.reset": Effect(whole_view, False, True, Desk.widen),
    "view.zoom": Effect(whole_view, True, False),
    "view.colors": Effect(lambda desk: desk.window.head.bar.limit == 0.25, True, False, Desk.widen),
    "layout.learn": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "learn"),
    "layout.inspect": Effect(
        lambda desk: desk.window.docks.layout_name, "learn", "inspect", lambda desk: desk.window.arrange("learn")
    ),
    "compare.with": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare", lasts=True),
    "compare.flip": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare", Desk.compare, lasts=True),
    "compare.report": Effect(
        lambda desk: (desk.folder / "picture.png").is_file(), False, True, Desk.compare, lasts=True
    ),
    "layout.compare": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "compare"),
    "layout.servers": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "servers"),
    "layout.truth": Effect(lambda desk: desk.window.docks.layout_name, "inspect", "truth"),
    "theme.system": Effect(lambda desk: desk.shell.settings.theme, "dark", "system"),
    "theme.dark": Effect(
        lambda desk: current_theme().name, "light", "dark", lambda desk: desk.shell.set_theme("light")
    ),
    "theme.light": Effect(lambda desk: current_theme().name, "dark", "light"),
    "view.full": Effect(lambda desk: desk.window.isFullScreen(), False, True, lasts=True),
    "engine.restart": Effect(lambda desk: desk.engines, [], [""]),
    "engine.auto": Effect(lambda desk: desk.engines, [], ["auto"]),
    "engine.thread": Effect(lambda desk: desk.engines, [], ["thread"]),
    "engine.process": Effect(lambda desk: desk.engines, [], ["process"]),
    "engine.elsewhere": opens("AddressDialog"),
    **{f"capture.{name}": Effect(lambda desk: desk.sent(SetCapture), [], [SetCapture(name)]) for name in CAPTURES},
    "capture.by_layer": Effect(lambda desk: desk.sent(SetCapture), [], [SetCapture("rows", by_layer=True)]),
    **{
        f"pages.{name}": Effect(lambda desk: desk.sent(ChoosePagedAttention), [], [ChoosePagedAttention(name)])
        for name in PAGED_ATTENTION
    },
    **{f"runner.{name}": Effect(lambda desk: desk.sent(ChooseRunner), [], [ChooseRunner(name)]) for name in RUNNERS},
    **{
        f"pace.{name}": Effect(
            lambda desk: desk.shell.settings.pace,
            "all" if name != "all" else "1",
            name,
            lambda desk, name=name: desk.shell.set_pace("all" if name != "all" else "1"),  # type: ignore[misc]
        )
        for name in PACES
    },
    "help.palette": opens("Palette"),
    "view.go_to": opens("Palette"),
    "view.warnings": opens("WarningsDialog"),
    "help.begin": opens("Manual"),
    "help.glossary": opens("Manual"),
    "help.manual": opens("Manual"),
    "help.panel": opens("Manual"),
    "help.keys": opens("KeysDialog"),
    "help.about": opens("AboutDialog"),
}


def test_the_table_has_every_action() -> None:
    assert set(EFFECTS) | set(EDITS) | {f"cache.{name}" for name in PRESETS} == set(ACTIONS)


def test_every_mode_is_asked_for(desk: Desk) -> None:
    for name in PRESETS:
        desk.press(f"cache.{name}")
    assert desk.sent(SetCache) == [SetCache(preset.spec) for preset in PRESETS.values()]


@pytest.mark.parametrize("key", [key for key, effect in EFFECTS.items() if effect.lasts])
def test_an_action_that_lasts_does_what_it_says(desk: Desk, key: str) -> None:
    assert EFFECTS[key].fault(desk, key) == ""
    desk.close_dialogs()


def test_every_other_action_does_what_it_says(desk: Desk) -> None:
    """In one window, in the order of the table: what one leaves behind would stand before another."""
    faults = []
    for key, effect in EFFECTS.items():
        if not effect.lasts:
            faults.append(effect.fault(desk, key))
            desk.rest()
    assert not any(faults), "\n".join(filter(None, faults))


def test_every_edit_of_rows_is_made(desk: Desk) -> None:
    """In one window, one after the other."""
    faults = []
    for key, edit in EDITS.items():
        if isinstance(edit, Pin):
            drag_over(desk)
            assert "this cache keeps every row" in desk.window.actions_.reason(key)
            desk.in_mode("h2o")
        faults.append(Effect(edits, [], [edit], drag_over_keys).fault(desk, key))
        desk.rest()
    assert not any(faults), "\n".join(filter(None, faults))
