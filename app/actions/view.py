"""The View menu: what pictures show, moving the selection, layouts and themes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.actions import dialogs, finding
from app.control.actions import Action, Submenu
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

LAYOUT_WORDS = "arrange panels, reset panels, workspace"
THEME_WORDS = "colors, appearance, dark mode, light mode"

# fmt: off
VIEW = (
    (
        _show("view.keys", "K", "Keys", "In a picture: show K", lambda shell: shell.navigator.show_lens("keys")),
        _show("view.values", "V", "Values", "In a picture: show V", lambda shell: shell.navigator.show_lens("values")),
        _show("view.change", "D", "Only what the step changed", "In a picture: the difference to the step before",
              lambda shell: shell.navigator.toggle_change(), also="difference, delta, diff"),
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
        _walk_tokens("view.go_to", "Ctrl+G", "Go to…",
                     "Type a place: K[2,1,7,13] (layer, kv head, token, channel), token 7, layer 12, head 3 or step 40",
                     finding.open_places, also="jump, address, index, select"),
        _walk_tokens("view.find", "Ctrl+F", "Find token text", "Select the next token that holds a text",
                     lambda shell: shell.window.tokens.open_find(), also="search text, search token"),
        _walk_tokens("view.outliers", "Ctrl+Shift+L", "Largest values…",
                     "The largest K and V by layer, head and channel, the most attended tokens: a list that leads to "
                     "each", dialogs.open_outliers,
                     also="outlier, outliers, massive activations, maximum, extremes, attention sinks"),
    ),
    (
        _zoom("view.reset", "Home", "Show everything", "In a picture: every token again",
              lambda shell: shell.window.picture.reset_view(), also="zoom out, reset view"),
        _zoom("view.zoom", "F", "Zoom to the selection", "In a picture",
              lambda shell: shell.window.picture.zoom_to_selection(), also="zoom in, magnify"),
        _zoom("view.colors", "C", "Fit the colours", "In a picture: to what is visible",
              lambda shell: shell.window.picture.fit_colors(),
              also="colors, contrast, color range, colormap, colour scale"),
    ),
    (
        Submenu("Layout", ((
            Action("layout.learn", "Ctrl+1", "Learn", "The cache and the text, little else",
                   lambda shell: shell.window.arrange("learn"), also=LAYOUT_WORDS),
            Action("layout.inspect", "Ctrl+2", "Inspect", "Every panel",
                   lambda shell: shell.window.arrange("inspect"), also=LAYOUT_WORDS),
            Action("layout.compare", "Ctrl+3", "Compare", "Two runs of the same tokens, side by side",
                   lambda shell: shell.window.arrange("compare"), also=LAYOUT_WORDS),
            Action("layout.truth", "Ctrl+4", "Truth",
                   "What the cache saves and what it costs: what-if, parity, damage, sweep",
                   lambda shell: shell.window.arrange("truth"), also=LAYOUT_WORDS),
            Action("layout.servers", "Ctrl+5", "Servers", "What servers elsewhere have cached, and why no more",
                   lambda shell: shell.window.arrange("servers"), also=LAYOUT_WORDS),
        ),)),
    ),
    (
        Submenu("Theme", ((
            _mark("theme.system", "", "As the desktop", "Dark or light, as the desktop says",
                  lambda shell: shell.set_theme("system"), also=THEME_WORDS),
            _mark("theme.dark", "", "Dark", "Light text on a dark ground", lambda shell: shell.set_theme("dark"),
                  also=THEME_WORDS),
            _mark("theme.light", "", "Light", "Dark text on a light ground", lambda shell: shell.set_theme("light"),
                  also=THEME_WORDS),
        ),)),
        Action("view.warnings", "", "Warnings", "What may surprise you about the model, the prompt or the numbers",
               dialogs.open_warnings, also="problems, errors, NaN, Inf, not finite, messages"),
        _mark("view.full", "F11", "Full screen", "And back", lambda shell: shell.window.toggle_full_screen(),
              also="maximise, maximize"),
    ),
)
