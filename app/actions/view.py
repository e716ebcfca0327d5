"""The View menu: what pictures show, moving the selection, layouts and themes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action
from app.control.conditions import needs_comparison, needs_model, needs_steps
from app.control.navigation import LEAP

if TYPE_CHECKING:
    from app.shell import Shell


def _walk(name: str, key: str, text: str, do: Callable[[Shell], object]) -> Action:
    return Action(name, key, text, "In a picture", do, needs_model, where="picture")


_show = partial(Action, where="picture", is_check=True)
_zoom = partial(Action, where="picture")
_walk_tokens = partial(Action, needs=needs_steps)
_mark = partial(Action, is_check=True)

# fmt: off
VIEW = (
    (
        _show("view.keys", "K", "Keys", "In a picture: show K", lambda shell: shell.navigator.show_keys()),
        _show("view.values", "V", "Values", "In a picture: show V", lambda shell: shell.navigator.show_values()),
        _show("view.change", "D", "Only what the step changed", "In a picture: the difference to the step before",
              lambda shell: shell.navigator.toggle_change()),
        Action("compare.flip", "X", "Other side of the comparison", "In a picture: B in the place of A, and back",
               lambda shell: shell.window.compare().flip(), needs_comparison, where="picture"),
    ),
    (
        _walk("view.layer_up", "Up", "Layer above", lambda shell: shell.navigator.walk_layers(-1)),
        _walk("view.layer_down", "Down", "Layer below", lambda shell: shell.navigator.walk_layers(+1)),
        _walk("view.layers_up", "PgUp", "Eight layers up", lambda shell: shell.navigator.walk_layers(-LEAP)),
        _walk("view.layers_down", "PgDown", "Eight layers down", lambda shell: shell.navigator.walk_layers(+LEAP)),
        _walk("view.head_left", "Left", "Head to the left", lambda shell: shell.navigator.walk_heads(-1)),
        _walk("view.head_right", "Right", "Head to the right", lambda shell: shell.navigator.walk_heads(+1)),
        _walk_tokens("view.token_left", "Alt+Left", "Token to the left", "Select the token before",
                     lambda shell: shell.navigator.walk_tokens(-1)),
        _walk_tokens("view.token_right", "Alt+Right", "Token to the right", "Select the token after",
                     lambda shell: shell.navigator.walk_tokens(+1)),
        _walk_tokens("view.find", "Ctrl+F", "Find token text", "Select the next token that holds a text",
                     lambda shell: shell.window.tokens.open_find()),
        _walk_tokens("view.outliers", "Ctrl+Shift+L", "Largest values…",
                     "The largest K and V by layer, head and channel, the most attended tokens: a list that leads to "
                     "each", dialogs.open_outliers),
    ),
    (
        _zoom("view.reset", "Home", "Show everything", "In a picture: every token again",
              lambda shell: shell.window.picture.reset_view()),
        _zoom("view.zoom", "F", "Zoom to the selection", "In a picture",
              lambda shell: shell.window.picture.zoom_to_selection()),
        _zoom("view.colors", "C", "Fit the colours", "In a picture: to what is visible",
              lambda shell: shell.window.picture.fit_colors()),
    ),
    (
        Action("layout.learn", "Ctrl+1", "Layout: Learn", "The cache and the text, little else",
               lambda shell: shell.window.arrange("learn")),
        Action("layout.inspect", "Ctrl+2", "Layout: Inspect", "Every panel",
               lambda shell: shell.window.arrange("inspect")),
        Action("layout.compare", "Ctrl+3", "Layout: Compare", "Two runs of the same tokens, side by side",
               lambda shell: shell.window.arrange("compare")),
        Action("layout.truth", "Ctrl+4", "Layout: Truth",
               "What the cache saves and what it costs: what-if, parity, damage, sweep",
               lambda shell: shell.window.arrange("truth")),
    ),
    (
        _mark("theme.system", "", "Theme: as the desktop", "Dark or light, as the desktop says",
              lambda shell: shell.set_theme("system")),
        _mark("theme.dark", "", "Theme: dark", "", lambda shell: shell.set_theme("dark")),
        _mark("theme.light", "", "Theme: light", "", lambda shell: shell.set_theme("light")),
        _mark("view.full", "F11", "Full screen", "And back", lambda shell: shell.window.toggle_full_screen()),
    ),
)
