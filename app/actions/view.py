"""The View menu: what the pictures show, walking through them, layouts and themes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.control.actions import Action
from app.control.conditions import needs_model, needs_steps

if TYPE_CHECKING:
    from app.shell import Shell


def _open_outliers(shell: Shell) -> None:
    """Not modal: it is walked through beside the window."""
    from app.dialogs.outliers import OutliersDialog

    for dialog in shell.window.findChildren(OutliersDialog):  # one is enough
        dialog.raise_()
        dialog.activateWindow()
        return
    OutliersDialog(shell.models, shell.window).show()


_show = partial(Action, where="picture", is_check=True)


def _walk(name: str, text: str, key: str, do: Callable[[Shell], object]) -> Action:
    return Action(name, text, do, key=key, tip="In a picture", where="picture", needs=needs_model)


_walk_tokens = partial(Action, needs=needs_steps)
_zoom = partial(Action, where="picture")
_theme = partial(Action, is_check=True)

VIEW = (
    (
        _show("view.keys", "Keys", lambda shell: shell.navigator.show_keys(), key="K", tip="In a picture: show K"),
        _show(
            "view.values", "Values", lambda shell: shell.navigator.show_values(), key="V", tip="In a picture: show V"
        ),
        _show(
            "view.change",
            "Only what the step changed",
            lambda shell: shell.navigator.toggle_change(),
            key="D",
            tip="In a picture: the difference to the step before",
        ),
    ),
    (
        _walk("view.layer_up", "Layer above", "Up", lambda shell: shell.navigator.on_layer_up()),
        _walk("view.layer_down", "Layer below", "Down", lambda shell: shell.navigator.on_layer_down()),
        _walk("view.layers_up", "Eight layers up", "PgUp", lambda shell: shell.navigator.on_layers_up()),
        _walk("view.layers_down", "Eight layers down", "PgDown", lambda shell: shell.navigator.on_layers_down()),
        _walk("view.head_left", "Head to the left", "Left", lambda shell: shell.navigator.on_head_left()),
        _walk("view.head_right", "Head to the right", "Right", lambda shell: shell.navigator.on_head_right()),
        _walk_tokens(
            "view.token_left",
            "Token to the left",
            lambda shell: shell.navigator.on_token_left(),
            key="Alt+Left",
            tip="Select the token before",
        ),
        _walk_tokens(
            "view.token_right",
            "Token to the right",
            lambda shell: shell.navigator.on_token_right(),
            key="Alt+Right",
            tip="Select the token after",
        ),
        _walk_tokens(
            "view.find",
            "Find token text",
            lambda shell: shell.window.tokens.open_find(),
            key="Ctrl+F",
            tip="Select the next token that holds a text",
        ),
        _walk_tokens(
            "view.outliers",
            "Largest values…",
            _open_outliers,
            key="Ctrl+Shift+L",
            tip="The largest K and V by layer, head and channel, the most attended tokens: a list that leads to each",
        ),
    ),
    (
        _zoom(
            "view.reset",
            "Show everything",
            lambda shell: shell.window.picture.reset_view(),
            key="Home",
            tip="In a picture: every token again",
        ),
        _zoom(
            "view.zoom",
            "Zoom to the selection",
            lambda shell: shell.window.picture.zoom_to_selection(),
            key="F",
            tip="In a picture",
        ),
        _zoom(
            "view.colors",
            "Fit the colours",
            lambda shell: shell.window.picture.fit_colors(),
            key="C",
            tip="In a picture: to what is visible",
        ),
    ),
    # Ctrl+3 is kept for the layout that compares, which is planned between Inspect and Truth.
    (
        Action(
            "layout.learn",
            "Layout: Learn",
            lambda shell: shell.window.arrange("learn"),
            key="Ctrl+1",
            tip="The cache and the text, little else",
        ),
        Action(
            "layout.inspect",
            "Layout: Inspect",
            lambda shell: shell.window.arrange("inspect"),
            key="Ctrl+2",
            tip="Every panel",
        ),
        Action(
            "layout.truth",
            "Layout: Truth",
            lambda shell: shell.window.arrange("truth"),
            key="Ctrl+4",
            tip="What the cache saves and what it costs: what-if, parity, damage, sweep",
        ),
    ),
    (
        _theme(
            "theme.system",
            "Theme: as the desktop",
            lambda shell: shell.set_theme("system"),
            tip="Dark or light, as the desktop says",
        ),
        _theme("theme.dark", "Theme: dark", lambda shell: shell.set_theme("dark")),
        _theme("theme.light", "Theme: light", lambda shell: shell.set_theme("light")),
        Action(
            "view.full",
            "Full screen",
            lambda shell: shell.window.toggle_full_screen(),
            key="F11",
            tip="And back",
            is_check=True,
        ),
    ),
)
