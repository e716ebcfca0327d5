"""What can be typed into the palette: a place, `K[2,1,7,13]`, `token 7`, `layer 12 head 3` or `step 40`, which Enter
goes to, and an edit, `zero pos=4:8 layer=3`, which Enter makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from app.control.conditions import needs_live_steps, needs_model
from app.draw.format import thousands
from app.models import Models
from app.window.status_line import SELECTED
from engine.errors import InputError
from engine.spec.edit import FORMS, Edit, parse_edit

if TYPE_CHECKING:
    from app.shell import Shell


LENSES = {"k": "keys", "v": "values"}
# A name and its words; the order is that of an address: layer, kv head, token, channel.
NAMES = {
    "layer": "layer|l",
    "kv_head": "kv head|kv-head|kv_head|head|h",
    "position": "token|position|pos|row",
    "channel": "channel|dim|dimension",
    "step": "step|node",
}
ADDRESS = ("layer", "kv_head", "position", "channel")
_ADDRESS = re.compile(r"([kv])\s*\[([\d\s,:]*)\]?", re.IGNORECASE)
_NAMED = "|".join(f"(?P<{name}>{words})" for name, words in NAMES.items())
_PART = re.compile(rf"\s*(?:{_NAMED})\s*(?P<number>\d{{1,12}})[\s,]*", re.IGNORECASE)
WORDS = {"layer": "layer", "kv_head": "kv head", "position": "token", "channel": "channel", "step": "step"}


class TypedPlace:
    """Interprets the typed text as a place to go to."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def offer(self, text: str) -> tuple[str, str] | None:
        """(Where the text leads, ""); or (why there is no such place, "Go to"); None if the text is no place."""
        if (place := read_place(text)) is None:
            return None
        try:
            checked(place, self._shell.models)
        except InputError as error:
            return str(error), "Go to"
        return f"Go to {place_words(place)}", ""

    def make(self, text: str) -> None:
        """Select the typed place."""
        if (place := read_place(text)) is None:
            return
        self._shell.models.selection.update(**checked(place, self._shell.models))
        self._shell.window.show_place(place.keys())
        self._shell.models.status.notify(SELECTED + place_words(place))


def read_place(text: str) -> dict[str, Any] | None:
    """The fields of the selection that a text names; None if it is no place. Nothing is checked against a model."""
    text = text.strip()
    if (address := _ADDRESS.fullmatch(text)) is not None:
        parts = [part.strip() for part in address[2].split(",") if part.strip()]
        if not parts or len(parts) > len(ADDRESS) or any(not part.isdecimal() and part != ":" for part in parts):
            return None
        numbers = {name: int(part) for name, part in zip(ADDRESS, parts, strict=False) if part != ":"}
        return {"lens": LENSES[address[1].lower()], **numbers}
    return dict(pairs) if (pairs := list(_named(text))) else None


def _named(text: str) -> Iterator[tuple[str, int]]:
    """The named numbers of a text; none unless the whole text consists of them."""
    pairs, place = [], 0
    while place < len(text):
        if (part := _PART.match(text, place)) is None:
            return
        pairs.append((next(name for name in NAMES if part[name]), int(part["number"])))
        place = part.end()
    yield from pairs


def place_words(place: dict[str, Any]) -> str:
    """`K of layer 2, kv head 1, token 7, channel 13`."""
    named = ", ".join(f"{WORDS[name]} {thousands(place[name])}" for name in WORDS if name in place)
    of = {"keys": "K", "values": "V"}.get(place.get("lens", ""), "")
    return f"{of} of {named}" if of else named


def checked(place: dict[str, Any], models: Models) -> dict[str, Any]:
    """The place as changes of the selection. Raises `InputError`, which says what there is, if there is none such."""
    if why_not := needs_model(models):
        raise InputError(f"{why_not[:1].upper()}{why_not[1:]}.")
    model, now, history = models.status.model, models.selection.now, models.history
    assert model is not None
    if (step := place.get("step")) is not None and step not in history:
        raise InputError(f"There is no step {thousands(step)}{_until(max(history.steps, default=None))}")
    geometry = model.geometry
    layer = place.get("layer", now.layer)
    if layer >= geometry.num_layers:
        raise InputError(f"There is no layer {thousands(layer)}{_until(geometry.num_layers - 1)}")
    row = geometry.layers[layer]
    head = place.get("kv_head", min(now.kv_head, max(0, row.num_kv_heads - 1)))
    if "kv_head" in place and head >= row.num_kv_heads:
        raise InputError(f"Layer {layer} has no kv head {thousands(head)}{_until(row.num_kv_heads - 1)}")
    shown = place.get("step", now.step)
    count = models.timeline.num_tokens(now.seq_id, None if shown == models.timeline.live else shown)
    if (position := place.get("position")) is not None and "step" not in place and position >= count:
        raise InputError(f"There is no token {thousands(position)}{_until(count - 1 if count else None)}")
    width = row.key_dim if place.get("lens", now.lens).startswith("keys") else row.value_dim
    if (channel := place.get("channel")) is not None and channel >= width:
        raise InputError(f"A row has no channel {thousands(channel)}{_until(width - 1)}")
    changes = dict(place)
    if {"layer", "kv_head", "lens", "channel"} & place.keys():
        changes |= {"layer": layer, "kv_head": head}
    return changes


def _until(last: int | None) -> str:
    return ": there is none yet." if last is None or last < 0 else f": they are 0 to {thousands(last)}."


class TypedEdit:
    """Interprets the typed text as an edit, if it begins with an edit's name and contains a parameter."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def offer(self, text: str) -> tuple[str, str] | None:
        """(What the edit would do, ""); or (why it is not possible, "Edit"); None if the text is no edit."""
        verb, _, rest = text.strip().partition(" ")
        if verb not in FORMS or "=" not in rest:
            return None
        if why_not := needs_live_steps(self._shell.models):
            return why_not.capitalize(), "Edit"
        try:
            return f"Edit: {self._edit(text).describe()}", ""
        except InputError as error:
            return str(error), "Edit"

    def make(self, text: str) -> None:
        """Make the typed edit."""
        self._shell.intents.on_edited(self._edit(text))

    def _edit(self, text: str) -> Edit:
        models = self._shell.models
        seq_id = models.selection.now.seq_id
        num_tokens = models.timeline.num_tokens(seq_id)
        edit = parse_edit(text, seq_id, num_tokens)
        if models.status.model is not None:
            edit.check(models.status.model.geometry, num_tokens)
        return edit
